"""100-draw prediction on 10,000 rows through `posterior.predict`, against a Python loop over draws."""

from statistics import median

import torch
from torch.func import functional_call

import dubito
from benchmarks.common import Claim, Where, fcnn1, fcnn2, images, report, take_turns
from dubito.posteriors.samples import SamplesPosterior

DRAWS, ROWS = 100, 10_000


def run(where: Where) -> bool:
    """Never slower, although it also counts votes, spreads and entropies."""
    device, count, rounds = where.device, where.pick(ROWS, 100), where.pick(5, 1)
    x, _ = images(count, device)
    values, claims = {}, []
    for label, net in {"784-100-10": fcnn1(), "784-400-400-10": fcnn2()}.items():
        posterior = _posterior(net.to(device))
        weights = posterior.sample(DRAWS)
        candidates = {
            f"loop, {label}": lambda n=net, w=weights: _loop(n, w, x),
            f"dubito, {label}": lambda p=posterior: p.predict(x, draws=DRAWS),
        }
        seconds = take_turns(candidates, rounds, device)
        values.update(seconds)
        loop, ours = (median(s) for s in seconds.values())
        claims.append(Claim(f"{label}: dubito against the loop", loop / ours, 1.0))
    return report(where, "predict-draws", f"Prediction, {DRAWS} draws x {count:,} rows", "s", values, claims)


def _posterior(net: torch.nn.Module) -> SamplesPosterior:
    wrapped = dubito.Net(net)
    noise = torch.randn(DRAWS, wrapped.layout.size, generator=torch.Generator().manual_seed(0)).to(wrapped.device)
    return SamplesPosterior.of(wrapped, dubito.Categorical(), wrapped.theta() + 0.01 * noise, {}, "chains")


@torch.no_grad()
def _loop(net: torch.nn.Module, weights: dict[str, torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What people write: one draw after another, then averages and BALD."""
    draws = [functional_call(net, {n: w[s] for n, w in weights.items()}, x).softmax(-1) for s in range(DRAWS)]
    probs = torch.stack(draws)
    mean = probs.mean(0)
    expected = torch.special.entr(probs).sum(-1).mean(0)
    return mean, torch.special.entr(mean).sum(-1) - expected
