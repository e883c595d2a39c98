"""WGAN-GP distillation of 784-100-10 into a generator of width 100, batch 100: generator iterations per second."""

import torch

import dubito
from benchmarks.common import Claim, Tally, Where, each_logged_step, each_step, fcnn1, rates
from benchmarks.floors import distillation
from dubito import distill, runtime
from dubito.posteriors.samples import SamplesPosterior
from dubito.runtime import Precision

SAMPLES, WIDTHS, NOISE, BATCH = 1_000, (100, 100, 100), 32, 100
LEAST = 200.0  # iterations per second, each with five steps of the critic


def run(where: Where) -> bool:
    """Fast enough for the paper's 100,000 iterations in under nine minutes."""
    net = dubito.Net(fcnn1(where.quick).to(where.device))
    noise = torch.randn(where.pick(SAMPLES, 20), net.layout.size, device=net.device)
    posterior = SamplesPosterior.of(net, dubito.Categorical(), net.theta() + 0.01 * noise, {}, "chains")
    tally = Tally(where)
    tally.add("dubito, float32", lambda: _ours(where, posterior, "float32", False))
    tally.add("dubito, tf32", lambda: _ours(where, posterior, "tf32", False))
    tally.add("dubito, tf32, compiled", lambda: _ours(where, posterior, "tf32", True))
    with runtime.precision("tf32", torch.device(where.device)):
        tally.add("floor, tf32", lambda: _floor(where, noise))
    claims = [
        Claim("float32: iterations per second", tally.median("dubito, float32")),
        Claim("tf32: iterations per second", tally.median("dubito, tf32")),
        Claim("tf32, compiled: iterations per second", tally.median("dubito, tf32, compiled"), LEAST),
        Claim("tf32: the floor's rate over that of the compiled", tally.ratio("floor, tf32", "dubito, tf32, compiled")),
    ]
    return tally.report("distillation", "WGAN-GP of 79,510 weights, width 100, batch 100", "iterations/s", claims)


def _ours(where: Where, posterior: SamplesPosterior, precision: Precision, compiled: bool) -> list[float]:
    settings = distill.Adversarial(widths=WIDTHS, noise=NOISE, batch_size=where.pick(BATCH, 4))

    def run(callback):  # type: ignore[no-untyped-def]
        distill.adversarial(posterior, settings, steps=where.pick(2000, 20), callback=callback, device=where.device,
                            precision=precision, compiled=compiled, progress=False)  # fmt: skip

    return rates(each_logged_step(run), 1)


def _floor(where: Where, bank: torch.Tensor) -> list[float]:
    take = distillation.iterations(bank, list(WIDTHS), NOISE, where.pick(BATCH, 4))
    return rates(each_step(take, where.pick(1000, 10), where.device), 1)
