"""Selective prediction: answer only where doubt is small, and leave the rest to a person.

Inputs of a class that training did not know may stand among those to be answered: whatever is said of them is an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubito import metrics, plots
from dubito.config import check_count, is_number
from dubito.posteriors.base import Posterior
from dubito.results import Cell, Figure, Result, Table, environment
from dubito.tasks.base import (
    NAMES,
    SCORES,
    Data,
    Labelled,
    Posteriors,
    check_names,
    check_numbers,
    check_posteriors,
    check_scores,
    doubts,
    named,
    reasons,
    wrong,
)

_POINTS = 400  # of a drawn curve


class Kept(NamedTuple):
    """What a threshold lets through: the share of inputs answered, and the error among them."""

    threshold: float
    coverage: float
    error: float | None


@dataclass(frozen=True, kw_only=True)
class Selective:
    """Risk against coverage, the accuracy of the most certain, and a threshold for a wanted error.

    `run(posteriors, {"test": (x, y), "validation": (x, y), "unknown": x})`: the threshold is chosen on the validation
    rows and then applied to the test rows; inputs called unknown have no right answer. Both may be left out.
    """

    scores: tuple[str, ...] = SCORES
    target_error: float = 0.01
    """Wanted among the answers that are given."""
    counts: tuple[int, ...] = ()
    """How many of the most certain to look at; tenths of all when left out."""
    draws: int = 100
    seed: int = 0
    progress: bool = False

    def __post_init__(self) -> None:
        check_scores(self.scores)
        check_numbers(self, self.draws)
        if not isinstance(self.counts, tuple | list):
            raise ValueError(f"counts={self.counts!r} is no tuple of numbers; give one, such as (10, 100)")
        for count in self.counts:
            check_count(self, "counts", count, 1)
        if not (is_number(self.target_error) and 0 <= self.target_error < 1):
            raise ValueError(f"target_error={self.target_error!r} is no error rate; give one from 0 to below 1")

    def run(self, posteriors: Posteriors, data: Mapping[str, Data]) -> Result:
        """Every posterior by every score."""
        check_posteriors(posteriors)
        check_names(data, ("test", "validation", "unknown"))
        test = named(data, "test")
        unknown = named(data, "unknown") if "unknown" in data else None
        validation = named(data, "validation") if "validation" in data else None
        found = {name: self._judged(one, test, unknown) for name, one in posteriors.items()}
        kept = {n: self._applied(p, found[n], validation) for n, p in posteriors.items()} if validation else {}
        counts = self._counts(test.size + (unknown.size if unknown else 0))
        why_not = {name: judged.why_not for name, judged in found.items()}
        return Result(
            name="selective",
            title="Answer only where doubt is small",
            summary=" ".join(filter(None, (self._summary(test, unknown, validation), reasons(why_not)))),
            numbers={
                "aurc": {n: {s: metrics.aurc(v, j.errors) for s, v in j.scores.items()} for n, j in found.items()},
                "error": {n: float(j.errors.mean()) for n, j in found.items()},
                "most certain": {n: {s: j.filtered(s, counts) for s in j.scores} for n, j in found.items()},
                "threshold": kept,
                "undefined": why_not,
            },
            tables=[*self._tables(found, kept, counts)],
            figures=[*_curves(found)],
            settings={**asdict(self), "counts": counts, "test": test.size, "unknown": unknown.size if unknown else 0},
            environment=environment(),
        )

    def _judged(self, posterior: Posterior, test: Labelled, unknown: Labelled | None) -> "Judged":
        prediction = posterior.predict(test.x, self.draws, self.seed, keep_draws=False, progress=self.progress)
        near, errors = doubts(prediction, self.scores), wrong(prediction, test.labels).double()
        if unknown is None:
            return Judged(near.scores, errors, near.why_not)
        strange = posterior.predict(unknown.x, self.draws, self.seed, keep_draws=False, progress=self.progress)
        far = doubts(strange, near.scores)
        joined = {s: torch.cat([v, far.scores[s]]) for s, v in near.scores.items()}
        return Judged(joined, torch.cat([errors, errors.new_ones(unknown.size)]), near.why_not)

    def _applied(self, posterior: Posterior, judged: "Judged", validation: Labelled) -> dict[str, dict[str, Kept]]:
        """Each score's threshold from the validation rows: what it kept of them, and what it keeps of the test rows."""
        held = self._judged(posterior, validation, None)
        limits = {s: threshold(v, held.errors, self.target_error) for s, v in held.scores.items()}
        return {
            s: {"validation": keep(held.scores[s], held.errors, t), "test": keep(judged.scores[s], judged.errors, t)}
            for s, t in limits.items()
        }

    def _counts(self, n: int) -> tuple[int, ...]:
        counts = self.counts or tuple(sorted({max(1, round(n * k / 10)) for k in range(1, 11)}))
        if max(counts) > n:
            raise ValueError(f"counts={counts} ask for more than the {n} inputs there are; give numbers up to {n}")
        return counts

    # -- out ---------------------------------------------------------------------------------------------------

    def _summary(self, test: Labelled, unknown: Labelled | None, validation: Labelled | None) -> str:
        strange = f" and {unknown.size:,} of an unknown class, which count as errors" if unknown else ""
        chosen = (
            f" Thresholds were chosen on {validation.size:,} other rows, none of them unknown, so that at most "
            f"{self.target_error:.2%} of the answers given there were wrong; that is no promise for new rows."
            if validation
            else ""
        )
        return f"{test.size:,} inputs{strange}; {self.draws} draws.{chosen}"

    def _tables(
        self, found: Mapping[str, "Judged"], kept: Mapping[str, Mapping[str, Any]], counts: Sequence[int]
    ) -> Iterator[Table]:
        yield Table(
            "Accuracy of the most certain",
            ("posterior", "score", "area under risk", *(f"{n:,}" for n in counts)),
            [(name, NAMES[s], *_row(judged, s, counts)) for name, judged in found.items() for s in self.scores],
            "Area under the risk-coverage curve: mean error over all coverages, the lower the better.",
        )
        if kept:
            columns = (
                "posterior",
                "score",
                "threshold",
                "validation coverage",
                "validation error",
                "coverage",
                "error",
            )
            rows = [(name, NAMES[s], *_cells(by.get(s))) for name, by in kept.items() for s in self.scores]
            yield Table(f"A threshold for {self.target_error:.2%} error", columns, rows)


