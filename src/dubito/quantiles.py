"""Quantiles: of draws, and of a distribution given by its distribution function."""

from collections.abc import Callable

import torch
from torch import Tensor

BISECTIONS = 60
DOUBLINGS = 60


def of_draws(draws: Tensor, q: float) -> Tensor:
    """The q-quantile along the first axis, linear between order statistics; of any size, unlike torch.quantile."""
    place = q * (len(draws) - 1)
    below = int(place)
    ordered = draws.sort(0).values
    return torch.lerp(ordered[below], ordered[min(below + 1, len(draws) - 1)], place - below)


def invert(cdf: Callable[[Tensor], Tensor], q: float, low: Tensor, high: Tensor) -> Tensor:
    """The smallest y with cdf(y) >= q, elementwise, by bisection of a bracket that is widened until it holds y."""
    for _ in range(DOUBLINGS):
        short, long = cdf(high) < q, cdf(low) >= q
        if not bool((short | long).any()):
            break
        width = (high - low).clamp_min(torch.finfo(low.dtype).tiny)
        low, high = torch.where(long, low - width, low), torch.where(short, high + width, high)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        below = cdf(middle) < q
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high
