"""A sixteen-member deep ensemble of 784-400-400-10 against one member."""

import torch

import dubito
from benchmarks.common import Claim, Tally, Where, each_logged_step, each_step, fcnn2, images
from benchmarks.floors import ensemble
from dubito import runtime

ROWS, BATCH, MEMBERS = 60_000, 100, 16
MOST = 4.0  # times the time of one member


def run(where: Where) -> bool:
    """Sixteen for the time of four at most."""
    x, y = images(where.pick(ROWS, 400), where.device)
    net = fcnn2(where.quick).to(where.device)
    members = where.pick(MEMBERS, 2)
    tally = Tally(where)
    with runtime.precision("tf32", torch.device(where.device)):
        for count in (1, members):
            tally.add(f"dubito, {count}", lambda m=count: _ours(where, net, x, y, m))
            tally.add(f"floor, {count}", lambda m=count: _floor(where, net, x, y, m))
    claims = [
        Claim(f"{members} members over one", tally.ratio(f"dubito, {members}", "dubito, 1"), most=MOST),
        *(
            Claim(f"{m} member(s): dubito over the floor", tally.ratio(f"dubito, {m}", f"floor, {m}"))
            for m in (1, members)
        ),
    ]
    return tally.report("ensemble", "A step of a deep ensemble, 784-400-400-10, batch 100, tf32", "ms", claims)


def _ours(where: Where, net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, members: int) -> list[float]:
    def fit(callback):  # type: ignore[no-untyped-def]
        dubito.fit(net, (x, y), dubito.DeepEnsemble(), steps=where.pick(10_000, 30), batch_size=BATCH,
                   members=members, device=where.device, precision="tf32", compiled=True, callback=callback,
                   progress=False)  # fmt: skip

    return [1e3 * s for s in each_logged_step(fit)]


def _floor(where: Where, net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, members: int) -> list[float]:
    take = ensemble.steps(net, x, y, BATCH, members)
    return [1e3 * s for s in each_step(take, where.pick(5000, 20), where.device)]
