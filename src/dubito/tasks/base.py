"""What a task is, and what tasks share: data as they come, and doubts by name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubito.config import check_count, suggestion
from dubito.detection import Ranked, check_intervals, intervals, measured
from dubito.inputs import n_rows, rows, tensors
from dubito.posteriors.base import Posterior, check_name, check_named
from dubito.prediction import Prediction, Undefined
from dubito.results import Result

Score = Literal["max_probability", "entropy", "expected_entropy", "bald", "variation_ratio", "vote_ratio", "top_spread"]
SCORES: tuple[Score, ...] = get_args(Score)
NAMES: dict[str, str] = {
    "max_probability": "max-probability",
    "entropy": "entropy",
    "expected_entropy": "expected entropy",
    "bald": "BALD",
    "variation_ratio": "variation ratio",
    "vote_ratio": "vote ratio",
    "top_spread": "top-class spread",
}

Data: TypeAlias = Any
"""Inputs, or (inputs, labels): tensors or arrays."""
Posteriors: TypeAlias = Mapping[str, Posterior]
Refit: TypeAlias = Callable[[Data, Posterior | None, int], Posterior]
"""(data, what was known before, seed) -> posterior."""


class Task(Protocol):
    """Posteriors side by side on named data."""

    def run(self, posteriors: Posteriors, data: Mapping[str, Data]) -> Result: ...


class Loop(Protocol):
    """Fits again and again, on data that change."""

    def run(self, refit: Refit, data: Mapping[str, Data]) -> Result: ...


@dataclass(frozen=True, eq=False)
class Labelled:
    """Inputs and, where they are known, labels."""

    x: Any
    y: Tensor | None

    @property
    def labels(self) -> Tensor:
        """The labels, or an error that asks for them."""
        if self.y is None:
            raise ValueError("these inputs have no labels, which are needed here; give (inputs, labels)")
        return self.y

    def at(self, index: Any) -> "Labelled":
        """Some of the rows."""
        return Labelled(rows(self.x, index), None if self.y is None else self.y[index])

    @property
    def size(self) -> int:
        """How many inputs there are."""
        return n_rows(self.x)


def labelled(data: Data) -> Labelled:
    """Inputs alone, or inputs and labels, as tensors."""
    x, y = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    found = Labelled(tensors(x), None if y is None else torch.as_tensor(tensors(y)))
    if found.y is not None and len(found.y) != found.size:
        raise ValueError(f"there are {found.size} inputs and {len(found.y)} labels; give one label per input")
    return found


def named(data: Mapping[str, Data], name: str) -> Labelled:
    """One entry of a task's data."""
    _check_mapping(data)
    if name not in data:
        raise ValueError(f"the task needs data called {name!r}; {suggestion(name, data)}")
    return labelled(data[name])


def check_names(data: Mapping[str, Data], known: Sequence[str]) -> None:
    """Refuse data that the task would not look at."""
    _check_mapping(data)
    for name in data:
        if name not in known:
            raise ValueError(f"the task has no use for data called {name!r}; {suggestion(name, known)}")


def _check_mapping(data: object) -> None:
    if not isinstance(data, Mapping):
        raise ValueError(f"data come by name, not as {type(data).__name__}; give {{name: inputs or (inputs, labels)}}")
    for name in data:
        check_name("data", name)


def check_posteriors(posteriors: Posteriors) -> None:
    """Refuse an empty comparison, and posteriors that know no classes."""
    check_named(posteriors)
    for name, posterior in posteriors.items():
        if posterior.likelihood.kind != "classification":
            kind = type(posterior.likelihood).__name__
            raise ValueError(f"{name!r} has no classes to doubt under {kind}; give posteriors of classifiers")


def check_scores(scores: Sequence[str]) -> None:
    """Refuse unknown doubts, and none at all."""
    if isinstance(scores, str):
        raise ValueError(f"scores={scores!r} is one name, not several; give a tuple, ({scores!r},)")
    if not scores:
        raise ValueError(f"there is no score to look at; choose some of {', '.join(SCORES)}")
    for score in scores:
        if score not in SCORES:
            raise ValueError(f"there is no score {score!r}; {suggestion(score, SCORES)}")


