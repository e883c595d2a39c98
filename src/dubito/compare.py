"""Several posteriors of one problem side by side: what they store, how fast they are, how good, how like the first."""

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dubito import metrics, plots
from dubito.config import whole
from dubito.inputs import n_rows, rows, tensors
from dubito.plots import Series
from dubito.posteriors.base import Posterior, check_posterior
from dubito.posteriors.storage import Samples
from dubito.posteriors.weights import WeightPosterior
from dubito.prediction import Prediction, Undefined
from dubito.results import Cell, Figure, Result, Table, environment

TIMED_ROWS = 10_000


class Compared(NamedTuple):
    """One posterior's row: costs, scores on the rows given, and nearness to the teacher; None where there is none."""

    bytes: int
    draw_seconds: float | None
    predict_seconds: float
    scores: dict[str, float]
    detection: dict[str, float | None]
    nearness: dict[str, float | None]

    def cells(self) -> list[Cell]:
        """The row of a table."""
        named = (*self.scores.values(), *self.detection.values(), *self.nearness.values())
        return [self.bytes, self.draw_seconds, self.predict_seconds, *named]


def compare(
    posteriors: Mapping[str, Posterior],
    data: tuple[Any, Any],
    *,
    outside: Any = None,
    draws: int = 100,
    timed_rows: int = TIMED_ROWS,
    seed: int = 0,
) -> Result:
    """A table, numbers and a figure of several posteriors; the first is the teacher the others are compared with.

    data: (x, y) to score on. outside: inputs of another kind, which entropy and BALD should tell from x. draws:
    networks averaged; seconds are those of drawing them and of predicting `timed_rows` rows with them.
    """
    _check(posteriors, data)
    if whole("timed_rows", timed_rows) < 1:
        raise ValueError(f"timed_rows is {timed_rows}; give the rows whose prediction is timed, at least 1")
    x, y = tensors(data[0]), tensors(data[1])
    _check_answers(posteriors, x)
    beyond = None if outside is None else tensors(outside)
    teacher = next(iter(posteriors.values())).predict(x, draws=draws, seed=seed)
    found = {
        name: _compared(p, x, y, beyond, None if i == 0 else teacher, draws, timed_rows, seed)
        for i, (name, p) in enumerate(posteriors.items())
    }
    return Result(
        name="comparison",
        title=f"{len(found)} posteriors side by side",
        summary=f"{n_rows(x):,} rows scored; the others are compared with {next(iter(found))}.",
        numbers={name: one._asdict() for name, one in found.items()},
        tables=[_table(found, timed_rows, draws)],
        figures=_figures(found),
        settings={"draws": draws, "timed_rows": timed_rows, "seed": seed},
        environment=environment(),
    )


def _check(posteriors: Mapping[str, Posterior], data: Any) -> None:
    """Refuse what cannot stand side by side."""
    if not isinstance(posteriors, Mapping) or not posteriors:
        raise ValueError("there is nothing to compare; give at least one posterior, as {name: posterior}")
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ValueError("posteriors are scored on inputs and what they should give; pass data as (x, y)")
    for name, posterior in posteriors.items():
        check_posterior(posterior, repr(name))
    (first, teacher), *others = posteriors.items()
    for name, posterior in others:
        if posterior.likelihood.kind != teacher.likelihood.kind:
            kinds = f"{posterior.likelihood.kind} and {teacher.likelihood.kind}"
            raise ValueError(f"{name!r} and {first!r} answer different questions, {kinds}; compare each with its own")


def _check_answers(posteriors: Mapping[str, Posterior], x: Any) -> None:
    """Refuse classifiers of other classes than the first's, before any work."""
    one = rows(x, slice(1))
    shapes = {
        name: tuple(posterior.predict(one, draws=1).probs.shape[1:])
        for name, posterior in posteriors.items()
        if posterior.likelihood.kind == "classification"
    }
    for name, shape in shapes.items():
        first, wanted = next(iter(shapes.items()))
        if shape != wanted:
            raise ValueError(
                f"{name!r} gives {shape} probabilities for an input and {first!r} {wanted}; compare posteriors of the "
                "same classes"
            )


