"""Sparse variational dropout on a chain of layers, with local reparameterisation."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import Stepping
from benchmarks.floors.recording import Feed, descent, fused, stepping

K1, K2, K3 = 0.63576, 1.87320, 1.48695  # of the fit to KL(alpha), Molchanov et al. 2017, eq. 14
THRESHOLD, TINY = 3.0, 1e-8


def steps(net: nn.Sequential, x: Tensor, y: Tensor, batch: int, compiled: bool) -> Stepping:
    """Two products or convolutions for every layer with weights, noise on its outputs, KL of alpha, fused Adam."""
    layers = list(copy.deepcopy(net).train())
    noisy = [m for m in layers if isinstance(m, nn.Linear | nn.Conv2d)]
    spreads = [torch.full_like(m.weight, -10.0).requires_grad_() for m in noisy]
    feed, n = Feed(x, y, batch), len(x)

    def loss(rows: Tensor, labels: Tensor) -> Tensor:
        h, kl, held = rows, rows.new_zeros(()), iter(spreads)
        for layer in layers:
            if isinstance(layer, nn.Linear | nn.Conv2d):
                h, more = _noisy(layer, next(held), h)
                kl = kl + more
            else:
                h = layer(h)
        return F.cross_entropy(h, labels) + kl / n

    quick = fused(loss, x.device) if compiled else loss
    parameters = [*(p for m in layers for p in m.parameters()), *spreads]
    return stepping(descent(lambda: quick(feed.x, feed.y), parameters, x.device), feed, x.device)


def _noisy(layer: nn.Linear | nn.Conv2d, spread: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs with their noise, and the KL of the layer."""
    log_alpha = spread - torch.log(layer.weight.square() + TINY)
    weight = layer.weight * (log_alpha <= THRESHOLD)
    if isinstance(layer, nn.Conv2d):
        mean = F.conv2d(h, weight, layer.bias, padding=layer.padding)
        variance = F.conv2d(h * h, spread.exp(), padding=layer.padding)
    else:
        mean, variance = F.linear(h, weight, layer.bias), F.linear(h * h, spread.exp())
    kl = -(K1 * torch.sigmoid(K2 + K3 * log_alpha) - 0.5 * F.softplus(-log_alpha)).sum()
    return mean + (variance + TINY).sqrt() * torch.randn_like(mean), kl
