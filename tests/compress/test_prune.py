"""Pruning by signal to noise: what goes, what stays, and the curve."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import dubito
from dubito import compress
from dubito.net import Net
from dubito.posteriors.gaussian import GaussianPosterior
from dubito.results import Result

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def made(members: int = 1, likelihood=None, outputs: int = 2, still: bool = False) -> GaussianPosterior:
    torch.manual_seed(0)
    net = Net(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, outputs)))
    g = torch.Generator().manual_seed(3)
    mean = torch.randn(members, net.layout.size, generator=g)
    std = 0.1 + torch.rand(members, net.layout.size, generator=g)
    if still:
        std[:, net.layout.spans["2.bias"]] = 0
    return GaussianPosterior(net, likelihood or dubito.Categorical(), mean, std)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9, 1.0])
def test_the_least_certain_weights_go_with_mean_and_std(share):
    posterior = made(2, still=True)
    left = compress.pruned(posterior, share)
    size = posterior.net.layout.size
    random = size - 2
    for member in range(2):
        gone = (left.std[member] == 0) & (posterior.std[member] > 0)
        assert int(gone.sum()) == round(share * random)
        assert not left.mean[member][gone].any()
        kept = ~gone
        assert torch.equal(left.mean[member][kept], posterior.mean[member][kept])
        assert torch.equal(left.std[member][kept], posterior.std[member][kept])
        ratio = posterior.mean[member].abs() / posterior.std[member]
        if 0 < share < 1:
            assert float(ratio[gone].max()) <= float(ratio[kept].min())
    assert bool((posterior.std[:, : size - 2] > 0).all()), "the posterior itself is untouched"
    torch.testing.assert_close(compress.signal_to_noise(posterior).shape, (2, random))


def test_a_mixture_can_be_pruned_again():
    """Each of its Gaussians has lost other weights, which are the first of those that go."""
    once = compress.pruned(made(2), 0.5)
    again = compress.pruned(once, 0.75)
    assert bool(torch.isfinite(compress.signal_to_noise(once)).all())
    assert not bool((again.std > 0)[once.std == 0].any())
    random = int(once.random.sum())
    assert (again.std > 0).sum(1).tolist() == [random - round(0.75 * random)] * 2
    with pytest.raises(ValueError, match=r"the 2 Gaussians spread over different weights.*take one of them"):
        once.log_prob(once.thetas(2))
    assert bool(torch.isfinite(once.member(0).log_prob(once.member(0).thetas(2))).all())


def test_draws_of_a_pruned_posterior_are_zero_where_weights_went():
    left = compress.pruned(made(), 0.5)
    drawn = left.thetas(20)
    assert not drawn[:, left.std[0] == 0].any()
    assert bool((drawn[:, left.std[0] > 0].std(0) > 0).all())
    assert bool(torch.isfinite(left.log_prob(drawn)).all())


def test_useless_weights_go_first_and_the_answers_stay():
    """Only the first of six inputs matters, so most weights of a fitted net can go."""
    net = nn.Linear(6, 2)
    method = dubito.Variational(learning_rate=0.05, schedule="cosine", init_std=0.05)
    posterior = dubito.fit(net, (X, Y), method, prior=dubito.Normal(1.0), steps=300, device="cpu", progress=False)
    result = compress.pruning({"Variational": posterior}, (X, Y), shares=(0.0, 0.8), draws=50)
    (_, left_all, whole, *_), (_, left_few, small, *_) = result.numbers["Variational"]
    assert (left_all, left_few) == (14, 3)
    assert small <= whole + 0.1
    kept = compress.pruned(posterior, 0.8).net.layout.split(compress.pruned(posterior, 0.8).mean[0])["weight"]
    assert bool(kept[:, 0].any())


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_the_curve_is_a_result_with_its_figures(kind, tmp_path):
    posterior = made() if kind == "classification" else made(likelihood=dubito.Gaussian(0.5), outputs=1)
    y = Y if kind == "classification" else X[:, 0]
    result = compress.pruning({"a": posterior, "b": compress.pruned(posterior, 0.1)}, (X, y), draws=10)
    assert [f.name for f in result.figures] == ["curve", "density", "cdf"]
    assert len(result.tables[0].rows) == 2 * len(compress.prune.SHARES)
    cdf = result.figures[2].panels[0].data["series"][0]["y"]
    assert float(cdf[0]) == 0 and float(cdf[-1]) == 1 and all(a <= b for a, b in pairwise(cdf))
    path = result.save(tmp_path / "pruning.json")
    assert Result.load(path).numbers == result.numbers


def test_what_cannot_be_pruned():
    with pytest.raises(ValueError, match="share is 95, but a share of the weights lies between 0 and 1"):
        compress.pruned(made(), 95)
    plain = dubito.fit(nn.Linear(6, 2), (X, Y), "map", steps=1, device="cpu", progress=False)
    with pytest.raises(ValueError, match=r"holds no spread of each weight.* compress\.write"):
        compress.pruning({"MAP": plain}, (X, Y))
    posterior = made()
    posterior.std.zero_()
    with pytest.raises(ValueError, match="no weight of the network has a spread"):
        compress.pruned(posterior, 0.5)
