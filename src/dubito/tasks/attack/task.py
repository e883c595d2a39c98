"""How posteriors fare under attack: accuracy and doubt against epsilon, detection, and transfer between them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dubito import plots
from dubito.config import check_count, suggestion, to_dict
from dubito.detection import ROUNDS
from dubito.net import Net
from dubito.posteriors.base import Posterior
from dubito.posteriors.samples import SamplesPosterior
from dubito.prediction import Prediction
from dubito.progress import track
from dubito.results import Cell, Figure, Result, Table, environment
from dubito.tasks.attack.steps import FGSM, Attack, Bounds, TargetedFGSM
from dubito.tasks.base import (
    NAMES,
    SCORES,
    Cells,
    Data,
    Labelled,
    Posteriors,
    check_names,
    check_numbers,
    check_posteriors,
    check_scores,
    check_single,
    detected,
    doubts,
    named,
    pixels,
    reasons,
    wrong,
)

Rows = list[tuple[Cell, ...]]


class Fared(NamedTuple):
    """How often answers to some inputs are right and how much they are doubted, each with its standard error."""

    accuracy: float
    accuracy_error: float
    entropy: float
    entropy_error: float


def fared(prediction: Prediction, y: Tensor) -> Fared:
    """Accuracy and mean entropy in nats."""
    check_single(prediction)
    right, entropy = 1 - wrong(prediction, y).double(), prediction.entropy.double()
    return Fared(*_mean(right), *_mean(entropy))


def _mean(values: Tensor) -> tuple[float, float]:
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(values.mean()), error


@dataclass(frozen=True, kw_only=True)
class Robustness:
    """Attack every posterior, and let every posterior judge every attack.

    `run(posteriors, {"test": (x, y), "negatives": x})`: detection is by attacked inputs against negatives, which are
    the inputs before the attack where none are given.
    """

    attack: Attack = field(default_factory=FGSM)
    epsilons: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2)
    """For the curves, each posterior under its own attack; detection and transfer are at the attack's own epsilon."""
    bounds: Bounds = (0.0, 1.0)
    scores: tuple[str, ...] = SCORES
    draws: int = 100
    """Networks that judge."""
    seed: int = 0
    bootstrap: int = ROUNDS
    level: float = 0.95
    shown: int = 6
    sources: Mapping[str, Posterior | nn.Module] = field(default_factory=dict)
    """What is attacked in place of the posterior of that name, such as its mean network."""
    progress: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.attack, Attack):
            raise ValueError(f"attack={self.attack!r} is no attack; give one with its settings, FGSM(epsilon=0.1)")
        if not isinstance(self.epsilons, tuple | list):
            raise ValueError(f"epsilons={self.epsilons!r} is no tuple of numbers; give one, such as (0.1, 0.2)")
        for epsilon in self.epsilons:
            self._at(epsilon)  # refuses what the attack cannot take before the first one runs
        if len({f"{epsilon:g}" for epsilon in self.epsilons}) < len(self.epsilons):
            raise ValueError(f"epsilons={self.epsilons} hold one number twice, to six digits; give each once")
        if not isinstance(self.sources, Mapping):
            raise ValueError(f"sources={self.sources!r} come by name; give {{name: posterior or network}}")
        check_scores(self.scores)
        check_numbers(self, self.draws, self.shown, self.bootstrap, self.level)

    def run(self, posteriors: Posteriors, data: Mapping[str, Data]) -> Result:
        """Every posterior as attacked and as judge."""
        check_posteriors(posteriors)
        check_names(data, ("test", "negatives"))
        for name in self.sources:
            if name not in posteriors:
                raise ValueError(f"sources has {name!r}, which is no posterior here; {suggestion(name, posteriors)}")
        test = named(data, "test")
        negatives = named(data, "negatives") if "negatives" in data else test
        attacked = {name: self._perturbed(name, one, test, self.attack) for name, one in posteriors.items()}
        judged = {name: self._judge(one, attacked, negatives, test.labels) for name, one in posteriors.items()}
        why_not = {name: one.why_not for name, one in judged.items()}
        curves = {name: dict(self._curve(name, one, test)) for name, one in posteriors.items()}
        return Result(
            name="robustness",
            title="Under attack",
            summary=" ".join(filter(None, (self._summary(test), reasons(why_not)))),
            numbers={
                "against epsilon": {n: {f"{e:g}": by for e, by in curve.items()} for n, curve in curves.items()},
                "transfer": {s: {j: one.fared[s] for j, one in judged.items()} for s in posteriors},
                "detection": {s: {j: one.cells[s] for j, one in judged.items()} for s in posteriors},
                "undefined": why_not,
            },
            tables=[*self._tables(curves, judged)],
            figures=[*_curves(curves), *self._images(posteriors, test, attacked)],
            settings={**self._described(), "inputs": test.size, "negatives": negatives.size},
            environment=environment(),
        )

    def _perturbed(self, name: str, posterior: Posterior, test: Labelled, attack: Attack) -> Tensor:
        attacked = _stand_in(self.sources.get(name, posterior), posterior)
        y = test.labels.reshape(-1) if test.labels.numel() == test.size else test.labels  # labels may stand in a column
        return attack.perturb(attacked, test.x, y, bounds=self.bounds)

    def _predict(self, posterior: Posterior, x: Any) -> Prediction:
        return posterior.predict(x, self.draws, self.seed, keep_draws=False)

    def _judge(
        self, posterior: Posterior, attacked: Mapping[str, Tensor], negatives: Labelled, y: Tensor
    ) -> "Judgement":
        near = doubts(self._predict(posterior, negatives.x), self.scores)
        cells, outcome = {}, {}
        for source, x in track(attacked.items(), len(attacked), "judging", self.progress):
            prediction = self._predict(posterior, x)
            far = doubts(prediction, near.scores)
            cells[source] = detected(near.scores, far.scores, self.bootstrap, self.level, self.seed)
            outcome[source] = fared(prediction, y)
        return Judgement(cells, outcome, near.why_not)

    def _curve(self, name: str, posterior: Posterior, test: Labelled) -> Iterator[tuple[float, Fared]]:
        for epsilon in track(self.epsilons, len(self.epsilons), f"attacking {name}", self.progress):
            moved = test.x if epsilon == 0 else self._perturbed(name, posterior, test, self._at(epsilon))
            yield epsilon, fared(self._predict(posterior, moved), test.labels)

    def _at(self, epsilon: float) -> Attack:
        return replace(self.attack, epsilon=epsilon)

    # -- out ---------------------------------------------------------------------------------------------------

    def _described(self) -> dict[str, Any]:
        plain = ("epsilons", "bounds", "scores", "draws", "seed", "bootstrap", "level")
        return {"attack": to_dict(self.attack), **{name: getattr(self, name) for name in plain}}

    def _summary(self, test: Labelled) -> str:
        how = "one draw" if self.attack.draws == 1 else f"the average over {self.attack.draws} draws"
        which = "new at every step" if self.attack.fresh else "the same throughout"
        instead = f" Attacked through a stand-in: {', '.join(self.sources)}." if self.sources else ""
        return (
            f"{type(self.attack).__name__} on {test.size:,} inputs in {self.bounds[0]:g} to {self.bounds[1]:g}, "
            f"gradients of {how}, {which}, judged by {self.draws} draws of their own. Epsilon is in "
            f"units of [0, 1] pixels.{instead}"
        )

    def _tables(
        self, curves: Mapping[str, Mapping[float, Fared]], judged: "Mapping[str, Judgement]"
    ) -> Iterator[Table]:
        columns = [f"{epsilon:g}" for epsilon in self.epsilons]
        if columns:
            accuracy: Rows = [(n, *(f.accuracy for f in by.values())) for n, by in curves.items()]
            entropy: Rows = [(n, *(f.entropy for f in by.values())) for n, by in curves.items()]
            yield Table("Accuracy against epsilon", ("posterior", *columns), accuracy)
            yield Table("Mean entropy against epsilon", ("posterior", *columns), entropy, "In nats.")
        at = f"epsilon {self.attack.epsilon:g}" if self.attack.epsilon is not None else "the end"
        yield Table(
            f"Transfer: accuracy at {at}",
            ("attacked", *(f"judged by {name}" for name in judged)),
            [(source, *(one.fared[source].accuracy for one in judged.values())) for source in judged],
        )
        note = f"Intervals: {self.level:.0%}, bootstrap." if self.bootstrap else ""
        rows = [
            (s, j, NAMES[c], *_cell(one.cells[s].get(c)))
            for s in judged
            for j, one in judged.items()
            for c in self.scores
        ]
        yield Table(f"Detection at {at}", ("attacked", "judged by", "score", "AUROC", "interval"), rows, note)

    def _images(self, posteriors: Posteriors, test: Labelled, attacked: Mapping[str, Tensor]) -> Iterator[Figure]:
        few = test.at(slice(self.shown))
        for number, (name, moved) in enumerate(attacked.items()):
            pair = torch.cat([few.x.to(moved), moved[: self.shown]]) if self.shown else moved[:0]
            shown = pixels(pair) if len(pair) else None
            if shown is not None:
                captions = _answers(self._predict(posteriors[name], pair))
                title = f"Before and after the attack on {name}"
                yield plots.images(f"attacked-{number}", title, shown, captions, columns=len(few.labels))


