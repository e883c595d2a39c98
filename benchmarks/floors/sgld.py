"""Chains of SGLD on one MLP, side by side."""

import torch
from torch import Tensor, nn

from benchmarks.common import Stepping
from benchmarks.floors.recording import Feed, cross_entropy, fused, outputs, stacked, stepping


def steps(net: nn.Module, x: Tensor, y: Tensor, batch: int, chains: int, step_size: float, std: float) -> Stepping:
    """Products of all chains at once; gradient, prior, noise and update fused."""
    held = [p.requires_grad_() for p in stacked(net, chains)]
    feed, scale = Feed(x, y, batch), len(x)
    density = fused(lambda parameters, rows, labels: cross_entropy(outputs(parameters, rows), labels), x.device)

    def update(parameters: list[Tensor], grads: list[Tensor]) -> None:
        for p, g in zip(parameters, grads, strict=True):
            drift = g * scale + p / std**2
            p.add_(step_size**0.5 * torch.randn_like(p) - step_size / 2 * drift)

    move = fused(update, x.device)

    def step() -> None:
        grads = torch.autograd.grad(density(held, feed.x, feed.y), held)
        with torch.no_grad():
            move(held, list(grads))

    return stepping(step, feed, x.device)
