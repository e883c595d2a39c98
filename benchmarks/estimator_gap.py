"""Where local reparameterisation is approximate, how far its gradient lies from that of whole weight draws."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dubito
from benchmarks.common import Claim, Where, report
from dubito.net import Net
from dubito.noisy import Estimator
from dubito.priors import assign
from dubito.rng import Rng
from dubito.target import Batch, Target

SEEDS, ROWS = 4000, 16
SCALES = (0.1, 1.0)  # of the weights' own root mean square
SEEN = 4  # standard errors above which a gap is not chance
NETS = {
    "64-16-10": "64-16-10, acts once per example",
    "convolutions": "two 3x3 convolutions and two linear maps",
    "attention": "self-attention over the rows, from linear maps",
}


class Attention(nn.Module):
    """Self-attention over the rows of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1, 2)
        return self.head(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)).mean(1))


def run(where: Where) -> bool:
    """Exact where a weight acts once per example and by flipout everywhere; the rest is shown."""
    device, seeds = where.device, where.pick(SEEDS, 250)
    data = dubito.data.load("digits").part("train")
    batch = Batch(data.x[:ROWS].to(device), data.y[:ROWS].to(device), torch.arange(ROWS))
    torch.manual_seed(0)
    nets = {
        "64-16-10": nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)),
        "convolutions": dubito.nn.small_cnn(side=8, channels=(4, 4), hidden=8),
        "attention": Attention(),
    }
    values, claims = {}, []
    for label, net in nets.items():
        for scale in SCALES:
            gaps = {e: _gap(net.to(device), batch, scale, e, seeds) for e in ("local", "flipout")}
            for estimator, (gap, error, ratio) in gaps.items():
                values[f"{label}, std {scale:g}, {estimator}: relative gap"] = [gap]
                values[f"{label}, std {scale:g}, {estimator}: a gap by chance"] = [error]
                values[f"{label}, std {scale:g}, {estimator}: variance"] = [ratio]
                if estimator == "flipout" or label == "64-16-10":
                    what = f"{label}, std {scale:g}, {estimator}: four standard errors over the gap"
                    claims.append(Claim(what, SEEN * error / max(gap, error), 1.0))
    title = f"Gradients against whole weight draws, {seeds:,} draws, {ROWS} digits; variance as a share of theirs"
    return report(where, "estimator-gap", title, "", values, claims)


def _gap(net: nn.Module, batch: Batch, scale: float, estimator: Estimator, seeds: int) -> tuple[float, float, float]:
    """|E g - E g'| / |E g'| without the share of chance, its standard error, and the ratio of total variances."""
    target = Target(Net(net), dubito.Categorical(), assign(None, net), len(batch.y))
    (mean, variance), (other, spread) = (_moments(target, batch, scale, e, seeds) for e in (estimator, "weights"))
    noise = float((variance + spread).sum() / seeds)
    squared, size = float((mean - other).square().sum()) - noise, float(other.norm())
    error = float(
        ((variance + spread) / seeds).square().sum().mul(2).sqrt()
    )  # of the squared distance, by chance alone
    return max(0.0, squared) ** 0.5 / size, error**0.5 / size, float(variance.sum() / spread.sum())


@torch.no_grad()
def _moments(target: Target, batch: Batch, scale: float, estimator: Estimator, seeds: int) -> tuple[Tensor, Tensor]:
    """Mean and variance over draws of the gradient by means and by stds, (2 D,) each."""
    net = target.net
    stds = {n: torch.full_like(p, scale * float(p.square().mean().sqrt())) for n, p in net.module.named_parameters()}
    total = square = torch.zeros((), dtype=torch.float64, device=net.device)
    chunk = 250
    for number in range(seeds // chunk):
        mean, std = (t.expand(chunk, -1) for t in (net.theta(), net.layout.join(stds)))
        rng = Rng(number).child(estimator)
        if estimator == "weights":
            eps = rng.normal_(torch.empty_like(mean, memory_format=torch.contiguous_format), "weights")
            _, grad = target.lik_value_and_grad(mean + std * eps, batch, "live", {})
            found = torch.cat([grad, grad * eps], dim=1).double()
        else:
            scheme = net.scheme(batch.x, target.random, estimator)
            noise = net.noise(scheme, batch.x, chunk, 1, rng)
            _, by_mean, by_std = target.noisy_value_and_grad(mean, std, batch, scheme, noise, "live", {})
            found = torch.cat([*by_mean, *by_std], dim=1).double()
        total, square = total + found.sum(0), square + found.square().sum(0)
    return total / seeds, square / seeds - (total / seeds).square()