def _compared(
    posterior: Posterior,
    x: Any,
    y: Tensor,
    outside: Any,
    teacher: Prediction | None,
    draws: int,
    timed_rows: int,
    seed: int,
) -> Compared:
    prediction = posterior.predict(x, draws=draws, seed=seed)
    beyond = None if outside is None else posterior.predict(outside, draws=draws, seed=seed)
    many = rows(x, torch.arange(timed_rows) % n_rows(x))
    drawing = None
    if isinstance(posterior, WeightPosterior):
        drawing = _seconds(lambda: posterior.thetas(draws, seed), posterior)
    return Compared(
        stored_bytes(posterior),
        drawing,
        _seconds(lambda: posterior.predict(many, draws=draws, seed=seed, keep_draws=False), posterior),
        _scores(prediction, y),
        {name: _auroc(prediction, beyond, name) for name in ("entropy", "bald")},
        _nearness(prediction, teacher),
    )


def stored_bytes(posterior: Posterior) -> int:
    """Bytes of the numbers a posterior's folder holds, beside its manifest; stored networks are counted, not copied."""
    samples = getattr(posterior, "samples", None)
    if isinstance(samples, Samples):
        theta, buffers = samples.get([0])
        return len(samples) * (theta.nbytes + sum(b.nbytes for b in buffers.values()))
    with tempfile.TemporaryDirectory() as folder:
        posterior.save(folder)
        return sum(_tensor_bytes(path) for path in Path(folder).glob("*.safetensors"))


def _tensor_bytes(path: Path) -> int:
    """The size of a safetensors file without its header, whose length its first eight bytes give."""
    with path.open("rb") as file:
        return path.stat().st_size - 8 - int.from_bytes(file.read(8), "little")


def _seconds(work: Callable[[], object], posterior: Posterior) -> float:
    """How long it takes, after one go to warm up where there is a GPU to wait for."""
    waits = posterior.net.device.type == "cuda"
    if waits:
        work()
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if waits:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _scores(prediction: Prediction, y: Tensor) -> dict[str, float]:
    found = metrics.evaluate(prediction, y)
    return {name: value for name, value in found.items() if name in ("accuracy", "nll", "ece", "rmse", "coverage")}


def _auroc(inside: Prediction, outside: Prediction | None, measure: str) -> float | None:
    """How well a measure tells inputs apart; None where it does not exist, as BALD of one network or of each pixel."""
    try:
        pair = None if outside is None else (getattr(inside, measure), getattr(outside, measure))
    except Undefined:
        return None
    return None if pair is None or pair[0].dim() != 1 else metrics.auroc(*pair)


def _nearness(prediction: Prediction, teacher: Prediction | None) -> dict[str, float | None]:
    if teacher is None or prediction.kind != "classification":
        return {"agreement": None, "total variation": None}
    pair = prediction.probs.cpu(), teacher.probs.cpu()
    return {"agreement": metrics.agreement(*pair), "total variation": metrics.total_variation(*pair)}


def _table(found: Mapping[str, Compared], timed_rows: int, draws: int) -> Table:
    first = next(iter(found.values()))
    detection = [f"AUROC {'BALD' if name == 'bald' else name}" for name in first.detection]
    columns = ("posterior", "bytes", "draw, s", "predict, s", *first.scores, *detection, *first.nearness)
    return Table(
        "Cost and quality",
        columns,
        [(name, *one.cells()) for name, one in found.items()],
        note=f"Seconds for {draws} networks, and for {timed_rows:,} rows with each; nll in nats a row. Agreement and "
        f"total variation are with {next(iter(found))}. A dash: there is no such number.",
        formats={"bytes": ",d", "draw, s": ".3g", "predict, s": ".3g"},
    )


def _figures(found: Mapping[str, Compared]) -> list[Figure]:
    """Quality against bytes, one picture for each score that all have."""
    first = next(iter(found.values()))
    names = [name for name in ("nll", "accuracy", "rmse") if name in first.scores]
    return [quality_figure(name, {key: (one.bytes, one.scores[name]) for key, one in found.items()}) for name in names]


def quality_figure(score: str, points: Mapping[str, tuple[float, float]]) -> Figure:
    """One score over the bytes stored."""
    series = [Series(name, np.array([value]), np.array([size])) for name, (size, value) in points.items()]
    title = f"{score} against bytes stored"
    return plots.scatter(f"bytes-{score}", title, series, x_label="bytes stored", y_label=score, log_x=True)
