"""Gaussian dropout: noise in proportion to the weight, rates that are given, and rates that are learned."""

import math

import pytest
import torch
from torch import nn

import dubito
from dubito.net import Net
from dubito.priors import assign
from dubito.target import Batch, Target
from dubito.tick import Tick

G = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=G)
Y = X @ torch.tensor([1.0, -1.0, 0.5, 0.0]) + 0.2 * torch.randn(60, generator=G)


def perceptron() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def fit(method, **options):
    settings = {"steps": 60, "batch_size": 20, "device": "cpu", "progress": False, **options}
    return dubito.fit(perceptron(), (X, Y), method, likelihood=dubito.Gaussian(0.2), **settings)


def alphas(posterior) -> dict[str, torch.Tensor]:
    random = {n: v for n, v in posterior.net.layout.split(posterior.std[0]).items() if bool(v.any())}
    means = posterior.net.layout.split(posterior.mean[0])
    return {name: (std / means[name]).square() for name, std in random.items()}


def test_a_given_rate_stays_and_noise_follows_the_weights():
    found = alphas(fit(dubito.GaussianDropout(rate=0.2, learning_rate=0.01)))
    assert set(found) == {"0.weight", "2.weight"}
    for alpha in found.values():
        torch.testing.assert_close(alpha, torch.full_like(alpha, 0.25), rtol=1e-4, atol=0.0)


GROUPS = {"layer": (1, 1), "neuron": (4, 6), "weight": (24, 6)}


@pytest.mark.parametrize("per", GROUPS)
def test_rates_are_learned_by_layer_neuron_or_weight(per):
    found = alphas(fit(dubito.VariationalDropout(per=per, learning_rate=0.02), members=2))
    for alpha, groups in zip(found.values(), GROUPS[per], strict=True):
        assert len({f"{float(a):.4g}" for a in alpha.log().flatten().mul(100).round()}) <= groups
        assert not bool(torch.isclose(alpha, torch.tensor(1 / 9)).all()), "they have moved"
        assert float(alpha.max()) <= 1 + 1e-4
    if per == "neuron":
        first = found["0.weight"].log()
        torch.testing.assert_close(first, first[:1].expand_as(first), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose1d])
def test_each_input_channel_of_a_convolution_has_a_rate(kind, groups):
    """The first channel is the only one that is not 0: where it leads, rates move otherwise than elsewhere."""
    torch.manual_seed(0)
    layer = kind(4, 6, 2, groups=groups)
    net, x = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(1)), torch.zeros(60, 4, 5)
    x[:, 0] = X[:, :1]
    net(x)
    method = dubito.VariationalDropout(per="neuron", learning_rate=0.05, estimator="weights")
    posterior = dubito.fit(net, (x, Y), method, likelihood=dubito.Gaussian(0.2), steps=20, device="cpu", progress=False)
    alpha = alphas(posterior)["0.weight"].log()
    reads = torch.zeros_like(alpha, dtype=torch.bool)
    reads[(0,) if kind is nn.ConvTranspose1d else (slice(0, 6 // groups), 0)] = True
    other = float(alpha[~reads].mean())
    torch.testing.assert_close(alpha[reads], alpha[reads].mean().expand(12 // groups), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(alpha[~reads], torch.full_like(alpha[~reads], other), rtol=1e-3, atol=1e-3)
    assert abs(float(alpha[reads].mean()) - other) > 0.01


@pytest.mark.parametrize("per", ["layer", "weight"])
def test_one_step_by_hand(per):
    module = nn.Linear(3, 1)
    target = Target(Net(module), dubito.Gaussian(0.5), assign(dubito.Normal(0.8), module), 30)
    method = dubito.VariationalDropout(
        per=per, estimator="weights", optimiser="sgd", momentum=0.0, learning_rate=0.1, rate=0.2
    )
    state = method.init(target.net.theta().unsqueeze(0), target, Tick.at(0, 9))
    q, tick = state.q[0].clone(), Tick.at(1, 9, seed=5)
    x, y = X[:10, :3], X[:10, :3].sum(1)
    moved, info = method.step(state, Batch(x, y, torch.arange(10)), target, tick)
    mean = q[:4].clone().requires_grad_()
    ratio = torch.full((1,) if per == "layer" else (3,), math.log(0.25), requires_grad=True)
    eps = tick.rng.child("variational").normal_(torch.empty(1, 1, 4), "weights")[0, 0]
    slopes = mean[:3] * (1 + (ratio / 2).exp() * mean[:3].detach().sign() * eps[:3])
    fit = -target.likelihood.log_prob((x @ slopes + mean[3]).unsqueeze(1), y).mean()
    every = ratio.expand(3)
    kl = (0.63576 * (1 - torch.sigmoid(1.8732 + 1.48695 * every)) + 0.5 * (1 + (-every).exp()).log()).sum()
    kl = kl - torch.distributions.Normal(0.0, 0.8).log_prob(mean[3:]).sum()
    by_mean, by_ratio = torch.autograd.grad(fit + kl / 30, (mean, ratio))
    torch.testing.assert_close(moved.mean[0], q[:4] - 0.1 * by_mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(moved.raw[0, :3], (math.log(0.25) - 0.1 * by_ratio).expand(3), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(info.complexity, (kl / 30).detach().view(1))


def test_a_weight_of_zero_has_no_noise_and_no_nan():
    net = perceptron()
    nn.init.zeros_(net[2].weight)
    posterior = dubito.fit(net, (X, Y), dubito.VariationalDropout(), steps=3, device="cpu", progress=False)
    assert bool(torch.isfinite(posterior.mean).all()) and bool(torch.isfinite(posterior.std).all())


def test_what_is_no_setting_is_refused():
    for method, wrong, match in [
        (dubito.GaussianDropout, {"rate": 0.0}, "GaussianDropout: rate must lie between 0 and 1"),
        (dubito.VariationalDropout, {"per": "row"}, "per is 'row'; use 'layer', 'neuron' or 'weight'"),
        (dubito.VariationalDropout, {"most": -1.0}, "most must be positive"),
    ]:
        with pytest.raises(ValueError, match=match):
            method(**wrong)
    with pytest.raises(ValueError, match="GaussianDropout acts on matrices and kernels, and none has a prior"):
        fit(dubito.GaussianDropout(), prior={"*weight": dubito.Point()})


def test_a_start_above_the_largest_alpha_is_refused():
    with pytest.raises(
        ValueError, match=r"rate 0\.9 is alpha 9, above most=1\.0; start at a smaller rate or raise most"
    ):
        dubito.VariationalDropout(rate=0.9)
    assert dubito.VariationalDropout(rate=0.9, most=10.0).rate == 0.9
    assert dubito.VariationalDropout(rate=0.5).most == 1.0
