"""Layers with Gaussian weights: their draws, their KL, and the posterior they become."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal as Reference
from torch.distributions import kl_divergence

import dubito
from dubito.nn import BayesConv1d, BayesConv2d, BayesConv3d, BayesLinear, kl, to_posterior
from dubito.rng import Rng

G = torch.Generator().manual_seed(0)
LAYERS = {
    "linear": (lambda e: BayesLinear(4, 3, init_std=0.3, estimator=e), (4,)),
    "linear over positions": (lambda e: BayesLinear(4, 3, bias=False, init_std=0.3, estimator=e), (2, 4)),
    "conv1d": (lambda e: BayesConv1d(2, 3, 3, stride=2, padding=1, init_std=0.3, estimator=e), (2, 5)),
    "conv2d": (
        lambda e: BayesConv2d(2, 4, 2, 1, 1, 2, 2, padding_mode="circular", init_std=0.3, estimator=e),
        (2, 3, 3),
    ),
    "conv3d": (lambda e: BayesConv3d(1, 2, 2, init_std=0.3, estimator=e), (1, 2, 2, 3)),
}


@pytest.mark.parametrize("estimator", ["local", "weights", "flipout"])
@pytest.mark.parametrize("kind", LAYERS)
def test_draws_have_the_moments_of_the_plain_layer(kind, estimator):
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    layer, x, draws = make(estimator), torch.randn(1, *shape, generator=G), 1500
    plain = to_posterior(layer, dubito.Gaussian(1.0)).net
    before = torch.get_rng_state()
    with torch.no_grad():
        outputs = torch.stack([layer(x) for _ in range(draws)]).flatten(1)
    assert torch.equal(before, torch.get_rng_state())
    jacobian = torch.func.jacrev(lambda theta: plain(theta, x).flatten())(plain.theta())
    variance = jacobian.square().sum(1) * 0.09
    assert float(((outputs.mean(0) - plain(plain.theta(), x).flatten()) / (variance / draws).sqrt()).abs().max()) < 5
    assert float((outputs.var(0) / variance - 1).abs().max()) < 6 * math.sqrt(2 / draws)


def test_flipout_moves_the_places_of_one_example_together():
    """A kernel's noise is one draw wherever it acts, with or without an axis for the batch."""
    torch.manual_seed(0)
    layer = BayesConv2d(2, 4, 2, padding=1, padding_mode="circular", init_std=0.3, estimator="flipout")
    x = torch.ones(2, 3, 3)
    with torch.no_grad():
        for outputs in (layer(x), layer(x[None])[0]):
            places = outputs.flatten(1)
            torch.testing.assert_close(places, places[:, :1].expand_as(places))


