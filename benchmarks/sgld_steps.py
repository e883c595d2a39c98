"""SGLD steps per second on 784-400-400-10, batch 100, through `dubito.fit`, against the library posteriors."""

from statistics import median

import dubito
from benchmarks import peers
from benchmarks.common import Claim, Where, fcnn2, images, rates, report, take_turns

ROWS, BATCH, STEP, STD = 50_000, 100, 1e-6, 0.141


def run(where: Where) -> bool:
    """One chain must not be slower than the peer; four chains at least 1.3 times faster per chain and step."""
    device, steps, rounds = where.device, where.pick(100, 2), where.pick(7, 1)
    x, y = images(where.pick(ROWS, 500), device)
    net = fcnn2().to(device)

    def ours(chains: int) -> None:
        method = dubito.SGLD(step_size=STEP, burn_in=0, thin=steps)
        dubito.fit(net, (x, y), method, prior=dubito.Normal(STD), steps=steps, batch_size=BATCH, members=chains,
                   device=device, progress=False)  # fmt: skip

    def peer() -> None:
        peers.posteriors_sgld(net, x, y, BATCH, STEP, STD)(steps)

    candidates = {"posteriors": peer, "dubito": lambda: ours(1), "dubito, 4 chains": lambda: ours(4)}
    seconds = take_turns(candidates, rounds, device)
    work = {"posteriors": steps, "dubito": steps, "dubito, 4 chains": 4 * steps}
    values = {name: rates(s, work[name]) for name, s in seconds.items()}
    peer, one, four = (median(v) for v in values.values())
    claims = [
        Claim("one chain against posteriors", one / peer, 1.0),
        Claim("four chains against posteriors, per chain-step", four / peer, 1.3),
    ]
    return report(where, "sgld-steps", "SGLD, 784-400-400-10, batch 100", "chain-steps/s", values, claims)
