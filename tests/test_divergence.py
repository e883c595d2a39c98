"""KL divergences in exact nats: closed forms against draws and quadrature, gradients against finite differences."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal as Reference
from torch.distributions import kl_divergence

from dubito.divergence import divergence, dropout_divergence, squared_scales, sub_isotropic_
from dubito.layout import Layout
from dubito.priors import Assigned, Laplace, Normal, Normals, Point, Prior, ScaleMixture, StudentT
from dubito.target import FlatPrior

LAYOUT = Layout(("a", "b", "c"), ((2, 3), (4,), (5,)))
G = torch.Generator().manual_seed(0)
MEAN = torch.randn(2, LAYOUT.size, generator=G, dtype=torch.float64)
STD = 0.1 + torch.rand(2, LAYOUT.size, generator=G, dtype=torch.float64)
VECTOR = Normals(torch.randn(4, generator=G), 0.5 + torch.rand(4, generator=G))


class Written(Prior):
    """A density of which nothing is known but its logarithm."""

    def __init__(self, inner: Prior) -> None:
        self.inner = inner

    def log_prob(self, value: Tensor) -> Tensor:
        return self.inner.log_prob(value)


def flat(**assigned: Assigned) -> FlatPrior:
    return FlatPrior(LAYOUT, assigned, torch.empty(0, dtype=torch.float64))


def eps(prior: FlatPrior, draws: int) -> list[Tensor]:
    shapes = [(2, draws, span.stop - span.start) for span, _ in prior.others]
    return [torch.randn(shape, generator=G, dtype=torch.float64) for shape in shapes]


def test_normal_priors_are_closed_and_exact():
    prior = flat(a=Normal(0.7), b=VECTOR, c=Normal(2.0, mean=-1.0))
    found = divergence(prior, MEAN, STD, [])
    centre = torch.cat([torch.zeros(6), VECTOR.mean, torch.full((5,), -1.0)]).double()
    scale = torch.cat([torch.full((6,), 0.7).double(), VECTOR.std.double(), torch.full((5,), 2.0).double()])
    exact = kl_divergence(Reference(MEAN, STD), Reference(centre, scale)).sum(1)
    torch.testing.assert_close(found.kl, exact)
    torch.testing.assert_close(found.entropy, Reference(MEAN, STD).entropy().sum(1))


def test_one_normal_prior_is_taken_off_in_place():
    prior = flat(a=Normal(0.7), b=Normal(0.7), c=Normal(0.7))
    exact, slopes = divergence(prior, MEAN, STD, []), torch.randn(2, *MEAN.shape, dtype=MEAN.dtype)
    expected = torch.stack([slopes[0] - 0.3 * exact.by_mean, slopes[1] * STD - 0.3 * exact.by_log_std])
    assert prior.isotropic == pytest.approx(0.7**-2)
    stretches = (row.split([3, MEAN.shape[1] - 3], 1) for row in slopes)
    torch.testing.assert_close(sub_isotropic_(*stretches, 0.3, prior.isotropic, MEAN, STD, STD.log()), exact.kl)
    torch.testing.assert_close(slopes, expected)


@pytest.mark.parametrize("other", [Normal(0.8), Normal(0.7, mean=1.0), Laplace(0.7), Point()], ids=repr)
def test_priors_that_differ_are_not_one(other):
    assert flat(a=Normal(0.7), b=Normal(0.7), c=other).isotropic is None
    assert flat(a=Point(), b=Point(), c=Point()).isotropic is None


def test_draws_agree_with_the_closed_form_within_their_error():
    known = flat(a=Normal(0.7), b=Normal(0.4, mean=0.3), c=Normal(2.0))
    written = flat(a=Written(Normal(0.7)), b=Written(Normal(0.4, mean=0.3)), c=Written(Normal(2.0)))
    exact = divergence(known, MEAN, STD, [])
    draws = 20_000
    found = divergence(written, MEAN, STD, eps(written, draws))
    # the variance of log p under q, summed over independent weights, tells the error of its average
    centred = MEAN - torch.cat([torch.zeros(6), torch.full((4,), 0.3), torch.zeros(5)])
    scale = torch.cat([torch.full((6,), 0.7), torch.full((4,), 0.4), torch.full((5,), 2.0)]).double()
    variance = ((STD.square() / scale.square()).square() / 2 + (STD * centred / scale.square()).square()).sum(1)
    assert bool(((found.kl - exact.kl).abs() < 5 * (variance / draws).sqrt()).all())
    torch.testing.assert_close(found.by_mean, exact.by_mean, rtol=0.1, atol=0.2)
    torch.testing.assert_close(found.by_log_std, exact.by_log_std, rtol=0.1, atol=0.3)


@pytest.mark.parametrize("prior", [ScaleMixture(0.25, 1.0, math.exp(-6)), Laplace(0.5), StudentT(3.0, 0.4)])
def test_other_priors_agree_with_quadrature_within_their_error(prior):
    held = flat(a=prior, b=prior, c=prior)
    draws = 20_000
    found = divergence(held, MEAN, STD, eps(held, draws))
    nodes = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    weight = torch.exp(-0.5 * nodes**2) / math.sqrt(2 * math.pi) * (nodes[1] - nodes[0])
    values = prior.log_prob(MEAN.unsqueeze(-1) + STD.unsqueeze(-1) * nodes)
    exact, second = (values * weight).sum(-1), (values.square() * weight).sum(-1)
    error = ((second - exact.square()).sum(1) / draws).sqrt()
    assert bool(((found.energy + exact.sum(1)).abs() < 5 * error).all())


def test_the_mixture_does_not_underflow_far_out():
    held = flat(a=ScaleMixture(0.25, 1.0, math.exp(-8)))
    mean, std = torch.full((1, LAYOUT.size), 30.0), torch.full((1, LAYOUT.size), 0.1)
    found = divergence(held, mean, std, [torch.zeros(1, 1, 6)])
    assert all(bool(torch.isfinite(part).all()) for part in found)


def settings(case: str):
    prior = flat(a=Normal(0.7), b=VECTOR, c=Written(StudentT(3.0)))
    spans = LAYOUT.spans
    return prior, {
        "plain": {},
        "tempered": {"temperature": 0.3},
        "points": {"points": [spans["b"]]},
        "one scale": {"groups": [[spans["a"], spans["b"]]], "temperature": 2.0},
        "a scale each": {"groups": [[spans["a"]], [spans["b"]]]},
    }[case]


@pytest.mark.parametrize("case", ["plain", "tempered", "points", "one scale", "a scale each"])
def test_gradients_by_finite_differences(case):
    prior, options = settings(case)
    noise, step = eps(prior, 3), 1e-6
    std = STD.clone()
    for span in options.get("points", ()):
        std[:, span] = 0
    found = divergence(prior, MEAN, std, noise, **options)

    def loss(mean: Tensor, std: Tensor) -> Tensor:
        part = divergence(prior, mean, std, noise, **options)
        return part.energy / options.get("temperature", 1.0) - part.entropy

    for i in range(LAYOUT.size):
        nudge = torch.zeros_like(MEAN)
        nudge[:, i] = step
        slope = (loss(MEAN + nudge, std) - loss(MEAN - nudge, std)) / (2 * step)
        torch.testing.assert_close(found.by_mean[:, i], slope, rtol=1e-5, atol=1e-6)
        if bool((std[:, i] > 0).all()):
            slope = (loss(MEAN, std + nudge) - loss(MEAN, std - nudge)) / (2 * step)
            torch.testing.assert_close(found.by_log_std[:, i], slope * std[:, i], rtol=1e-5, atol=1e-6)


def test_points_bring_their_density_and_no_entropy():
    prior, span = flat(a=Normal(0.7), b=Normal(1.5), c=Point()), LAYOUT.spans
    std = STD.clone()
    std[:, span["b"]], std[:, span["c"]] = 0, 0
    found = divergence(prior, MEAN, std, [], points=[span["b"], span["c"]])
    exact = kl_divergence(Reference(MEAN[:, span["a"]], STD[:, span["a"]]), Reference(0.0, 0.7)).sum(1)
    penalty = -Reference(0.0, 1.5).log_prob(MEAN[:, span["b"]]).sum(1)
    torch.testing.assert_close(found.kl, exact + penalty)
    assert not found.by_mean[:, span["c"]].any()
    assert all(bool(torch.isfinite(part).all()) for part in found)


@pytest.mark.parametrize("shared", [True, False])
def test_learned_scales_are_where_the_kl_is_least(shared):
    spans = LAYOUT.spans
    groups = [[spans["a"], spans["c"]]] if shared else [[spans["a"]], [spans["c"]]]
    prior = flat(a=Normal(0.7), b=Normal(1.0), c=Normal(1.9, mean=0.4))
    best = divergence(prior, MEAN, STD, [], groups=groups)
    scales = squared_scales(prior, MEAN, STD, groups).sqrt()
    assert scales.shape == (2, len(groups))
    for member in range(2):

        def kl(*factors: float, member: int = member) -> float:
            one, two = (*factors, *factors)[:2]
            scaled = flat(a=Normal(0.7 * one), b=Normal(1.0), c=Normal(1.9 * two, mean=0.4))
            return float(divergence(scaled, MEAN, STD, []).kl[member])

        at = scales[member].tolist()
        assert kl(*at) == pytest.approx(float(best.kl[member]), rel=1e-12)
        for nudge in (0.99, 1.01):
            assert kl(*(f * nudge for f in at)) > kl(*at) + 1e-4
    zero_mean = flat(a=Normal(3.0))
    found = squared_scales(zero_mean, MEAN, STD, [[spans["a"]]]) * 9
    torch.testing.assert_close(found[:, 0], (MEAN.square() + STD.square())[:, spans["a"]].mean(1))


# -- priors without a scale ------------------------------------------------------------------------------------


def exact_dropout_kl(log_alpha: float) -> float:
    """E log|1 + sqrt(alpha) z| - 1/2 log alpha + (gamma + log 2) / 2, 0 at alpha = inf: midpoints, 6e-5 apart."""
    z = (torch.arange(400_000, dtype=torch.float64) + 0.5) * (24 / 400_000) - 12
    density = (-z.square() / 2).exp() * (24 / 400_000) / math.sqrt(2 * math.pi)
    mean = float(density @ (1 + math.exp(log_alpha / 2) * z).abs().log())
    return mean - log_alpha / 2 + (0.5772156649015329 + math.log(2)) / 2


def test_the_approximate_kl_of_the_log_uniform_prior_is_within_a_hundredth_of_quadrature():
    ratio = torch.linspace(-8, 8, 65, dtype=torch.float64)
    mean = torch.full((65, 1), 0.3, dtype=torch.float64)
    found = dropout_divergence("log-uniform", mean, mean * (ratio / 2).exp().unsqueeze(1), clip=8.001).kl
    exact = torch.tensor([exact_dropout_kl(float(r)) for r in ratio], dtype=torch.float64)
    assert float((found - exact).abs().max()) < 0.01
    assert float(exact[0]) > 4 and abs(float(exact[-1])) < 1e-2


def test_ard_is_the_normal_kl_at_each_weights_best_scale():
    found = dropout_divergence("ard", MEAN, STD, clip=50.0).kl
    best = (MEAN.square() + STD.square()).sqrt()
    torch.testing.assert_close(found, kl_divergence(Reference(MEAN, STD), Reference(0.0, best)).sum(1))


@pytest.mark.parametrize("kind", ["log-uniform", "ard"])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_gradients_of_dropout_divergences(kind, temperature):
    def loss(mean: Tensor, std: Tensor) -> Tensor:
        part = dropout_divergence(kind, mean, std, clip=8.0, temperature=temperature)
        return (part.energy / temperature - part.entropy).sum()

    mean, std = MEAN.clone().requires_grad_(), STD.clone().requires_grad_()
    by_mean, by_std = torch.autograd.grad(loss(mean, std), (mean, std))
    found = dropout_divergence(kind, MEAN, STD, clip=8.0, temperature=temperature)
    torch.testing.assert_close(found.by_mean, by_mean)
    torch.testing.assert_close(found.by_log_std, by_std * std.detach())
    step = 1e-6
    moved = MEAN.clone()
    moved[0, 3] += step
    slope = float(loss(moved, STD) - loss(MEAN, STD)) / step
    assert slope == pytest.approx(float(found.by_mean[0, 3]), rel=1e-3)


def test_what_is_clipped_or_no_part_of_it_has_no_slope():
    mean, std = torch.tensor([[0.0, 1e-9, 0.4]]), torch.tensor([[0.1, 0.1, 0.0]])
    found = dropout_divergence("log-uniform", mean, std, clip=8.0)
    assert not found.by_mean.any() and not found.by_log_std.any() and bool(torch.isfinite(found.kl))
    only = dropout_divergence("log-uniform", mean[:, :2], std[:, :2], clip=8.0)
    torch.testing.assert_close(found.kl, only.kl)


def test_a_narrow_weight_still_feels_the_prior():
    """A trained net starts far below any rate: log alpha = -30 must have the slope -1/2 of -1/2 log alpha."""
    mean, std = torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([[math.exp(-15.0)]], dtype=torch.float64)
    found = dropout_divergence("log-uniform", mean, std, clip=8.0)
    assert float(found.by_log_std) == pytest.approx(-1.0, rel=1e-6)
    assert float(found.by_mean) == pytest.approx(1.0, rel=1e-6)
