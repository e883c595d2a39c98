"""Digits as the studies of distillation use them: MNIST and its splits, letters as what is no digit, the SGLD."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor, nn

import dubito
from dubito import metrics
from dubito.compare import stored_bytes
from dubito.data import DataError, Split
from dubito.distill import Adversarial, Optimiser
from dubito.nn import fcnn1, fcnn2, mlp
from dubito.posteriors.base import Posterior
from dubito.prediction import Prediction, Undefined
from dubito.runtime import Precision
from dubito.studies import images
from dubito.studies.base import Settings, built

RATE, DECAY = 0.05, 1e-3  # of the paper's SGLD and SGD, on the mean loss
GAMES = 8_000  # steps of a generator; the paper's has 100,000
DIRECTIONS = 200  # principal ones of a chain, on which most games are played; those of the paper see every weight
PRECISION: Precision = "tf32"  # of matrix products on a GPU
OUTSIDE = 2_000  # rows of each side in a detection


class Held(NamedTuple):
    """Training, validation and test rows, and rows that are no digits, where there are some."""

    train: Split
    validation: Split
    test: Split
    outside: Tensor | None
    note: str


def load(settings: Settings, low: float = -1.0, high: float = 1.0) -> Held:
    """MNIST with pixels in [low, high], and notMNIST where it is to be had; stand-ins in a quick run."""
    parts = images.digits(settings).scaled(low, high)
    note = "Quick: stand-ins for the images." if settings.quick else ""
    try:
        found = images.others(("notmnist",), 100 if settings.quick else OUTSIDE, settings)
        letters = images.rescaled(next(iter(found.sets.values())).x, low, high)
    except DataError as missing:
        letters, note = None, f"Without letters: {missing}"
    return Held(*parts, letters, note)


def network(name: str, settings: Settings, dropout: float = 0.0) -> nn.Module:
    """fcNN1 or fcNN2; in a quick run a small stand-in."""
    if settings.quick:
        return built(lambda: nn.Sequential(nn.Flatten(), mlp([784, 12, 10], dropout=dropout)), settings)
    factory = {"fcNN1": fcnn1, "fcNN2": fcnn2}[name]
    return built(lambda: factory(dropout=dropout), settings)


def paper_prior(n: int) -> dubito.Normal:
    """The paper's weight decay as a prior: precision N times it."""
    return dubito.Normal(std=1 / math.sqrt(n * DECAY))


def sampler(n: int, steps: int, thin: int, rate: float = RATE) -> dubito.SGLD:
    """The paper's SGLD for n rows: epsilon = rate / n, burn-in 500."""
    return dubito.SGLD(step_size=rate / n, burn_in=min(500, steps // 4), thin=thin)


def falling(rate: float) -> Adversarial:
    """A game on every weight whose rates fall to 0 from `rate`."""
    return Adversarial(optimiser=Optimiser("adam", rate, 0.5, 0.9), schedule="linear")


def along(rate: float, settings: Settings) -> Adversarial:
    """The same on principal coordinates of the chain."""
    return replace(falling(rate), directions=5 if settings.quick else DIRECTIONS)


@dataclass(frozen=True)
class Quality:
    """One posterior on the test digits; None where a number does not exist."""

    bytes: int
    accuracy: float
    nll: float
    ece: float
    variation: float | None  # total variation to the teacher
    entropy_auroc: float | None
    bald_auroc: float | None


def quality(
    posterior: Posterior, digits: Held, draws: int, teacher: Prediction | None = None, seed: int = 0
) -> Quality:
    """Scores on the test rows, and how well doubt tells letters from digits."""
    prediction = posterior.predict(digits.test.x, draws=draws, seed=seed)
    outside = None if digits.outside is None else posterior.predict(digits.outside, draws=draws, seed=seed)
    probs = prediction.probs.cpu()
    return Quality(
        stored_bytes(posterior),
        metrics.accuracy(probs, digits.test.y),
        metrics.nll(probs, digits.test.y),
        metrics.ece(probs, digits.test.y),
        None if teacher is None else metrics.total_variation(probs, teacher.probs.cpu()),
        _auroc(prediction, outside, "entropy"),
        _auroc(prediction, outside, "bald"),
    )


def _auroc(inside: Prediction, outside: Prediction | None, measure: str) -> float | None:
    """Test digits against as many letters; None where the measure does not exist."""
    if outside is None:
        return None
    try:
        known: Tensor = getattr(inside, measure)
        return metrics.auroc(known[:: max(1, len(known) // OUTSIDE)][:OUTSIDE], getattr(outside, measure))
    except Undefined:
        return None


def options(settings: Settings) -> dict[str, Any]:
    """What every distillation of a study is told."""
    return {"seed": settings.seed, "device": settings.device, "progress": settings.progress}


def game(settings: Settings) -> dict[str, Any]:
    """What every adversarial one is told."""
    return {**options(settings), "precision": PRECISION}
