"""Bayes by Backprop with local reparameterisation on an MLP."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common import Stepping
from benchmarks.floors.recording import Feed, descent, fused, stepping


def steps(sizes: list[int], x: Tensor, y: Tensor, batch: int, draws: int, std: float) -> Stepping:
    """The first layer's moments do not depend on the draw, and later layers are one tall product for all draws."""
    means, spreads = _parameters(sizes, x.device)
    feed, n = Feed(x, y, batch), len(x)

    def loss(means: list[Tensor], spreads: list[Tensor], rows: Tensor, labels: Tensor) -> Tensor:
        h = rows
        for layer in range(0, len(means), 2):
            mean = F.linear(h, means[layer], means[layer + 1])
            variance = F.linear(h * h, (2 * spreads[layer]).exp(), (2 * spreads[layer + 1]).exp())
            if layer == 0:
                mean, variance = mean.repeat(draws, 1), variance.repeat(draws, 1)
            h = mean + variance.sqrt() * torch.randn_like(mean)
            h = F.relu(h) if layer + 2 < len(means) else h
        return F.cross_entropy(h, labels.repeat(draws)) + _divergence(means, spreads, std) / n

    quick = fused(loss, x.device)
    step = descent(lambda: quick(means, spreads, feed.x, feed.y), [*means, *spreads], x.device)
    return stepping(step, feed, x.device)


def _parameters(sizes: list[int], device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
    means = []
    for before, after in pairwise(sizes):
        means += [torch.randn(after, before, device=device) * before**-0.5, torch.zeros(after, device=device)]
    spreads = [torch.full_like(m, -4.6) for m in means]
    return [m.requires_grad_() for m in means], [s.requires_grad_() for s in spreads]


def _divergence(means: list[Tensor], spreads: list[Tensor], std: float) -> Tensor:
    """KL of a factorised Gaussian from N(0, std^2), up to a constant."""
    parts = [((m * m + (2 * s).exp()) / (2 * std**2) - s).sum() for m, s in zip(means, spreads, strict=True)]
    return torch.stack(parts).sum()
