"""SGLD steps per second on 784-400-400-10, batch 100, through `dubito.fit`, against the library posteriors."""

from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

import dubito
from benchmarks.common import Claim, fcnn2, images, rates, report, take_turns

ROWS, BATCH, STEP, STD = 50_000, 100, 1e-6, 0.141


def run(device: str, folder: Path, steps: int = 100, rounds: int = 7) -> bool:
    """One chain must not be slower than the peer; four chains at least 1.3 times faster per chain and step."""
    x, y = images(ROWS, device)
    net = fcnn2().to(device)

    def ours(chains: int) -> None:
        method = dubito.SGLD(step_size=STEP, burn_in=0, thin=steps)
        dubito.fit(net, (x, y), method, prior=dubito.Normal(STD), steps=steps, batch_size=BATCH, members=chains,
                   device=device, progress=False)  # fmt: skip

    seconds = take_turns({"posteriors": lambda: _peer(net, x, y, steps), "dubito": lambda: ours(1),
                          "dubito, 4 chains": lambda: ours(4)}, rounds, device)  # fmt: skip
    work = {"posteriors": steps, "dubito": steps, "dubito, 4 chains": 4 * steps}
    values = {name: rates(s, work[name]) for name, s in seconds.items()}
    peer, one, four = (median(v) for v in values.values())
    claims = [
        Claim("one chain against posteriors", one / peer, 1.0),
        Claim("four chains against posteriors, per chain-step", four / peer, 1.3),
    ]
    return report("sgld-steps", "SGLD, 784-400-400-10, batch 100", "chain-steps/s", values, claims, folder)


def _peer(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> None:
    """The same chain in the library posteriors, in place, with its batches gathered from a shuffled order too."""
    import posteriors

    params = {name: p.detach().clone() for name, p in net.named_parameters()}

    def log_posterior(params, batch):  # type: ignore[no-untyped-def]
        outputs = torch.func.functional_call(net, params, batch[0])
        prior = posteriors.diag_normal_log_prob(params, sd_diag=STD)
        return -F.cross_entropy(outputs, batch[1]) + prior / ROWS, outputs

    transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=STEP, temperature=1 / ROWS)
    state = transform.init(params)
    order = torch.randperm(ROWS, device=x.device)
    for step in range(steps):
        index = order[step * BATCH : (step + 1) * BATCH]
        state, _ = transform.update(state, (x[index], y[index]), inplace=True)
