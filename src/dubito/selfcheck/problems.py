"""Small models whose answers are known, written out in double precision and apart from the code they check."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dubito.likelihoods import Bernoulli, Gaussian, Likelihood
from dubito.priors import Normal
from dubito.rng import generator, isolated
from dubito.selfcheck.masks import RATE, STILL, Dropping, expected, masks

HIDDEN = 3  # units of the one-hidden-layer net
NODES, REACH = 161, 8.0  # of the quadrature along each axis, and how many standard deviations it reaches
NEWTON_STEPS = 30
HERMITE = 40  # nodes of Gauss-Hermite quadrature

Formula = Callable[[Tensor, Tensor, Tensor], Tensor]  # theta (D,), x (N, d), what each unit is multiplied by -> (N,)


@dataclass(frozen=True, eq=False)
class Problem:
    """A network, its data and the formula it computes; `noise` is the standard deviation of y, None for labels."""

    name: str
    title: str
    net: nn.Module
    dropping: nn.Module  # the network MC dropout gets
    formula: Formula
    units: int  # on which dropout acts
    dropped: slice  # the weights that it drops with them
    x: Tensor
    y: Tensor
    grid: Tensor  # inputs at which predictions are compared
    prior: Normal
    noise: float | None = None
    identified: bool = True  # whether the weights themselves can be compared

    @property
    def likelihood(self) -> Likelihood:
        """What `fit` is given."""
        return Bernoulli() if self.noise is None else Gaussian(std=self.noise)

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(p.numel() for p in self.net.parameters())

    def log_joint(self, theta: Tensor, how: Dropping = STILL) -> Tensor:
        """log p(theta, D) up to a constant, the log-likelihood averaged over all dropout masks."""
        outputs, weight = self.outputs(theta, self.x, how)
        y = self.y.double()
        if self.noise is None:
            log_lik = F.logsigmoid((2 * y - 1) * outputs)
        else:
            log_lik = -0.5 * ((y - outputs) / self.noise).square()
        log_prior = -0.5 * (theta / self.prior.std).square().sum()
        return expected(log_lik, weight, how).sum() + log_prior

    def outputs(self, theta: Tensor, x: Tensor, how: Dropping = STILL) -> tuple[Tensor, Tensor]:
        """The outputs (masks, N) under every mask, and the masks' probabilities."""
        keep, weight = masks(self.units, how)
        rows: Tensor = torch.vmap(lambda k: self.formula(theta, x.double(), k))(keep)
        return rows, weight

    def predicted(self, theta: Tensor, rate: float | Tensor = 0.0) -> tuple[Tensor, Tensor]:
        """Mean and variance over masks, (grid,) each, of the predicted mean or of the probability of label 1."""
        outputs, weight = self.outputs(theta, self.grid, Dropping(rate))
        values = outputs.sigmoid() if self.noise is None else outputs
        mean = weight @ values
        return mean, weight @ (values - mean).square()

    def slope(self, theta: Tensor, how: Dropping = STILL) -> Tensor:
        """The gradient of `log_joint`, (D,)."""
        gradient: Tensor = torch.func.grad(self.log_joint)(theta, how)
        return gradient

    def curvature(self, theta: Tensor, how: Dropping = STILL) -> Tensor:
        """Minus the Hessian of `log_joint`, (D, D)."""
        hessian: Tensor = torch.func.jacrev(self.slope)(theta, how)
        return -hessian

    def newton(self, theta: Tensor, how: Dropping = STILL) -> Tensor:
        """The step from theta to the mode of the quadratic fitted there, (D,)."""
        step: Tensor = torch.linalg.solve(self.curvature(theta, how), self.slope(theta, how))
        return step

    def gap(self, theta: Tensor, how: Dropping = STILL) -> Tensor:
        """How far theta (D,) lies from the mode nearby, in standard deviations there; infinite at a saddle."""
        curvature = self.curvature(theta, how)
        if float(torch.linalg.eigvalsh(curvature)[0]) <= 0:
            return torch.full_like(theta, torch.inf)
        scale: Tensor = torch.linalg.inv(curvature).diagonal().sqrt()
        return self.newton(theta, how).abs() / scale

    def mode(self, how: Dropping = STILL) -> Tensor:
        """The mode of a log-concave problem, by Newton's method from zero."""
        theta = torch.zeros(self.size, dtype=torch.float64)
        for _ in range(NEWTON_STEPS):
            theta = theta + self.newton(theta, how)
        return theta

    def expected_fit(self, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y) of a linear model whose slopes have these means and variances, (d,) of them random.

        Outputs are normal, N(x mean, x^2 variance): closed for real y, and one integral for labels.
        """
        centre = self.formula(mean, self.x.double(), torch.ones(self.units))
        spread, y = self.x.double().square() @ variance, self.y.double()
        if self.noise is not None:
            return -0.5 * ((y - centre).square() + spread).sum() / self.noise**2
        nodes, weight = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(HERMITE))
        logits = centre + spread.sqrt() * nodes.unsqueeze(1)
        return (weight @ F.logsigmoid((2 * y - 1) * logits)).sum() / weight.sum()

    def sparse_bound(self, mean: Tensor, log_var: Tensor) -> Tensor:
        """Minus the bound under the log-uniform prior over the slopes of a linear model."""
        slopes, others = mean[: self.units], mean[self.units :]
        kl = dropout_kl(log_var - slopes.square().log()).sum()
        return kl - self.expected_fit(mean, log_var.exp()) + 0.5 * (others / self.prior.std).square().sum()

    def dropout_bound(self, mean: Tensor, log_alpha: Tensor) -> Tensor:
        """The same with one alpha, a scalar, for all slopes."""
        return self.sparse_bound(mean, log_alpha + mean[: self.units].square().log())

    def noisy_bound(self, mean: Tensor, alpha: float) -> Tensor:
        """Minus the expected log joint of means under their normal prior, alpha given."""
        variance = alpha * mean[: self.units].square()
        return 0.5 * (mean / self.prior.std).square().sum() - self.expected_fit(mean, variance)

    def sparse_optimum(self, mean: Tensor, std: Tensor, threshold: float) -> "Spread":
        """The optimum of `sparse_bound` nearest to a start; slopes whose log alpha ends above the threshold are 0."""
        d = self.units
        centre, log_var = descended(self.sparse_bound, mean, 2 * std[:d].log())
        gone = log_var - centre[:d].square().log() > threshold
        spread = torch.zeros_like(mean)
        spread[:d] = (log_var / 2).exp().masked_fill(gone, 0.0)
        centre[:d] = centre[:d].masked_fill(gone, 0.0)
        return Spread(centre, spread)

    def masked_bound(self, theta: Tensor, logit: Tensor, relaxation: float = 0.0) -> Tensor:
        """Minus the bound of dropout whose rate is learned: with the expected prior of weights m z / (1 - p)."""
        p = logit.sigmoid()
        entropy = -p * p.log() - (1 - p) * (1 - p).log()
        wider = 0.5 * (p / (1 - p)) * (theta[self.dropped] / self.prior.std).square().sum()
        return wider - self.log_joint(theta, Dropping(p, relaxation=relaxation)) - self.units * entropy

    def masked_optimum(self, theta: Tensor, rate: Tensor, relaxation: float) -> tuple[Tensor, Tensor]:
        """The optimum of `masked_bound` nearest to a start: weights and rate."""
        bound = partial(self.masked_bound, relaxation=relaxation)
        centre, logit = descended(bound, theta, rate.logit())
        return centre, logit.sigmoid()

    def dropout_optimum(self, mean: Tensor, std: Tensor, learned: bool) -> "Spread":
        """The optimum of `dropout_bound`, or of `noisy_bound` at the alpha given, nearest to a start."""
        d = self.units
        ratio = 2 * (std[:d] / mean[:d].abs()).log().mean()
        if learned:
            centre, ratio = descended(self.dropout_bound, mean, ratio)
        else:
            alpha = float(ratio.exp())
            (centre,) = descended(lambda theta: self.noisy_bound(theta, alpha), mean)
        spread = torch.zeros_like(mean)
        spread[:d] = centre[:d].abs() * (ratio / 2).exp()
        return Spread(centre, spread)


class Spread(NamedTuple):
    """Means and standard deviations, (D,) each."""

    mean: Tensor
    std: Tensor


class Reference(NamedTuple):
    """The known answer: the extreme curvatures, moments of the weights where they mean something, and predictions."""

    low: float
    high: float
    mean: Tensor | None = None
    variance: Tensor | None = None
    mean_field: Tensor | None = None  # the variances of the best factorised Gaussian
    probs: Tensor | None = None  # (grid, 2)
    doubt: str = ""  # why it is not to be trusted


def dropout_kl(log_alpha: Tensor) -> Tensor:
    """KL from the log-uniform prior, as Molchanov et al. (2017) approximate it."""
    return 0.63576 * torch.sigmoid(-1.87320 - 1.48695 * log_alpha) + 0.5 * F.softplus(-log_alpha)


def descended(bound: Callable[..., Tensor], *start: Tensor) -> list[Tensor]:
    """The minimum of a smooth function nearest to a start."""
    leaves = [part.clone().requires_grad_() for part in start]
    optimiser = torch.optim.LBFGS(leaves, max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimiser.zero_grad()
        loss = bound(*leaves)
        loss.backward()
        return float(loss.detach())

    optimiser.step(closure)
    return [leaf.detach() for leaf in leaves]


def linear(bias: bool, correlation: float = 0.5) -> Problem:
    """y = x w (+ b) + noise under a normal prior: the posterior is normal in closed form."""
    d, n, noise = 2, 20, 1.0
    source = generator("cpu", "selfcheck", "linear")
    x = _correlated(n, d, correlation, source)
    theta = torch.tensor([0.6, -0.4, 0.5][: d + bias], dtype=torch.float64)
    y = _linear_formula(theta, x.double(), torch.ones(d, dtype=torch.float64)) + noise * _normal((n,), source)
    net = _seeded(lambda: nn.Linear(d, 1, bias=bias))
    return Problem(
        name="linear" if not bias else "linear-bias",
        title=f"Linear-Gaussian model, {d + bias} weights{' with bias' if bias else ''}: closed form",
        net=net,
        dropping=nn.Sequential(nn.Dropout(RATE), net),
        formula=_linear_formula,
        units=d,
        dropped=slice(0, d),
        x=x,
        y=y.float(),
        grid=_correlated(50, d, correlation, source),
        prior=Normal(std=0.5),
        noise=noise,
    )


def logistic() -> Problem:
    """Two weights and labels: the posterior by quadrature."""
    n, source = 40, generator("cpu", "selfcheck", "logistic")
    x = _correlated(n, 2, 0.0, source)
    logits = _linear_formula(
        torch.tensor([1.5, -1.0], dtype=torch.float64), x.double(), torch.ones(2, dtype=torch.float64)
    )
    net = _seeded(lambda: nn.Linear(2, 1, bias=False))
    return Problem(
        name="logistic",
        title="Logistic regression, 2 weights: quadrature",
        net=net,
        dropping=nn.Sequential(nn.Dropout(RATE), net),
        formula=_linear_formula,
        units=2,
        dropped=slice(0, 2),
        x=x,
        y=_labels(logits, source),
        grid=_square(),
        prior=Normal(std=1.0),
    )


def tiny_net() -> Problem:
    """One hidden layer: no closed form, several equivalent modes, compared in the space of predictions."""
    n, source = 24, generator("cpu", "selfcheck", "net")
    x = _normal((n, 2), source).float()
    logits = (4 * x[:, 0] - 2 * x[:, 1]).double()
    net = _seeded(lambda: nn.Sequential(nn.Linear(2, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)))
    return Problem(
        name="net",
        title=f"One-hidden-layer net 2-{HIDDEN}-1, {sum(p.numel() for p in net.parameters())} weights: long HMC run",
        net=net,
        dropping=net,
        formula=_net_formula,
        units=HIDDEN,
        dropped=slice(3 * HIDDEN, 4 * HIDDEN),
        x=x,
        y=_labels(logits, source),
        grid=_square(),
        prior=Normal(std=0.7),
        identified=False,
    )


def closed_form(problem: Problem) -> Reference:
    """The posterior N(mean, precision^-1) of a linear-Gaussian model: precision = A'A / noise^2 + I / prior^2."""
    noise = problem.noise or 1.0
    inputs = problem.x.double()
    design = inputs if problem.size == inputs.shape[1] else torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
    precision = design.T @ design / noise**2 + torch.eye(problem.size, dtype=torch.float64) / problem.prior.std**2
    mean = torch.linalg.solve(precision, design.T @ problem.y.double() / noise**2)
    low, high = _extremes(precision)
    variance = torch.linalg.inv(precision).diagonal()
    return Reference(low, high, mean, variance, mean_field=precision.diagonal().reciprocal())