class Judged(NamedTuple):
    """Doubts and errors (0 or 1) of all inputs, and for each missing score the reason."""

    scores: dict[str, Tensor]
    errors: Tensor
    why_not: dict[str, str]

    def filtered(self, score: str, counts: Sequence[int]) -> list[float]:
        """Accuracy of the n most certain, for each n; ties count with their mean."""
        risk = metrics.risk_coverage(self.scores[score], self.errors).risk
        return [1 - float(risk[n - 1]) for n in counts]


def threshold(doubt: Tensor, errors: Tensor, target_error: float) -> float:
    """The largest doubt up to which the error is at most the target; -inf where every choice errs more."""
    values, order = doubt.double().sort()
    risk = errors.double()[order].cumsum(0) / torch.arange(1, len(values) + 1, device=values.device)
    whole = torch.ones_like(values, dtype=torch.bool)
    whole[:-1] = values[1:] != values[:-1]  # a threshold takes all inputs of equal doubt or none
    fine = (whole & (risk <= target_error)).nonzero().flatten()
    return float(values[fine[-1]]) if len(fine) else -float("inf")


def keep(doubt: Tensor, errors: Tensor, threshold: float) -> Kept:
    """What becomes of inputs under a threshold."""
    kept = doubt.double() <= threshold
    error = float(errors[kept].double().mean()) if bool(kept.any()) else None
    return Kept(threshold, float(kept.double().mean()), error)


def _row(judged: Judged, score: str, counts: Sequence[int]) -> list[Cell]:
    if score not in judged.scores:
        return [None] * (1 + len(counts))
    return [metrics.aurc(judged.scores[score], judged.errors), *judged.filtered(score, counts)]


def _cells(kept: Mapping[str, Kept] | None) -> list[Cell]:
    if kept is None:
        return [None] * 5
    validation, test = kept["validation"], kept["test"]
    return [test.threshold, validation.coverage, validation.error, test.coverage, test.error]


def _curves(found: Mapping[str, Judged]) -> Iterator[Figure]:
    """Risk against coverage, and the accuracy of the n most certain, one panel a score."""
    for name, title, x_label, y_label in (
        ("risk-coverage", "Risk of answering the least doubtful", "share of inputs answered", "error among them"),
        ("most-certain", "Accuracy of the most certain", "how many", "accuracy"),
    ):
        panels = {}
        for score in SCORES:
            having = {n: j for n, j in found.items() if score in j.scores}
            if having:
                series = [plots.Series(n, *_drawn(j, score, name)) for n, j in having.items()]
                panels[NAMES[score]] = plots.lines("c", "c", series, x_label=x_label, y_label=y_label)
        if panels:
            yield plots.panels(name, title, panels)


def _drawn(judged: Judged, score: str, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """y and x of a curve, thinned to what can be seen."""
    curve = metrics.risk_coverage(judged.scores[score], judged.errors)
    at = np.unique(np.linspace(0, len(curve.risk) - 1, _POINTS).round().astype(int))
    if name == "risk-coverage":
        return curve.risk[at], curve.coverage[at]
    return 1 - curve.risk[at], (at + 1).astype(np.float64)
