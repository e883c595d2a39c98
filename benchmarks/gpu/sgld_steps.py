"""SGLD on 784-400-400-10, batch 100, with one chain and with 64."""

import torch

import dubito
from benchmarks import peers
from benchmarks.common import (
    Claim,
    Tally,
    Where,
    each_logged_step,
    each_step,
    fcnn2,
    images,
    rates,
)
from benchmarks.floors import sgld
from dubito import runtime

ROWS, BATCH, STEP, STD = 60_000, 100, 1e-6, 0.141
STEPS = {1: 40_000, 64: 5_000}  # of each number of chains
MOST = 1.25  # times the floor's time per step


def run(where: Where) -> bool:
    """Within a quarter of the floor, one chain and many."""
    x, y = images(where.pick(ROWS, 400), where.device)
    net = fcnn2(where.quick).to(where.device)
    tally = Tally(where)
    counts = {1: 60, 3: 60} if where.quick else STEPS
    with runtime.precision("tf32", torch.device(where.device)):
        for chains, steps in counts.items():
            tally.add(f"dubito, {chains}", lambda c=chains, s=steps: _ours(where, net, x, y, c, s))
            tally.add(f"floor, {chains}", lambda c=chains, s=steps: _floor(where, net, x, y, c, s))
        tally.add("posteriors, 1", lambda: _peer(where, net, x, y))
    claims = [
        Claim(f"{c} chain(s): time over the floor's", tally.ratio(f"floor, {c}", f"dubito, {c}"), most=MOST)
        for c in counts
    ]
    if "posteriors, 1" in tally.values:
        claims.append(Claim("1 chain: against posteriors", tally.ratio("dubito, 1", "posteriors, 1"), 1.0))
    return tally.report("sgld-steps", "SGLD, 784-400-400-10, batch 100, tf32", "chain-steps/s", claims)


def _ours(where: Where, net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, chains: int, steps: int) -> list[float]:
    def fit(callback):  # type: ignore[no-untyped-def]
        method = dubito.SGLD(step_size=STEP, burn_in=0, thin=steps)
        dubito.fit(net, (x, y), method, prior=dubito.Normal(STD), steps=steps, batch_size=BATCH, members=chains,
                   device=where.device, precision="tf32", compiled=True, callback=callback, progress=False)  # fmt: skip

    return rates(each_logged_step(fit), chains)


def _floor(
    where: Where, net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, chains: int, steps: int
) -> list[float]:
    take = sgld.steps(net, x, y, BATCH, chains, STEP, STD)
    return rates(each_step(take, steps // 2, where.device), chains)


def _peer(where: Where, net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    take = peers.posteriors_sgld(net, x, y, BATCH, STEP, STD)
    return rates(each_step(take, where.pick(1000, 10), where.device), 1)
