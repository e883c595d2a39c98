"""1,000 draws of 784-400-400-10 at 10,000 rows, all in device memory."""

from typing import get_args

import torch

import dubito
from benchmarks.common import Claim, Tally, Where, fcnn2, images, timed
from benchmarks.floors import prediction, recording
from dubito import runtime
from dubito.posteriors.samples import SamplesPosterior

DRAWS, ROWS, AT_A_TIME, ROUNDS = 1_000, 10_000, 50, 5
MOST = 0.25  # seconds


def run(where: Where) -> bool:
    """Under a quarter of a second, with every doubt and, in the first three rows of the table, the draws kept."""
    draws, rows = where.pick(DRAWS, 20), where.pick(ROWS, 50)
    x, _ = images(rows, where.device)
    net = fcnn2(where.quick).to(where.device)
    tally = Tally(where)
    posterior = _posterior(net, draws)
    for precision in get_args(runtime.Precision):
        tally.add(f"dubito, {precision}", lambda p=precision: _rounds(
            where, lambda: posterior.predict(x, draws=draws, precision=p)))  # fmt: skip
    tally.add("dubito, tf32, draws not kept", lambda: _rounds(
        where, lambda: posterior.predict(x, draws=draws, precision="tf32", keep_draws=False)))  # fmt: skip
    held = recording.stacked(net, draws)
    with runtime.precision("tf32", torch.device(where.device)):
        tally.add("floor, tf32", lambda: _rounds(where, prediction.predicting(held, x, where.pick(AT_A_TIME, 10))))
    claims = [
        Claim("tf32: seconds", tally.median("dubito, tf32"), most=MOST),
        Claim("tf32: dubito over the floor", tally.ratio("dubito, tf32", "floor, tf32")),
    ]
    title = f"Prediction, 784-400-400-10, {draws:,} draws x {rows:,} rows"
    return tally.report("predict-draws", title, "s", claims)


def _rounds(where: Where, predict) -> list[float]:  # type: ignore[no-untyped-def]
    predict()
    return [timed(predict, where.device) for _ in range(where.pick(ROUNDS, 1))]


def _posterior(net: torch.nn.Module, draws: int) -> SamplesPosterior:
    wrapped = dubito.Net(net)
    noise = torch.randn(draws, wrapped.layout.size, device=wrapped.device)
    return SamplesPosterior.of(wrapped, dubito.Categorical(), wrapped.theta() + 0.01 * noise, {}, "chains")
