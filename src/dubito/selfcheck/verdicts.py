"""What each class of answer must be: measures of a posterior against the known answer, and one table of tolerances."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from dubito import metrics
from dubito.diagnostics import RHAT_LIMIT
from dubito.methods.base import Method
from dubito.posteriors.base import Posterior
from dubito.prediction import Prediction
from dubito.selfcheck.masks import RATE, Dropping
from dubito.selfcheck.problems import Problem, Reference, Spread

MASK_DRAWS = 20_000
FACTORISED_DRAWS = 4_000
SPARSE = 16  # one input in so many has the ESS of its prediction measured


@dataclass(frozen=True)
class Tolerance:
    """The limits of one class of answer; None where the class has nothing to be judged by."""

    bias: float = 0.1  # of the mean, or distance from the mode, in posterior standard deviations
    ratio: tuple[float, float] | None = None  # of variances, found to known
    ess: float | None = None
    agreement: float | None = None  # share of inputs with the same decision
    total_variation: float | None = None  # of predictions


TOLERANCES = {
    "exact": Tolerance(ratio=(0.85, 1.15), ess=1_000, agreement=0.95, total_variation=0.02),
    "mean-field": Tolerance(ratio=(0.85, 1.15)),
    "point": Tolerance(),
    "ensemble": Tolerance(),
    "dropout": Tolerance(ratio=(0.85, 1.15)),
    "sparse": Tolerance(ratio=(0.85, 1.15)),
    "multiplicative": Tolerance(ratio=(0.85, 1.15)),
}
MEANINGS = {
    "exact": "moments and predictions of the posterior",
    "mean-field": "its mean, and the variances of the best factorised Gaussian",
    "point": "on a mode",
    "ensemble": "every member on a mode",
    "dropout": "on the mode of the likelihood averaged over all masks, and of a learned rate; moments over masks",
    "sparse": "on an optimum of the bound under the log-uniform prior: its zeros, and means and variances of the rest",
    "multiplicative": "on an optimum of the bound whose variances are alpha times squared means",
}


class Measured(NamedTuple):
    """What was found; None where a measure does not exist."""

    bias: float | None = None
    bias_rms: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    ess: float | None = None
    agreement: float | None = None
    total_variation: float | None = None


def tolerance(method: type[Method[Any]]) -> Tolerance:
    """The limits a method is judged by."""
    if method.answer not in TOLERANCES:
        raise ValueError(
            f"{method.__name__} gives answers of class {method.answer!r}, which has no tolerances; use one of "
            f"{', '.join(TOLERANCES)}, or add it to dubito.selfcheck.verdicts"
        )
    return TOLERANCES[method.answer]


def measure(method: type[Method[Any]], posterior: Posterior, problem: Problem, reference: Reference) -> Measured:
    """All measures that exist for a method of this class on this problem."""
    tolerance(method)
    return MEASURES[method.answer](posterior, problem, reference)


def failures(found: Measured, limits: Tolerance) -> tuple[str, ...]:
    """What lies outside the limits; a measure that is not a number does."""
    return tuple(_failures(found, limits))


def converged(posterior: Posterior, problem: Problem) -> bool:
    """Whether chains agree on predictions well enough to judge others by them."""
    found = posterior.diagnose(problem.grid[::SPARSE]).predictions
    least = TOLERANCES["exact"].ess or 0
    return found is not None and bool(found.rhat.max() <= RHAT_LIMIT and found.ess_bulk.min() >= least)


def _failures(found: Measured, limits: Tolerance) -> Iterator[str]:
    if found.bias is not None and not found.bias <= limits.bias:
        yield "bias"
    if limits.ratio is not None and found.ratio_low is not None and found.ratio_high is not None:
        low, high = limits.ratio
        if not (low <= found.ratio_low and found.ratio_high <= high):
            yield "variance"
    if limits.ess is not None and found.ess is not None and not found.ess >= limits.ess:
        yield "ESS"
    if limits.agreement is not None and found.agreement is not None and not found.agreement >= limits.agreement:
        yield "agreement"
    variation = found.total_variation
    if limits.total_variation is not None and variation is not None and not variation <= limits.total_variation:
        yield "total variation"


def _sampled(posterior: Any, problem: Problem, reference: Reference) -> Measured:
    """Moments of the weights against the posterior's, the effective size of the sample, and predictions."""
    found = _moments(posterior, reference.mean, reference.variance)._replace(ess=_effective(posterior, problem))
    return _compared(found, lambda: posterior.predict(problem.grid, draws=len(posterior)), reference)


def _factorised(posterior: Any, problem: Problem, reference: Reference) -> Measured:
    """Moments of the weights against those of the best factorised Gaussian, and predictions."""
    found = _moments(posterior, reference.mean, reference.mean_field)
    return _compared(found, lambda: posterior.predict(problem.grid, draws=FACTORISED_DRAWS), reference)


def _modes(posterior: Any, problem: Problem, reference: Reference) -> Measured:
    """The distance of every member from the mode beside it, and predictions."""
    thetas = posterior.thetas(len(posterior)).double().cpu()
    found = _biased(torch.cat([problem.gap(theta) for theta in thetas]))
    return _compared(found, lambda: posterior.predict(problem.grid, draws=len(posterior)), reference)


