"""How time and peak memory grow with draws, weights, rows and members, through the public API."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import dubito
from benchmarks.common import Tally, Where, each_logged_step, images, report, seeded, timed
from dubito.posteriors.samples import SamplesPosterior
from dubito.runtime import Precision

BATCH, ROUNDS = 100, 3


@dataclass(frozen=True)
class Sizes:
    """What stands still while something else grows, and the points at which that is measured."""

    draws: int
    hidden: int
    rows: int
    steps: int
    precision: Precision
    many_draws: tuple[int, ...]
    step_draws: tuple[int, ...]
    widths: tuple[int, ...]
    many_rows: tuple[int, ...]
    members: tuple[int, ...]


SIZES = {
    "cpu": Sizes(50, 100, 1000, 100, "float32", (10, 30, 100, 300), (1, 3, 10), (30, 100, 300, 1000),
                 (300, 1000, 3000, 10_000), (1, 2, 4, 8)),
    "cuda": Sizes(200, 400, 10_000, 2000, "tf32", (10, 30, 100, 300, 1000), (1, 3, 10, 30), (100, 400, 1600, 3200),
                  (1000, 3000, 10_000, 30_000, 100_000), (1, 4, 16, 64)),
}  # fmt: skip
QUICK = Sizes(4, 8, 100, 10, "float32", (2, 4), (1, 2), (4, 8), (50, 100), (1, 2))


@dataclass(frozen=True)
class Sweep:
    """A job measured at several points along an axis; `place` turns a point into a place on the axis."""

    axis: str
    job: str
    points: tuple[int, ...]
    prepare: Callable[[int], Callable[[], list[float]]]
    place: Callable[[int], int] = int


def run(where: Where) -> bool:
    """Shown, not claimed: a chunked prediction takes time, not memory, and on a GPU members cost little."""
    sizes = QUICK if where.quick else SIZES[where.device]
    tally, curves = Tally(where), dict[str, Any]()
    for sweep in _sweeps(where, sizes):
        names = [f"{sweep.job}, {sweep.place(point):,} {sweep.axis}" for point in sweep.points]
        for name, point in zip(names, sweep.points, strict=True):
            tally.add(name, lambda measure: measure(), lambda s=sweep, p=point: s.prepare(p))
        places = {name: sweep.place(point) for name, point in zip(names, sweep.points, strict=True)}
        curves.setdefault(sweep.axis, {})[sweep.job] = [
            {"at": at, "seconds": tally.values[name], "MiB": tally.memory[name]}
            for name, at in places.items()
            if name in tally.values
        ]
    title = f"Growth around 784-{sizes.hidden}-{sizes.hidden}-10, {sizes.draws} draws, {sizes.rows:,} rows"
    notes = {"failed": tally.failures, "precision": sizes.precision, "batch": BATCH}
    return report(where, "growth", title, "s", tally.values, [], memory=tally.memory, curves=curves, notes=notes)


def _sweeps(where: Where, sizes: Sizes) -> list[Sweep]:
    shape = [784, sizes.hidden, sizes.hidden, 10]

    def predict(net: list[int], draws: int, rows: int) -> Callable[[], list[float]]:
        posterior, (x, _) = _posterior(net, draws, where.device), images(rows, where.device)
        return lambda: _rounds(where, lambda: posterior.predict(x, draws, precision=sizes.precision, keep_draws=False))

    def step(method: Any, net: list[int], members: int = 1) -> Callable[[], list[float]]:
        return lambda: _steps(where, sizes, method, net, members)

    def deep(width: int) -> list[int]:
        return [784, width, width, 10]

    return [
        Sweep("draws", "predict", sizes.many_draws, lambda k: predict(shape, k, sizes.rows)),
        Sweep("draws", "variational step", sizes.step_draws, lambda k: step(dubito.Variational(draws=k), shape)),
        Sweep("weights", "predict", sizes.widths, lambda w: predict(deep(w), sizes.draws, sizes.rows), _weights),
        Sweep("weights", "SGLD step", sizes.widths, lambda w: step(_sgld(sizes), deep(w)), _weights),
        Sweep("rows", "predict", sizes.many_rows, lambda n: predict(shape, sizes.draws, n)),
        Sweep("members", "SGLD step", sizes.members, lambda m: step(_sgld(sizes), shape, m)),
        Sweep("members", "ensemble step", sizes.members, lambda m: step(dubito.DeepEnsemble(), shape, m)),
    ]


def _sgld(sizes: Sizes) -> dubito.SGLD:
    return dubito.SGLD(step_size=1e-7, burn_in=0, thin=sizes.steps)


def _weights(width: int) -> int:
    return 785 * width + (width + 1) * width + (width + 1) * 10


def _posterior(net: list[int], draws: int, device: str) -> SamplesPosterior:
    wrapped = dubito.Net(seeded(net).to(device))
    noise = torch.randn(draws, wrapped.layout.size, device=device)
    return SamplesPosterior.of(wrapped, dubito.Categorical(), wrapped.theta() + 0.01 * noise, {}, "chains")


def _rounds(where: Where, predict: Callable[[], object]) -> list[float]:
    predict()
    return [timed(predict, where.device) for _ in range(where.pick(ROUNDS, 1))]


def _steps(where: Where, sizes: Sizes, method: Any, net: list[int], members: int) -> list[float]:
    x, y = images(where.pick(60, 10) * BATCH, where.device)

    def fit(callback):  # type: ignore[no-untyped-def]
        dubito.fit(seeded(net), (x, y), method, steps=sizes.steps, batch_size=BATCH, members=members,
                   device=where.device, precision=sizes.precision, compiled=False, callback=callback,
                   progress=False)  # fmt: skip

    return each_logged_step(fit)