@pytest.mark.parametrize("estimator", ["local", "weights", "flipout"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_computes_what_a_fit_of_the_plain_layer_does(kind, estimator):
    """Under the same noise the outputs and their gradients are the same numbers."""
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    layer, x = make(estimator), torch.randn(3, *shape, generator=G)
    held = to_posterior(layer, dubito.Gaussian(1.0))
    net, mean, std = held.net, held.mean[0].requires_grad_(), held.std[0].requires_grad_()
    rng = Rng(*layer.stream.tolist())
    outputs = layer(x)

    def normal(like, name):
        return rng.normal_(torch.empty(1, *like.shape), name)[0]

    if estimator == "local":
        scheme, noise = net.scheme(x, net.layout.names, "local"), {"weight/outputs": normal(outputs, "outputs")}
    else:
        scheme = net.scheme(x, net.layout.names, "flipout")
        noise = {name: normal(layer.get_parameter(name), name) for name in net.layout.names}
        channels = -1 if layer.weight.ndim == 2 else 1
        for name, t in (("r", outputs), ("s", x)):
            sizes = [n if axis in (0, channels % t.ndim) else 1 for axis, n in enumerate(t.shape)]
            noise[f"weight/{name}"] = rng.uniform((1, *sizes), name, x)[0].lt(0.5).float() * 2 - 1
    if estimator == "weights":
        plain = net(mean + std * net.layout.join(noise), x)
    else:
        plain = net.noisy(mean, std, x, scheme, noise)
    torch.testing.assert_close(outputs, plain)
    by_layer = torch.autograd.grad(outputs.square().sum(), [layer.get_parameter(n) for n in net.layout.names])
    (by_mean,) = torch.autograd.grad(plain.square().sum(), mean)
    torch.testing.assert_close(torch.cat([g.flatten() for g in by_layer]), by_mean, rtol=1e-4, atol=1e-5)


def test_a_layer_goes_on_with_its_stream_where_it_was_saved():
    torch.manual_seed(0)
    layer, other = BayesLinear(4, 3), BayesLinear(4, 3)
    x = torch.randn(2, 4, generator=G)
    assert not torch.equal(layer(x), layer(x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), other(x))
    torch.manual_seed(0)
    assert torch.equal(BayesLinear(4, 3).stream[0], layer.stream[0])
    assert not torch.equal(BayesLinear(4, 3).stream[0], layer.stream[0])


def test_kl_in_nats_and_its_gradient():
    layer = BayesLinear(4, 3, prior=dubito.Normal(0.5), init_std=0.2)
    exact = sum(
        kl_divergence(Reference(m, layer.std(n)), Reference(0.0, 0.5)).sum()
        for n, m in (("weight", layer.weight), ("bias", layer.bias))
    )
    torch.testing.assert_close(kl(nn.Sequential(layer, nn.ReLU())), exact)
    kl(layer).backward()
    assert all(bool(p.grad.any()) for p in layer.parameters())
    mixture = BayesConv1d(1, 2, 3, prior=dubito.ScaleMixture(0.5, 1.0, 0.1))
    kl(mixture).backward()
    assert bool(torch.isfinite(mixture.weight_rho.grad).all())
    fan = BayesLinear(16, 3)
    assert fan.priors["weight"] == dubito.FanIn().of(nn.Linear(16, 3), "weight", fan.weight)


def test_a_net_of_layers_learns_and_becomes_a_posterior(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(60, 3, generator=G)
    y = (x[:, 0] > 0).long()
    net = nn.Sequential(BayesLinear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), BayesLinear(8, 2, estimator="flipout"))
    optimiser = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(120):
        optimiser.zero_grad()
        (F.cross_entropy(net(x), y) + kl(net) / len(x)).backward()
        optimiser.step()
    posterior = to_posterior(net.eval(), dubito.Categorical())
    assert [type(m).__name__ for m in posterior.net.module] == ["Linear", "BatchNorm1d", "Tanh", "Linear"]
    assert isinstance(net[0], BayesLinear)
    probs = posterior.predict(x, draws=50).probs
    assert float((probs.argmax(1) == y).float().mean()) > 0.9
    std = posterior.net.layout.split(posterior.std[0])
    torch.testing.assert_close(std["0.weight"], net[0].std("weight").detach())
    assert not std["1.weight"].any()
    with torch.no_grad():
        by_layers = torch.stack([net(x).softmax(1) for _ in range(400)]).mean(0)
    torch.testing.assert_close(by_layers, posterior.predict(x, draws=400).probs, atol=0.06, rtol=0.0)
    posterior.save(tmp_path / "p")
    plain = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    assert torch.equal(dubito.load(tmp_path / "p", plain, device="cpu").predict(x, draws=50).probs, probs)


def test_what_is_wrong_is_refused():
    for wrong in (0, "wide", math.inf):
        with pytest.raises(ValueError, match=f"init_std must be positive, got {wrong!r}"):
            BayesLinear(2, 2, init_std=wrong)
    with pytest.raises(ValueError, match="unknown estimator 'best'"):
        BayesConv2d(1, 1, 2, estimator="best")
    with pytest.raises(ValueError, match=r"no layers with Gaussian weights; use dubito\.fit"):
        kl(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"no layers with Gaussian weights; use dubito\.fit"):
        to_posterior(nn.Linear(2, 2), dubito.Categorical())
    with pytest.raises(ValueError, match=r"BayesLinear: Point\(\) leaves weight without a distribution; give a prior"):
        BayesLinear(2, 2, prior=dubito.Point())
    with pytest.raises(ValueError, match=r"'wide' is no prior; use e\.g\. Normal"):
        BayesConv1d(2, 2, 2, prior="wide")