def _masks(posterior: Any, problem: Problem, reference: Reference) -> Measured:
    """The distance from the mode under dropout, and moments over masks against the sum over all of them."""
    theta = parameters_to_vector(posterior.mean_network().parameters()).detach().double().cpu()
    drawn = posterior.predict(problem.grid, draws=MASK_DRAWS)
    mean, variance = (part[:, -1].double().cpu() for part in (drawn.mean, drawn.epistemic))
    rate = torch.tensor(RATE) if posterior.rates is None else posterior.rates[0, 0]
    known, spread = problem.predicted(theta, rate)
    gap, odds = _masked_gap(theta, rate.double(), posterior.about["method"], problem)
    ratio = torch.cat([variance / spread, odds])
    found = _biased(torch.cat([gap, (mean - known) / spread.sqrt()]))
    found = found._replace(ratio_low=float(ratio.min()), ratio_high=float(ratio.max()))
    return _compared(found, lambda: drawn, reference)


def _masked_gap(theta: Tensor, rate: Tensor, made: Mapping[str, Any], problem: Problem) -> tuple[Tensor, Tensor]:
    """How far theta lies from the mode, in standard deviations there; a mask's variance p / (1 - p), found to known.

    Where the rate is learned, the mode is that of the bound, with masks relaxed as they were in training.
    """
    if "relaxation" not in made:
        return problem.gap(theta, Dropping(rate, made.get("alpha", 0.0), made.get("draws", 1))), torch.ones(1)
    centre, best = problem.masked_optimum(theta, rate, made["relaxation"])
    curvature = problem.curvature(centre, Dropping(best, relaxation=made["relaxation"]))
    scale: Tensor = torch.linalg.inv(curvature).diagonal().sqrt()
    return (theta - centre).abs() / scale, (rate / (1 - rate) / (best / (1 - best))).view(1)


def _sparse(posterior: Any, problem: Problem, reference: Reference) -> Measured:
    """Zeros, means and variances against those of the exact bound's optimum beside them, and predictions."""
    found = Measured()
    if problem.identified:
        mean, std = (part.double().cpu() for part in (posterior.mean[0], posterior.std[0]))
        found = _optimal(posterior, problem.sparse_optimum(mean, std, posterior.threshold), reference)
    return _compared(found, lambda: posterior.predict(problem.grid, draws=FACTORISED_DRAWS), reference)


def _multiplied(posterior: Any, problem: Problem, reference: Reference) -> Measured:
    """Means and variances against those of the exact bound's optimum beside them, and predictions."""
    found = Measured()
    if problem.identified:
        mean, std = (part.double().cpu() for part in (posterior.mean[0], posterior.std[0]))
        learned = "per" in posterior.about["method"]
        found = _optimal(posterior, problem.dropout_optimum(mean, std, learned), reference)
    return _compared(found, lambda: posterior.predict(problem.grid, draws=FACTORISED_DRAWS), reference)


def _optimal(posterior: Any, known: Spread, reference: Reference) -> Measured:
    """Means and variances, where the same weights are random."""
    at, spread = (part.double().cpu() for part in posterior.moments())
    same = bool(((spread > 0) == (known.std > 0)).all())
    ratio = (spread / known.std).square()[known.std > 0]
    scale = torch.as_tensor(reference.variance).sqrt()
    found = _biased((at - known.mean) / scale if same else torch.full_like(at, torch.inf))
    return found._replace(ratio_low=float(ratio.min()), ratio_high=float(ratio.max()))


def _moments(posterior: Any, mean: Tensor | None, variance: Tensor | None) -> Measured:
    """Mean and variance of every weight, where they are known."""
    if mean is None or variance is None:
        return Measured()
    at, std = (part.double().cpu() for part in posterior.moments())
    ratio = std.square() / variance
    return _biased((at - mean) / variance.sqrt())._replace(ratio_low=float(ratio.min()), ratio_high=float(ratio.max()))


def _biased(bias: Tensor) -> Measured:
    return Measured(bias=float(bias.abs().max()), bias_rms=float(bias.square().mean().sqrt()))


def _effective(posterior: Posterior, problem: Problem) -> float:
    """The least bulk ESS: of weights where they are identified, of predictions otherwise."""
    found = posterior.diagnose(None if problem.identified else problem.grid[::SPARSE])
    return float((found.predictions or found.weights).ess_bulk.min())


def _compared(found: Measured, predict: Callable[[], Prediction], reference: Reference) -> Measured:
    """With agreement and total variation, where there are classes."""
    if reference.probs is None:
        return found
    probs = predict().probs
    return found._replace(
        agreement=metrics.agreement(probs, reference.probs),
        total_variation=metrics.total_variation(probs, reference.probs),
    )


MEASURES: dict[str, Callable[[Any, Problem, Reference], Measured]] = {
    "exact": _sampled,
    "mean-field": _factorised,
    "point": _modes,
    "ensemble": _modes,
    "dropout": _masks,
    "sparse": _sparse,
    "multiplicative": _multiplied,
}
