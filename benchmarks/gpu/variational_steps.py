"""Local reparameterisation on 784-800-800-10, batch 128, at one draw and at ten."""

import torch

import dubito
from benchmarks import peers
from benchmarks.common import Claim, Tally, Where, each_logged_step, each_step, images, seeded
from benchmarks.floors import variational
from benchmarks.peers import Step
from dubito import runtime

SIZES, BATCH, ROWS, STD = [784, 800, 800, 10], 128, 60_000, 0.1
DRAWS = (1, 10)
LEAST = {1: 10.0, 10: 60.0}  # times faster than bayesian-torch
MOST = 1.25  # times the floor


def run(where: Where) -> bool:
    """Within a quarter of the floor; many times faster than bayesian-torch as its own examples write the loop."""
    sizes = [784, 8, 8, 10] if where.quick else SIZES
    x, y = images(where.pick(ROWS, 600), where.device)
    tally = Tally(where)
    with runtime.precision("tf32", torch.device(where.device)):
        for draws in DRAWS:
            tally.add(f"dubito, {draws}", lambda k=draws: _ours(where, sizes, x, y, k))
            tally.add(f"floor, {draws}", lambda k=draws: _floor(where, sizes, x, y, k))
            for name, make in _peers(sizes, x[:BATCH], y[:BATCH], draws).items():
                tally.add(f"{name}, {draws}", lambda m=make: _peer(where, m()))
    claims = [
        Claim(f"{k} draw(s): dubito over the floor", tally.ratio(f"dubito, {k}", f"floor, {k}"), most=MOST)
        for k in DRAWS
    ]
    claims += [_against(tally, "bayesian-torch", k, LEAST[k]) for k in DRAWS if f"bayesian-torch, {k}" in tally.values]
    others = ("bayesian-torch, one KL", "torchbnn")
    claims += [_against(tally, peer, k, None) for peer in others for k in DRAWS if f"{peer}, {k}" in tally.values]
    title = f"A step of local reparameterisation, {'-'.join(map(str, sizes))}, batch {BATCH}, tf32"
    return tally.report("variational-steps", title, "ms", claims)


def _against(tally: Tally, peer: str, draws: int, least: float | None) -> Claim:
    ratio = tally.ratio(f"{peer}, {draws}", f"dubito, {draws}")
    return Claim(f"{draws} draw(s): {peer} over dubito", ratio, least)


def _ours(where: Where, sizes: list[int], x: torch.Tensor, y: torch.Tensor, draws: int) -> list[float]:
    def fit(callback):  # type: ignore[no-untyped-def]
        method = dubito.Variational(draws=draws)
        dubito.fit(seeded(sizes), (x, y), method, prior=dubito.Normal(STD), steps=where.pick(10_000, 30),
                   batch_size=BATCH, device=where.device, precision="tf32", compiled=True, callback=callback,
                   progress=False)  # fmt: skip

    return _milliseconds(each_logged_step(fit))


def _floor(where: Where, sizes: list[int], x: torch.Tensor, y: torch.Tensor, draws: int) -> list[float]:
    take = variational.steps(sizes, x, y, BATCH, draws, STD)
    return _milliseconds(each_step(take, where.pick(4000, 20), where.device))


def _peers(sizes: list[int], x: torch.Tensor, y: torch.Tensor, draws: int):  # type: ignore[no-untyped-def]
    """Each on one batch, under the Adam that torch takes by itself."""
    common = (sizes, draws, x, y, ROWS, STD)
    return {
        "bayesian-torch": lambda: peers.bayesian_torch(*common, each=True, fused=None),
        "bayesian-torch, one KL": lambda: peers.bayesian_torch(*common, each=False, fused=None),
        "torchbnn": lambda: peers.torchbnn(*common, fused=None),
    }


def _peer(where: Where, step: Step) -> list[float]:
    return _milliseconds(each_step(lambda steps: [step() for _ in range(steps)], where.pick(60, 10), where.device))


def _milliseconds(seconds: list[float]) -> list[float]:
    return [1e3 * s for s in seconds]
