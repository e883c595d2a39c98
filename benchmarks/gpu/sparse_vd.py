"""An epoch of Sparse VD: LeNet-5 on 60,000 digits, and the VGG-like network on 50,000 colour images."""

from dataclasses import dataclass

import torch
from torch import nn

import dubito
from benchmarks.common import Claim, Tally, Where, each_logged_step, each_step, images
from benchmarks.floors import sparse
from dubito import runtime
from dubito.nn import lenet5, small_cnn, vgg
from dubito.studies.sparsity import PRIOR

BATCH = 100


@dataclass(frozen=True)
class Job:
    """A network, its rows, how many steps are timed, whether they are compiled, and the seconds an epoch may take.

    One without a limit is only shown, and one that is timed twice has its floor beside the first.
    """

    net: nn.Module
    shape: tuple[int, ...]
    rows: int
    steps: int
    compiled: bool
    most: float | None
    floor: bool = True


def run(where: Where) -> bool:
    """An epoch of LeNet-5 in under a second, one of the VGG-like network in under five."""
    torch.manual_seed(0)
    jobs = {
        "LeNet-5": Job(lenet5(), (784,), 60_000, 3000, True, 1.0),
        "VGG": Job(vgg(), (3, 32, 32), 50_000, 800, False, None),
        "VGG, compiled": Job(vgg(), (3, 32, 32), 50_000, 800, True, 5.0, floor=False),
    }
    if where.quick:
        jobs = {"small": Job(small_cnn(channels=[2, 2], hidden=4), (784,), 600, 20, True, 60.0)}
    tally = Tally(where)
    for name, job in jobs.items():
        x, y = images(job.rows, where.device, job.shape)
        with runtime.precision("tf32", torch.device(where.device)):
            tally.add(f"dubito, {name}", lambda j=job, x=x, y=y: _ours(where, j, x, y))
            if job.floor:
                tally.add(f"floor, {name}", lambda j=job, x=x, y=y: _floor(where, j, x, y))
    claims = []
    for name, job in jobs.items():
        ours = tally.median(f"dubito, {name}")
        claims.append(Claim(f"{name}: seconds per epoch of {job.rows:,}", ours, most=job.most))
        if job.floor:
            ratio = tally.ratio(f"dubito, {name}", f"floor, {name}")
            claims.append(Claim(f"{name}: dubito over the floor", ratio))
    return tally.report("sparse-vd", "An epoch of Sparse VD, batch 100, tf32", "s", claims)


def _ours(where: Where, job: Job, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    def fit(callback):  # type: ignore[no-untyped-def]
        dubito.fit(job.net, (x, y), dubito.SparseVD(), prior=PRIOR, steps=job.steps, batch_size=BATCH,
                   device=where.device, precision="tf32", compiled=job.compiled, callback=callback,
                   progress=False)  # fmt: skip

    return _epochs(each_logged_step(fit), job)


def _floor(where: Where, job: Job, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    if not isinstance(job.net, nn.Sequential):
        raise TypeError("the floor is written for chains of layers")
    take = sparse.steps(job.net.to(where.device), x, y, BATCH, job.compiled)
    return _epochs(each_step(take, job.steps // 2, where.device), job)


def _epochs(seconds: list[float], job: Job) -> list[float]:
    return [s * (job.rows // BATCH) for s in seconds]
