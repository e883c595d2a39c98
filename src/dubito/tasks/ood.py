"""Out-of-distribution detection: does a posterior doubt what it was not trained for, and where it is wrong?

Inputs are taken in the scaling they are given in. `scales` multiplies the outside inputs by an explicit factor, as the
released code of adversarial posterior distillation does (Wang et al., 2018); every factor but 1 is written beside the
name of the set.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from dubito import metrics, plots
from dubito.config import check_finite_number
from dubito.detection import MEASURES, ROUNDS
from dubito.prediction import Prediction
from dubito.results import Cell, Figure, Result, Table, environment
from dubito.tasks.base import (
    NAMES,
    SCORES,
    Cells,
    Data,
    Doubts,
    Labelled,
    Measured,
    Posteriors,
    check_numbers,
    check_posteriors,
    check_scores,
    detected,
    doubts,
    labelled,
    named,
    pixels,
    reasons,
    wrong,
)

INSIDE = "inside"
_BINS = 40
_TITLES = {"auroc": "AUROC", "aupr_out": "AUPR out", "aupr_in": "AUPR in", "fpr95": "FPR95"}


@dataclass(frozen=True, kw_only=True)
class OOD:
    """Tell inputs like those of training from others by a posterior's doubt, and right answers from wrong ones.

    `run(posteriors, {"inside": (x, y), "fashion": x, ...})`: labels of the inside are needed only to look for wrong
    answers; every other name is a set of outside inputs.
    """

    scores: tuple[str, ...] = SCORES
    draws: int = 100
    seed: int = 0
    scales: tuple[float, ...] = (1.0,)
    """Factors on the outside inputs, each a set of its own; the inside is never rescaled."""
    bootstrap: int = ROUNDS
    """Bootstrap samples for the intervals; 0 for none."""
    level: float = 0.95
    shown: int = 6
    """Images of each set that are looked at draw by draw."""
    progress: bool = False

    def __post_init__(self) -> None:
        check_scores(self.scores)
        check_numbers(self, self.draws, self.shown, self.bootstrap, self.level)
        if not isinstance(self.scales, tuple | list) or not self.scales:
            raise ValueError(f"scales={self.scales!r} must hold at least one number; (1.0,) leaves inputs as they are")
        for factor in self.scales:
            check_finite_number(self, "scales", factor)

    def run(self, posteriors: Posteriors, data: Mapping[str, Data]) -> Result:
        """Every posterior on every outside set, by every score."""
        check_posteriors(posteriors)
        inside, outside = named(data, INSIDE), dict(self._outside(data))
        found = {name: self._look(posterior, inside, outside) for name, posterior in posteriors.items()}
        why_not = {name: look.inside.why_not for name, look in found.items()}
        return Result(
            name="ood",
            title="Out of distribution",
            summary=" ".join(filter(None, (self._summary(inside, outside), reasons(why_not)))),
            numbers={
                "detection": {s: {n: look.cells[s] for n, look in found.items()} for s in outside},
                "misclassified": {n: look.mistakes for n, look in found.items()},
                "accuracy": {n: look.accuracy for n, look in found.items()},
                "undefined": why_not,
            },
            tables=[*self._tables(found, outside)],
            figures=[*histograms(found), *self._views(posteriors, inside, outside)],
            settings={**asdict(self), "inside": inside.size, "outside": {n: o.size for n, o in outside.items()}},
            environment=environment(),
        )

    def _outside(self, data: Mapping[str, Data]) -> Iterator[tuple[str, Labelled]]:
        """Every set but the inside under every factor, with the factor in its name."""
        sets = {name: labelled(one) for name, one in data.items() if name != INSIDE}
        if not sets:
            raise ValueError("there are no outside inputs; give at least one set beside 'inside'")
        for factor in self.scales:
            for name, one in sets.items():
                if factor != 1 and not any(leaf.is_floating_point() for leaf in tree_leaves(one.x)):
                    raise ValueError(
                        f"the inputs of {name!r} are whole numbers, which scales leave alone; leave it out"
                    )
                yield scaled_name(name, factor), Labelled(scaled(one.x, factor), one.y)

    def _look(self, posterior: Any, inside: Labelled, outside: Mapping[str, Labelled]) -> "Look":
        prediction = self._predict(posterior, inside)
        near = doubts(prediction, self.scores)
        far = {name: doubts(self._predict(posterior, one), near.scores) for name, one in outside.items()}
        cells = {name: self._detected(near.scores, one.scores) for name, one in far.items()}
        if inside.y is None:
            return Look(near, far, cells, {}, None)
        mistaken = wrong(prediction, inside.y)
        accuracy = metrics.accuracy(prediction.probs, inside.y)
        return Look(near, far, cells, self._mistakes(near, mistaken), accuracy)

    def _predict(self, posterior: Any, data: Labelled) -> Prediction:
        found: Prediction = posterior.predict(
            data.x, draws=self.draws, seed=self.seed, keep_draws=False, progress=self.progress
        )
        return found

    def _detected(self, inside: Mapping[str, Tensor], outside: Mapping[str, Tensor]) -> Cells:
        return detected(inside, outside, self.bootstrap, self.level, self.seed)

    def _mistakes(self, inside: Doubts, mistaken: Tensor) -> Cells:
        """The same scores as detectors of wrong answers; nothing where all answers are right, or all wrong."""
        if bool(mistaken.all()) or not bool(mistaken.any()):
            return {}
        right, wrong = ({s: v[at] for s, v in inside.scores.items()} for at in (~mistaken, mistaken))
        return self._detected(right, wrong)

    # -- out ---------------------------------------------------------------------------------------------------

    def _summary(self, inside: Labelled, outside: Mapping[str, Labelled]) -> str:
        sets = ", ".join(f"{one.size:,} of {name}" for name, one in outside.items())
        factors = [f"{factor:g}" for factor in self.scales if factor != 1]
        note = (
            f" Sets marked × hold inputs multiplied by {' and '.join(factors)}; the inside is not." if factors else ""
        )
        return (
            f"{inside.size:,} inputs like those of training against {sets}; {self.draws} draws. Doubt is the score, "
            f"outside inputs are the positives; AUPR in takes the inside as positive.{note}"
        )

    def _tables(self, found: Mapping[str, "Look"], outside: Mapping[str, Labelled]) -> Iterator[Table]:
        note = f"Intervals: {self.level:.0%}, from {self.bootstrap:,} bootstrap samples." if self.bootstrap else ""
        for one in outside:
            yield self._table(f"Against {one}", {n: look.cells[one] for n, look in found.items()}, note)
        judged = {n: look.mistakes for n, look in found.items() if look.accuracy is not None}
        if judged:
            shares = ", ".join(f"{n} {1 - (found[n].accuracy or 0):.2%}" for n in judged)
            yield self._table("Wrong answers inside", judged, f"Share of wrong answers: {shares}. {note}")

    def _table(self, title: str, cells: Mapping[str, Cells], note: str) -> Table:
        columns = ["posterior", "score"]
        for measure in MEASURES:
            columns += [_TITLES[measure], *([f"{_TITLES[measure]} interval"] if self.bootstrap else [])]
        rows = [(n, NAMES[s], *self._row(by.get(s))) for n, by in cells.items() for s in self.scores]
        return Table(title, columns, rows, note, formats=dict.fromkeys(_TITLES.values(), ".4f"))

    def _row(self, cell: Mapping[str, Measured] | None) -> list[Cell]:
        row: list[Cell] = []
        for measure in MEASURES:
            found = None if cell is None else cell[measure]
            row.append(None if found is None else found.value)
            if self.bootstrap:
                row.append(None if found is None or found.low is None else f"{found.low:.4f} to {found.high:.4f}")
        return row

    def _views(self, posteriors: Posteriors, inside: Labelled, outside: Mapping[str, Labelled]) -> Iterator[Figure]:
        """A few images of each set as every draw sees them."""
        if not self.shown:
            return
        for number, (name, posterior) in enumerate(posteriors.items()):
            for which, (label, one) in enumerate({INSIDE: inside, **outside}.items()):
                few = one.at(slice(self.shown))
                prediction = posterior.predict(few.x, draws=self.draws, seed=self.seed, keep_draws=True)
                truth = few.y if label == INSIDE else None
                yield from views(prediction, few.x, f"{number}-{which}", f"{label}, seen by {name}", truth)


class Look(NamedTuple):
    """What one posterior makes of all sets."""

    inside: Doubts
    outside: dict[str, Doubts]
    cells: dict[str, Cells]
    mistakes: Cells
    accuracy: float | None


def scaled(x: Any, factor: float) -> Any:
    """Inputs times a factor; at 1 they are what they were."""
    return x if factor == 1 else tree_map(lambda t: t * factor if t.is_floating_point() else t, x)


def scaled_name(name: str, factor: float) -> str:
    """The name of a set with the factor on it."""
    return name if factor == 1 else f"{name} ×{factor:g}"


def histograms(found: Mapping[str, Look]) -> Iterator[Figure]:
    """Inside against outside, one figure a score, one panel a posterior."""
    for score in SCORES:
        having = {name: look for name, look in found.items() if score in look.inside.scores}
        if having:
            yield plots.panels(
                f"doubt-{score}".replace("_", "-"),
                f"{NAMES[score].capitalize() if score != 'bald' else 'BALD'}, inside against outside",
                {name: _histogram(look, score) for name, look in having.items()},
                caption="The less inside and outside overlap, the better a threshold tells them apart.",
            )


def _histogram(look: Look, score: str) -> Figure:
    sides = {INSIDE: look.inside, **look.outside}
    values = {name: one.scores[score].cpu().double().numpy() for name, one in sides.items()}
    everything = np.concatenate(list(values.values()))
    edges = np.linspace(everything.min(), everything.max() + 1e-9, _BINS + 1)
    series = [plots.Series(name, np.histogram(v, edges)[0] / len(v)) for name, v in values.items()]
    return plots.histogram("h", "h", edges, series, x_label=NAMES[score], y_label="share of inputs")


def views(prediction: Prediction, x: Any, key: str, title: str, truth: Tensor | None = None) -> Iterator[Figure]:
    """Image by image: how often each class came first among the draws, and the score of the predicted class in each.

    The view of the report on weight uncertainty in neural networks; the histogram is that of `top_scores`.
    """
    scores = top_scores(prediction)
    shown = pixels(x) if isinstance(x, Tensor) else None
    captions = [f"{int(c)}: {float(p):.2f}" for p, c in zip(*prediction.probs.max(-1), strict=True)]
    if shown is not None:
        right = [] if truth is None else truth.reshape(-1).tolist()  # labels may stand in a column
        votes = prediction.votes.cpu().numpy()
        yield plots.images(
            f"votes-{key}",
            f"Votes of {prediction.n_draws} draws: {title}",
            shown,
            captions,
            votes=votes,
            truth=right,
            caption="Above each image the predicted class and its averaged probability, below it how often each class "
            "came first among the draws.",
        )
    if prediction.n_draws == 1:
        return
    edges = np.linspace(0, 1, 21)
    panels = {f"{i + 1}: class {caption}": _scores(edges, scores[:, i]) for i, caption in enumerate(captions)}
    yield plots.panels(
        f"scores-{key}",
        f"Score of the predicted class over {prediction.n_draws} draws: {title}",
        panels,
        caption="A draw that is sure of the common answer stands right, one that is sure of another left.",
    )


def top_scores(prediction: Prediction) -> NDArray[np.float64]:
    """(draws, N): each draw's probability of the class that the average puts first; needs kept draws."""
    draws = prediction.draws
    top = prediction.probs.argmax(-1).to(draws.device)
    scores = torch.take_along_dim(draws, top.expand(len(draws), *top.shape).unsqueeze(-1), -1).squeeze(-1)
    return scores.double().cpu().numpy()


def _scores(edges: NDArray[np.float64], values: NDArray[np.float64]) -> Figure:
    series = [plots.Series("draws", np.histogram(values, edges)[0])]
    return plots.histogram("s", "s", edges, series, x_label="score of the predicted class", y_label="draws")