def _stand_in(source: Posterior | nn.Module, posterior: Posterior) -> Posterior:
    """A plain network answers under the likelihood of the posterior it stands for."""
    if not isinstance(source, nn.Module):
        return source
    net = Net(source).to(posterior.net.device)
    return SamplesPosterior.of(net, posterior.likelihood, net.theta().unsqueeze(0), {}, "point")


class Judgement(NamedTuple):
    """What one posterior makes of every attack: detection, and how it fares; for each missing score the reason."""

    cells: dict[str, Cells]
    fared: dict[str, Fared]
    why_not: dict[str, str]


def _cell(found: Mapping[str, Any] | None) -> list[Cell]:
    if found is None:
        return [None, None]
    value, low, high = found["auroc"]
    return [value, None if low is None else f"{low:.4f} to {high:.4f}"]


def _answers(prediction: Prediction) -> list[str]:
    return [f"{int(c)}: {float(p):.2f}" for p, c in zip(*prediction.probs.max(-1), strict=True)]


def _curves(curves: Mapping[str, Mapping[float, Fared]]) -> Iterator[Figure]:
    for key, label in (("accuracy", "accuracy"), ("entropy", "mean entropy (nats)")):
        series = [_series(name, list(by), list(by.values()), key) for name, by in curves.items()]
        if series and len(series[0].y) > 1:
            title = f"{label.capitalize()} against epsilon"
            caption = "Bands are one standard error."
            yield plots.lines(key, title, series, x_label="epsilon ([0, 1] pixels)", y_label=label, caption=caption)


