"""What each class of answer must be: measures of a posterior against the known answer, and one table of tolerances."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from dubito import metrics
from dubito.diagnostics import RHAT_LIMIT
from dubito.methods.base import Method
from dubito.posteriors.base import Posterior
from dubito.selfcheck.problems import RATE, Problem, Reference

MASK_DRAWS = 8_000
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
}
MEANINGS = {
    "exact": "moments and predictions of the posterior",
    "mean-field": "its mean, and the variances of the best factorised Gaussian",
    "point": "on a mode",
    "ensemble": "every member on a mode",
    "dropout": "on the mode of the likelihood averaged over all masks; mean and variance over masks",
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
        raise ValueError(f"{method.__name__} gives answers of class {method.answer!r}, which has no tolerances; choose one "
                         f"of {', '.join(TOLERANCES)} or add it to dubito.selfcheck.verdicts")  # fmt: skip
    return TOLERANCES[method.answer]


def measure(method: type[Method[Any]], posterior: Posterior, problem: Problem, reference: Reference) -> Measured:
    """All measures that exist for a method of this class on this problem."""
    found = MEASURES[method.answer](posterior, problem, reference, method.answer)
    if reference.probs is None:
        return found
    probs = posterior.predict(problem.grid, draws=max(len(posterior), MASK_DRAWS)).probs
    return found._replace(
        agreement=metrics.agreement(probs, reference.probs),
        total_variation=metrics.total_variation(probs, reference.probs),
    )


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


def _moments(posterior: Any, problem: Problem, reference: Reference, answer: str) -> Measured:
    """Mean and variance of every weight, and the effective size of the sample where there is a chain."""
    ess = _effective(posterior, problem) if answer == "exact" else None
    known = reference.variance if answer == "exact" else reference.mean_field
    if known is None or reference.mean is None:
        return Measured(ess=ess)
    mean, std = (part.double().cpu() for part in posterior.moments())
    ratio = std.square() / known
    return _biased((mean - reference.mean) / known.sqrt())._replace(
        ratio_low=float(ratio.min()), ratio_high=float(ratio.max()), ess=ess
    )


def _effective(posterior: Posterior, problem: Problem) -> float:
    """The least bulk ESS: of weights where they are identified, of predictions otherwise."""
    if problem.identified:
        return float(posterior.diagnose().weights.ess_bulk.min())
    predictions = posterior.diagnose(problem.grid[::SPARSE]).predictions
    return float("nan") if predictions is None else float(predictions.ess_bulk.min())


def _modes(posterior: Any, problem: Problem, reference: Reference, answer: str) -> Measured:
    """The distance of every member from the mode beside it."""
    thetas = posterior.thetas(len(posterior)).double().cpu()
    return _biased(torch.cat([problem.gap(theta) for theta in thetas]))


def _masks(posterior: Posterior, problem: Problem, reference: Reference, answer: str) -> Measured:
    """The distance from the mode under dropout, and moments over masks against the sum over all of them."""
    theta = parameters_to_vector(posterior.mean_network().parameters()).detach().double().cpu()
    drawn = posterior.predict(problem.grid, draws=MASK_DRAWS)
    mean, std = (part[:, -1].double().cpu() for part in (drawn.mean, drawn.epistemic.sqrt()))
    known, variance = problem.predicted(theta, RATE)
    ratio = std.square() / variance
    bias = torch.cat([problem.gap(theta, RATE), (mean - known) / variance.sqrt()])
    return _biased(bias)._replace(ratio_low=float(ratio.min()), ratio_high=float(ratio.max()))


def _biased(bias: Tensor) -> Measured:
    return Measured(bias=float(bias.abs().max()), bias_rms=float(bias.square().mean().sqrt()))


MEASURES: dict[str, Callable[[Any, Problem, Reference, str], Measured]] = {
    "exact": _moments,
    "mean-field": _moments,
    "point": _modes,
    "ensemble": _modes,
    "dropout": _masks,
}