def quadrature(problem: Problem) -> Reference:
    """Posterior moments and predictions of a two-weight model on a grid of weights around its mode."""
    mode, curvature = problem.mode(), problem.curvature(problem.mode())
    scale = torch.linalg.inv(curvature).diagonal().sqrt()
    steps = torch.linspace(-REACH, REACH, NODES, dtype=torch.float64)
    nodes = mode + torch.cartesian_prod(steps, steps) * scale
    weight = torch.vmap(problem.log_joint, chunk_size=4096)(nodes).softmax(0)
    mean = weight @ nodes
    variance = weight @ (nodes - mean).square()
    probs = sum(
        w @ torch.vmap(lambda t: problem.predicted(t)[0])(part)
        for w, part in zip(weight.split(4096), nodes.split(4096), strict=True)
    )
    return Reference(*_extremes(curvature), mean, variance, probs=two_sided(torch.as_tensor(probs)))


def steepness(problem: Problem, thetas: Tensor) -> float:
    """The largest curvature at weight vectors (S, D), averaged over them."""
    curvatures = torch.stack([problem.curvature(theta.double()) for theta in thetas])
    return float(torch.linalg.eigvalsh(curvatures)[:, -1].mean())


def two_sided(probability: Tensor) -> Tensor:
    """P(label 1) as (N, 2)."""
    return torch.stack([1 - probability, probability], 1)


