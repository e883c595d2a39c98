"""What a study is, and what studies share."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from dubito.config import to_dict
from dubito.data import DataError, DataSet, load
from dubito.diagnostics import summarise
from dubito.fit import fit
from dubito.likelihoods import Likelihood
from dubito.methods.base import Method
from dubito.plots import Series
from dubito.posteriors.base import Posterior
from dubito.priors import PriorSpec
from dubito.results import Result, Table, published_beside_measured
from dubito.rng import isolated
from dubito.runtime import Precision, alone


def slug(name: str) -> str:
    """A name as that of a file."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """How a study is run: `quick` asks for the smallest version that still runs every line."""

    quick: bool = False
    device: str = "auto"
    seed: int = 0
    progress: bool = True
    work: Path | None = None
    """Where long fits keep themselves, so that a study that was stopped goes on; None keeps nothing."""
    workers: int = 1
    """Processes for the pieces of a study that has some."""

    def folder(self, name: str) -> Path | None:
        """The folder of one long fit."""
        return None if self.work is None else self.work / slug(name)

    def beside(self, study: str) -> "Settings":
        """The same with the folders of another study, whose fits are taken where they are there and else made."""
        return replace(self, work=None if self.work is None else self.work.parent / f"{study}-{self.seed}")


@dataclass(frozen=True)
class Study:
    """A published experiment, or a measurement of our own, that can be run again."""

    name: str
    """As typed on the command line, with dashes; also the name of its result."""
    title: str
    source: str
    """Whose experiment it is; ends the summary."""
    shows: str
    """What it shows, in one sentence for the list of studies."""
    run: Callable[[Settings], Result]
    why: str = ""
    """Why we think measured figures differ from published ones, where they do."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A method, the network it is given and how long it runs."""

    method: Method[Any]
    net: nn.Module
    steps: int
    members: int | None = None
    batch_size: int | None = None
    precision: Precision = "float32"

    def fit(
        self,
        data: Any,
        settings: Settings,
        likelihood: Likelihood | None = None,
        prior: PriorSpec | None = None,
        validation: Any = None,
        folder: Path | None = None,
    ) -> Posterior:
        """Carry it out; in a folder once for all processes that ask for it."""
        with alone(folder):
            return fit(
                self.net,
                data,
                self.method,
                likelihood=likelihood,
                prior=prior,
                steps=self.steps,
                members=self.members,
                batch_size=self.batch_size,
                validation=validation,
                seed=settings.seed,
                device=settings.device,
                folder=folder,
                precision=self.precision,
                progress=settings.progress,
            )

    def describe(self) -> dict[str, Any]:
        """As plain values, for the settings of a result."""
        weights = sum(p.numel() for p in self.net.parameters())
        shown = {"steps": self.steps, "members": self.members, "batch_size": self.batch_size, "weights": weights}
        return {**to_dict(self.method), **{key: value for key, value in shown.items() if value is not None}}


@dataclass(frozen=True)
class Gathered:
    """The data sets that could be had, by name, and for each other one the reason."""

    sets: dict[str, DataSet]
    missing: dict[str, str]

    @property
    def note(self) -> str:
        """What a summary says about the missing sets; nothing where none is missing."""
        return f"Run without {', '.join(self.missing)}, not found here." if self.missing else ""


def built(factory: Callable[[], nn.Module], settings: Settings) -> nn.Module:
    """A fresh network for a study."""
    return seeded(factory, settings.seed)


def seeded(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A fresh network whose first weights depend on the seed alone."""
    with isolated(seed, "study"):
        return factory()


def gather(names: Sequence[str]) -> Gathered:
    """Load data sets by name and go on without those that cannot be had, unless none can."""
    sets: dict[str, DataSet] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            sets[name] = load(name)
        except DataError as error:
            missing[name] = str(error)
    if not sets:
        raise DataError(next(iter(missing.values()), "the study names no data set; give it at least one."))
    return Gathered(sets, missing)


def mixing(posterior: Posterior, x: Tensor) -> float:
    """The median R-hat of predictions at x; infinite where no chain moved.

    `posterior.diagnose` would look at the weights too, which takes longer than many a fit.
    """
    draws = posterior.predict(x, draws=len(posterior), keep_draws=True).draws
    paths = draws.unflatten(0, (-1, posterior.about["members"])).transpose(0, 1).flatten(2)
    rhat = summarise(paths).rhat
    moved = rhat[~np.isnan(rhat)]
    return float(np.median(moved)) if moved.size else math.inf


def averaged(values: Sequence[float] | Floats) -> tuple[float, float]:
    """Mean and standard error of several runs."""
    held = np.asarray(values, dtype=np.float64)
    return float(held.mean()), float(held.std(ddof=1) / len(held) ** 0.5)


def banded(label: str, x: Sequence[float], runs: Sequence[Sequence[float]]) -> Series:
    """The mean of several runs as one curve, with a band from the least to the largest of them."""
    low, middle, high = (f(np.asarray(runs), axis=0) for f in (np.min, np.mean, np.max))
    return Series(label, middle, x, low, high)


def against_published(title: str, rows: Iterable[tuple[str, float | None, float | None, str]]) -> Table:
    """Published beside measured, with the digits that publications have."""
    table = published_beside_measured(title, rows)
    return replace(table, formats={**table.formats, "measured": ".5g"})
