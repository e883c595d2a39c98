"""The log-posterior and its gradient against plain autograd, finite differences and arithmetic by hand."""

import math

import pytest
import torch
from torch import Tensor, nn

import dubito
from dubito import priors, runtime
from dubito.likelihoods import Likelihood
from dubito.net import Net
from dubito.rng import Rng
from dubito.target import Batch, Target, fixed_names, point_names

ROWS, N = 6, 40


class Tukey(Likelihood):
    """A user's own likelihood: log_prob alone."""

    def log_prob(self, outputs, y):
        return -torch.log1p((outputs.squeeze(-1) - y).square())


class Horseshoeish(dubito.Prior):
    """A user's own prior: log_prob alone."""

    def log_prob(self, value):
        return -torch.log1p(value.square() * 3)


def real(*shape: int) -> Tensor:
    return torch.randn(ROWS, *shape, dtype=torch.float64)


LIKELIHOODS: dict[str, tuple[Likelihood, int, object]] = {
    "categorical": (dubito.Categorical(), 3, lambda: torch.tensor([0, 1, 2, 2, 1, 0])),
    "ignored labels": (dubito.Categorical(ignore_index=-1), 3, lambda: torch.tensor([0, -1, 2, -1, 1, 0])),
    "bernoulli": (dubito.Bernoulli(), 1, lambda: torch.tensor([0, 1, 1, 0, 0, 1])),
    "known noise": (dubito.Gaussian(0.7), 2, lambda: real(2)),
    "learned noise": (dubito.Gaussian.learned(0.5), 1, lambda: real()),
    "heteroscedastic": (dubito.Gaussian.heteroscedastic(), 4, lambda: real(2)),
    "counts": (dubito.Poisson(), 1, lambda: torch.tensor([0, 3, 1, 0, 2, 5])),
    "own": (Tukey(), 1, lambda: real()),
}
PRIORS = {
    "default": None,
    "normal": dubito.Normal(0.3),
    "normal off centre": dubito.Normal(0.3, mean=0.2),
    "mixture": dubito.ScaleMixture(0.4, 1.0, 0.1),
    "laplace": dubito.Laplace(0.6),
    "student": dubito.StudentT(3.0, 0.4),
    "own": Horseshoeish(),
    "by name": {"0.*": dubito.Laplace(0.6), "*.bias": dubito.Normal(0.2), "*": dubito.StudentT(4.0)},
    "point and fixed": {"0.bias": dubito.Fixed(), "2.bias": dubito.Point(), nn.Linear: dubito.Normal(0.5)},
}