def _extremes(curvature: Tensor) -> tuple[float, float]:
    values = torch.linalg.eigvalsh(curvature)
    return float(values[0]), float(values[-1])


def _linear_formula(theta: Tensor, x: Tensor, keep: Tensor) -> Tensor:
    d = x.shape[-1]
    return (x * keep) @ theta[:d] + theta[d:].sum()


def _net_formula(theta: Tensor, x: Tensor, keep: Tensor) -> Tensor:
    inner, bias, outer, offset = theta.split([2 * HIDDEN, HIDDEN, HIDDEN, 1])
    hidden = torch.tanh(x @ inner.view(HIDDEN, 2).T + bias)
    outputs: Tensor = (hidden * keep) @ outer + offset
    return outputs


def _seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """A network with the same weights every time."""
    with isolated("selfcheck"):
        return build()


def _normal(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=source, dtype=torch.float64)


def _correlated(n: int, d: int, correlation: float, source: torch.Generator) -> Tensor:
    """n inputs whose sample mean, variance and correlation are exactly 0, 1 and as given."""
    raw = _normal((n, d), source)
    axes: Tensor = torch.linalg.qr(raw - raw.mean(0))[0] * math.sqrt(n)
    mixing: Tensor = torch.linalg.cholesky(torch.full((d, d), correlation, dtype=torch.float64).fill_diagonal_(1.0))
    return (axes @ mixing.T).float()


def _labels(logits: Tensor, source: torch.Generator) -> Tensor:
    return (torch.rand(logits.shape, generator=source, dtype=torch.float64) < logits.sigmoid()).long()


def _square() -> Tensor:
    """Inputs on a lattice over [-3, 3]^2, the origin left out because a model without bias has nothing to say there."""
    axis = torch.linspace(-3, 3, 16)
    return torch.cartesian_prod(axis, axis)
