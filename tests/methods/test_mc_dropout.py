"""MC dropout: where masks go, what they do, and what is refused."""

import pytest
import torch
from torch import nn

import dubito

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def fitted(net, method, **options):
    return dubito.fit(net, (X, Y), method, steps=5, progress=False, device="cpu", **options)


def test_a_rate_puts_dropout_on_every_layer_but_the_first():
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    sites = fitted(net, dubito.MCDropout(rate=0.3)).net.sites(X)
    assert [(site.shape, site.rate) for site in sites] == [((1, 6), 0.3), ((1, 5), 0.3)]


def test_the_net_s_own_dropout_is_used_and_its_rate_replaced():
    net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.4), nn.Linear(6, 2))
    assert [s.rate for s in fitted(net, dubito.MCDropout()).net.sites(X)] == [0.4]
    assert [s.rate for s in fitted(net, dubito.MCDropout(rate=0.1)).net.sites(X)] == [0.1]


def test_draws_are_masks_of_one_network():
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 2))
    posterior = fitted(net, dubito.MCDropout())
    first, again, other = (posterior.predict(X, draws=8, seed=seed).draws for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert float(first.std(0).max()) > 0
    plain = posterior.mean_network()
    theta = posterior.samples.get([0])[0][0]
    torch.testing.assert_close(plain(X), posterior.net(theta, X))


def test_a_linear_network_averages_to_the_weight_scaling_rule():
    net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 1))
    posterior = dubito.fit(
        net, (X, X[:, 1]), dubito.MCDropout(), steps=5, likelihood=dubito.Gaussian(1.0), progress=False, device="cpu"
    )
    mean = posterior.predict(X, draws=4000).mean
    spread = posterior.predict(X, draws=4000).epistemic.sqrt() / 4000**0.5
    assert float(((mean - posterior.mean_network()(X).detach()).abs() / spread).max()) < 5


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="rate"):
        dubito.MCDropout(rate=1.0)
    with pytest.raises(ValueError, match="nowhere to drop"):
        fitted(nn.Linear(4, 2), dubito.MCDropout())
    with pytest.raises(dubito.Undefined):
        fitted(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), "mc_dropout").sample(2)