def module(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def target(likelihood: Likelihood, outputs: int, prior: object = None, temperature: float = 1.0) -> Target:
    net = module(outputs)
    assigned = priors.assign(prior, net)
    return Target(Net(net, fixed_names(assigned)), likelihood, assigned, N, temperature)


def by_hand(goal: Target, theta: Tensor, batch: Batch, weight: Tensor | None) -> Tensor:
    """The log-posterior of one vector on a plain module, without anything of the library's calling machinery."""
    named = goal.layout.split(theta)
    noise = {n.removeprefix("likelihood."): v for n, v in named.items() if n.startswith("likelihood.")}
    net = {n: v for n, v in named.items() if not n.startswith("likelihood.")}
    outputs = torch.func.functional_call(goal.net.module, net, (batch.x,))
    each = goal.likelihood.bind(noise).log_prob(outputs, batch.y)
    fit = (each if weight is None else each * weight).sum() * N / ROWS
    densities = [p.log_prob(net[n]).sum() for n, p in goal.prior.items() if isinstance(p, priors.Prior)]
    densities += [p.log_prob(noise[n]).sum() for n, p in goal.likelihood.parameter_priors().items()]
    return (fit + sum(densities, torch.zeros(()))) / goal.temperature


def check_gradient(goal: Target, y: Tensor, weight: Tensor | None = None, members: int = 2) -> None:
    torch.manual_seed(1)
    batch = Batch(real(3), y, torch.arange(ROWS), weight)
    theta = goal.start(goal.net.theta() + 0.1 * torch.randn(members, goal.net.layout.size, dtype=torch.float64))
    parts, grad = goal.value_and_grad(theta, batch)
    for s in range(members):
        w = weight if weight is None or weight.dim() == 1 else weight[s]
        leaf = theta[s].clone().requires_grad_()
        value = by_hand(goal, leaf, batch, w)
        (slope,) = torch.autograd.grad(value, leaf)
        torch.testing.assert_close(grad[s], slope, rtol=1e-10, atol=1e-10)
        found = (N * parts.log_lik[s] + parts.log_prior[s]) / goal.temperature
        torch.testing.assert_close(found, value.detach(), rtol=1e-10, atol=1e-10)
        check_differences(goal, theta[s], batch, w, grad[s])


def check_differences(goal: Target, theta: Tensor, batch: Batch, weight: Tensor | None, grad: Tensor) -> None:
    """Central differences along a few coordinates."""
    for i in range(0, len(theta), 5):
        step = torch.zeros_like(theta)
        step[i] = 1e-5
        up, down = (by_hand(goal, theta + sign * step, batch, weight) for sign in (1, -1))
        assert float((up - down) / 2e-5) == pytest.approx(float(grad[i]), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_gradient_for_every_likelihood(name):
    likelihood, outputs, y = LIKELIHOODS[name]
    check_gradient(target(likelihood, outputs), y())


@pytest.mark.parametrize("name", PRIORS)
def test_gradient_for_every_prior(name):
    check_gradient(target(dubito.Categorical(), 3, PRIORS[name]), torch.tensor([0, 1, 2, 2, 1, 0]))


@pytest.mark.parametrize("weight", ["rows", "members and rows"])
def test_gradient_with_weights(weight):
    w = torch.rand(ROWS, dtype=torch.float64) if weight == "rows" else torch.rand(2, ROWS, dtype=torch.float64)
    check_gradient(target(dubito.Gaussian.learned(), 1), real(), w)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
def test_temperature_divides_the_whole_log_posterior(temperature):
    check_gradient(target(dubito.Gaussian.learned(), 1, temperature=temperature), real())


@pytest.mark.parametrize("members", [1, 4])
@pytest.mark.parametrize("vectorise", [True, False])
def test_gradient_is_the_same_with_any_number_of_members_and_either_way(members, vectorise, monkeypatch):
    monkeypatch.setattr(runtime, "pays_to_vectorise", lambda *a: vectorise)
    check_gradient(target(dubito.Categorical(), 3), torch.tensor([0, 1, 2, 2, 1, 0]), members=members)


def test_point_parameters_have_no_prior_and_fixed_ones_no_place():
    net = module(3)
    assigned = priors.assign(PRIORS["point and fixed"], net)
    assert fixed_names(assigned) == ["0.bias"] and point_names(assigned) == ["2.bias"]
    goal = target(dubito.Categorical(), 3, PRIORS["point and fixed"])
    assert "0.bias" not in goal.layout.names
    theta = goal.start(goal.net.theta().unsqueeze(0))
    _, grad = goal.flat_prior.value_and_grad(theta)
    assert not grad[0, goal.layout.spans["2.bias"]].any()
    assert grad[0, goal.layout.spans["2.weight"]].any()


def test_normal_log_prior_is_normalised_in_double_precision():
    goal = target(dubito.Categorical(), 3, dubito.Normal(0.3, mean=0.1))
    theta = torch.full((1, goal.layout.size), 0.25, dtype=torch.float64)
    each = -0.5 * (0.15 / 0.3) ** 2 - math.log(0.3) - 0.5 * math.log(2 * math.pi)
    assert float(goal.log_prior(theta)) == pytest.approx(goal.layout.size * each, rel=1e-13)


def test_one_row_in_many_batches_has_the_gradient_of_all_data_on_average():
    goal = target(dubito.Gaussian(0.5), 1)
    x, y = torch.randn(N, 3, dtype=torch.float64), torch.randn(N, dtype=torch.float64)
    theta = goal.net.theta().unsqueeze(0)
    everything = goal.value_and_grad(theta, Batch(x, y, torch.arange(N)))[1]
    batches = [Batch(x[i : i + 5], y[i : i + 5], torch.arange(5)) for i in range(0, N, 5)]
    mean = torch.stack([goal.value_and_grad(theta, b)[1] for b in batches]).mean(0)
    torch.testing.assert_close(mean, everything)


def test_dropout_masks_of_a_step_depend_on_the_step_alone():
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    goal = Target(Net(net), dubito.Categorical(), priors.assign(None, net), N)
    batch = Batch(real(3), torch.tensor([0, 1, 2, 2, 1, 0]), torch.arange(ROWS))
    theta = goal.net.theta().expand(2, -1)
    grads = [goal.value_and_grad(theta, batch, mode="train", rng=Rng(0, s))[1] for s in (0, 0, 1)]
    assert torch.equal(grads[0], grads[1])
    assert not torch.equal(grads[0], grads[2])
    assert not torch.equal(grads[0][0], grads[0][1])


def test_impossible_settings_are_refused():
    net = module(3)
    assigned = priors.assign(None, net)
    with pytest.raises(ValueError, match="n_data must be at least 1, got 0"):
        Target(Net(net), dubito.Categorical(), assigned, 0)
    with pytest.raises(ValueError, match=r"temperature must be positive, got 0.0; 1 is the Bayesian posterior"):
        Target(Net(net), dubito.Categorical(), assigned, 5, 0.0)
