"""100-draw prediction through `posterior.predict`, against a Python loop over draws of weights or of masks."""

from collections.abc import Callable
from statistics import median

import torch
from torch.func import functional_call

import dubito
from benchmarks.common import Claim, Where, fcnn1, fcnn2, images, report, take_turns
from dubito.nn import small_cnn
from dubito.posteriors.dropout import DropoutPosterior
from dubito.posteriors.samples import SamplesPosterior

DRAWS, ROWS, FEWER = 100, 10_000, 1_000  # rows, and those of convolutions
DROPPED = "convolutions, dropout before the last layer"


def run(where: Where) -> bool:
    """Never slower, although it also counts votes, spreads and entropies."""
    device, count, rounds = where.device, where.pick(ROWS, 100), where.pick(5, 1)
    x, _ = images(count, device)
    values, claims = {}, []
    nets = {"784-100-10": fcnn1(), "784-400-400-10": fcnn2(), DROPPED: small_cnn(dropout=0.5)}
    for label, net in nets.items():
        seconds = take_turns(_candidates(label, net.to(device), x), rounds, device)
        values.update(seconds)
        loop, ours = (median(s) for s in seconds.values())
        claims.append(Claim(f"{label}: dubito against the loop", loop / ours, 1.0))
    return report(where, "predict-draws", f"Prediction, {DRAWS} draws x {count:,} rows", "s", values, claims)


def _candidates(label: str, net: torch.nn.Module, x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The loop, and ours."""
    if label == DROPPED:
        few, wrapped = x[:FEWER], dubito.Net(net)
        dropout = DropoutPosterior.of(wrapped, dubito.Categorical(), wrapped.theta().unsqueeze(0), {})
        return {
            f"loop, {label}": lambda: _masked_loop(net, few),
            f"dubito, {label}": lambda: dropout.predict(few, draws=DRAWS),
        }
    posterior = _posterior(net)
    weights = posterior.sample(DRAWS)
    return {
        f"loop, {label}": lambda: _loop(net, weights, x),
        f"dubito, {label}": lambda: posterior.predict(x, draws=DRAWS),
    }


def _posterior(net: torch.nn.Module) -> SamplesPosterior:
    wrapped = dubito.Net(net)
    noise = torch.randn(DRAWS, wrapped.layout.size, generator=torch.Generator().manual_seed(0)).to(wrapped.device)
    return SamplesPosterior.of(wrapped, dubito.Categorical(), wrapped.theta() + 0.01 * noise, {}, "chains")


@torch.no_grad()
def _loop(net: torch.nn.Module, weights: dict[str, torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What people write: one draw after another, then averages and BALD."""
    return _averaged([functional_call(net, {n: w[s] for n, w in weights.items()}, x) for s in range(DRAWS)])


@torch.no_grad()
def _masked_loop(net: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What people write: the network in training mode, again and again."""
    net.train()
    return _averaged([net(x) for _ in range(DRAWS)])


def _averaged(outputs: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    probs = torch.stack(outputs).softmax(-1)
    mean = probs.mean(0)
    expected = torch.special.entr(probs).sum(-1).mean(0)
    return mean, torch.special.entr(mean).sum(-1) - expected