def check_numbers(task: object, draws: int, shown: int = 0, bootstrap: int = 0, level: float = 0.95) -> None:
    """Refuse numbers of draws, images and bootstrap samples that cannot be, before anything is predicted."""
    check_count(task, "draws", draws, 1)
    check_count(task, "shown", shown, 0)
    check_count(task, "bootstrap", bootstrap, 0)
    check_intervals(bootstrap or 2, level)


def check_single(prediction: Prediction) -> None:
    """Refuse networks that answer an input several times: a task takes one doubt for each."""
    event = tuple(prediction.probs.shape[1:-1])
    if event:
        raise ValueError(
            f"an input has {event} answers, one for each token, pixel or label, and tasks take one; give posteriors of "
            "networks that answer once for an input"
        )


def doubt(prediction: Prediction, score: str) -> Tensor:
    """(N,): higher means more doubt; raises `Undefined` where the score cannot exist."""
    check_scores([score])
    if score == "max_probability":
        return -prediction.probs.amax(-1)
    found: Tensor = getattr(prediction, score)
    return found


class Doubts(NamedTuple):
    """The scores that exist for a prediction, (N,) each, and for each other one the reason in a sentence."""

    scores: dict[str, Tensor]
    why_not: dict[str, str]


def doubts(prediction: Prediction, scores: Iterable[str]) -> Doubts:
    """Several scores of one prediction."""
    check_single(prediction)
    found, why_not = {}, {}
    for score in scores:
        try:
            found[score] = doubt(prediction, score)
        except Undefined as error:
            why_not[score] = str(error)
    return Doubts(found, why_not)


class Measured(NamedTuple):
    """A measure of detection and its bootstrap interval, which is absent where none was asked for."""

    value: float
    low: float | None = None
    high: float | None = None


Cells: TypeAlias = dict[str, dict[str, Measured]]
"""{score: {measure: value}}"""


def detected(
    inside: Mapping[str, Tensor], outside: Mapping[str, Tensor], rounds: int, level: float, seed: int
) -> Cells:
    """How well each score tells the two sides apart, by every measure; intervals from so many bootstrap samples."""
    ranked = {score: Ranked(values, outside[score]) for score, values in inside.items()}
    ends = intervals(ranked, rounds, level, seed) if rounds and ranked else {}
    return {
        score: {m: Measured(value, *ends[score][m] if ends else ()) for m, value in measured(one).items()}
        for score, one in ranked.items()
    }


def wrong(prediction: Prediction, y: Tensor) -> Tensor:
    """(N,): whether the most probable class is not the label."""
    probs = prediction.probs
    if tuple(y.shape) not in (tuple(probs.shape[:-1]), (*probs.shape[:-1], 1)):
        raise ValueError(f"labels have shape {tuple(y.shape)} for {len(probs)} inputs; give one whole number for each")
    labels, classes = y.to(probs.device).reshape(probs.shape[:-1]), probs.shape[-1]
    odd = labels[(labels < 0) | (labels >= classes) | (labels != labels.long())]
    if len(odd):
        found = f"{odd[0].item():g}"
        raise ValueError(f"there is a label {found} for {classes} classes; number them from 0 to {classes - 1}")
    return probs.argmax(-1) != labels


def reasons(why_not: Mapping[str, Mapping[str, str]]) -> str:
    """One sentence for each reason why a cell is empty, with the posteriors and scores it holds for."""
    by: dict[str, list[str]] = {}
    for name, missing in why_not.items():
        for score, why in missing.items():
            by.setdefault(why, []).append(f"{name}, {NAMES.get(score, score)}")
    return " ".join(f"No value for {'; '.join(cells)}: {why}." for why, cells in by.items())


def pixels(x: Tensor) -> NDArray[Any] | None:
    """Inputs as images (N, H, W) or (N, H, W, 3) in [0, 1], stretched to their own range; None where they are none."""
    array = x.detach().cpu().float().numpy()
    if array.ndim == 2:
        side = round(array.shape[1] ** 0.5)
        if side < 4 or side * side != array.shape[1]:
            return None
        array = array.reshape(len(array), side, side)
    elif array.ndim == 4 and array.shape[1] in (1, 3):
        array = array[:, 0] if array.shape[1] == 1 else np.moveaxis(array, 1, -1)
    elif array.ndim != 3:
        return None
    low, high = float(array.min()), float(array.max())
    stretched: NDArray[Any] = (array - low) / ((high - low) or 1.0)
    return stretched