def _series(name: str, x: list[float], outcomes: list[Fared], key: str) -> plots.Series:
    y = np.array([getattr(one, key) for one in outcomes])
    error = np.array([getattr(one, f"{key}_error") for one in outcomes])
    return plots.Series(name, y, x, y - error, y + error)


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """Follow a targeted attack step by step.

    `run(posteriors, {"test": (x, y)})`: rows of the target class are left out.
    """

    attack: TargetedFGSM = field(default_factory=TargetedFGSM)
    bounds: Bounds = (0.0, 1.0)
    draws: int = 100
    seed: int = 0
    every: int = 1
    """Steps between two judgements."""
    shown: int = 8
    """Images along the way of the first input."""
    progress: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.attack, TargetedFGSM):
            raise ValueError(f"attack={self.attack!r} goes to no class; give one that does, TargetedFGSM(target=0)")
        check_numbers(self, self.draws, self.shown)
        check_count(self, "every", self.every, 1)

    def run(self, posteriors: Posteriors, data: Mapping[str, Data]) -> Result:
        """Each posterior under its own attack."""
        check_posteriors(posteriors)
        check_names(data, ("test",))
        test = named(data, "test")
        others = (test.labels != self.attack.target).reshape(test.size, -1).any(1)  # labels may stand in a column
        test = test.at(others.nonzero().flatten())
        if not test.size:
            raise ValueError(f"all inputs are of class {self.attack.target} already; give others, or another target")
        ways = {name: self._way(name, one, test) for name, one in posteriors.items()}
        return Result(
            name="trajectory",
            title=f"On the way to class {self.attack.target}",
            summary=f"{test.size:,} inputs of other classes, moved towards class {self.attack.target} by steps of "
            f"{self.attack.step_size:g} in units of [0, 1] pixels; {self.draws} draws judge.",
            numbers={n: {"steps": w.steps, "fared": w.fared, "target": w.target} for n, w in ways.items()},
            tables=[self._table(ways)],
            figures=[*self._figures(ways), *self._images(ways)],
            settings={"attack": to_dict(self.attack), "bounds": self.bounds, "draws": self.draws, "seed": self.seed},
            environment=environment(),
        )

    def _way(self, name: str, posterior: Posterior, test: Labelled) -> "Way":
        way = Way([], [], [], [], [])
        moves = self.attack.path(posterior, test.x, test.labels, bounds=self.bounds)
        for step, x in enumerate(self._started(test.x, moves, name)):
            if step % self.every and step != self.attack.steps:
                continue
            prediction = posterior.predict(x, self.draws, self.seed, keep_draws=False)
            way.steps.append(step)
            way.fared.append(fared(prediction, test.labels))
            way.target.append(float((prediction.probs.argmax(-1) == self.attack.target).double().mean()))
            way.first.append(x[0].detach().cpu())
            way.answers.append(_answers(prediction)[0])
        return way

    def _started(self, x: Tensor, moves: Iterator[Tensor], name: str) -> Iterator[Tensor]:
        yield x
        yield from track(moves, self.attack.steps, f"attacking {name}", self.progress)

    def _table(self, ways: "Mapping[str, Way]") -> Table:
        columns = ("posterior", "accuracy", "as the target", "entropy", "largest entropy", "at step")
        rows = []
        for name, way in ways.items():
            entropy = [one.entropy for one in way.fared]
            most = int(np.argmax(entropy))
            last = way.fared[-1]
            rows.append((name, last.accuracy, way.target[-1], last.entropy, entropy[most], way.steps[most]))
        return Table(f"After {self.attack.steps} steps", columns, rows, "Entropy in nats, the mean over inputs.")

    def _figures(self, ways: "Mapping[str, Way]") -> Iterator[Figure]:
        right = [_series(name, [float(s) for s in w.steps], w.fared, "accuracy") for name, w in ways.items()]
        yield plots.lines("accuracy", "Still right", right, x_label="step", y_label="accuracy")
        taken = [plots.Series(name, w.target, w.steps) for name, w in ways.items()]
        yield plots.lines("target", "Taken for the target", taken, x_label="step", y_label="share of inputs")
        unsure = [_series(name, [float(s) for s in w.steps], w.fared, "entropy") for name, w in ways.items()]
        yield plots.lines("entropy", "Doubt on the way", unsure, x_label="step", y_label="mean entropy (nats)")

    def _images(self, ways: "Mapping[str, Way]") -> Iterator[Figure]:
        """The first input along the way."""
        for number, (name, way) in enumerate(ways.items()):
            at = np.unique(np.linspace(0, len(way.steps) - 1, self.shown).round().astype(int))
            shown = pixels(torch.stack([way.first[i] for i in at])) if self.shown else None
            if shown is not None:
                captions = [f"step {way.steps[i]}, {way.answers[i]}" for i in at]
                yield plots.images(
                    f"way-{number}", f"One input on its way, seen by {name}", shown, captions, columns=len(at)
                )


class Way(NamedTuple):
    """What happened at each step that was looked at, and the first input there."""

    steps: list[int]
    fared: list[Fared]
    target: list[float]
    first: list[Tensor]
    answers: list[str]
