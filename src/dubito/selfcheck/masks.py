"""Every dropout mask there is, with its probability, and expectations over them."""

import itertools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

RATE = 0.1  # of dropout, where the method drops; where it learns to, at the start
CELLS, ENDS = 24, 8.0  # of relaxed masks: how many, and where in units of the temperature they are 0 and 1


class Masked(NamedTuple):
    """What every mask multiplies each unit by, (masks, units), and its probability."""

    keep: Tensor
    weight: Tensor


class Dropping(NamedTuple):
    """Dropout of a rate, under which `draws` masks answer for a datum together by an alpha-divergence.

    A relaxation above 0 lets masks lie between 0 and 1.
    """

    rate: float | Tensor = 0.0
    alpha: float = 0.0
    draws: int = 1
    relaxation: float = 0.0


STILL = Dropping()


def masks(units: int, how: Dropping) -> Masked:
    """All patterns of what a unit can be, scaled by 1 / (1 - rate); at rate 0 the one that keeps everything."""
    if isinstance(how.rate, float) and how.rate == 0:
        return Masked(torch.ones(1, units, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    value, chance = _levels(torch.as_tensor(how.rate, dtype=torch.float64), how.relaxation)
    index = torch.tensor(list(itertools.product(range(len(value)), repeat=units)))
    return Masked(value[index] / (1 - how.rate), chance[index].prod(1))


def _levels(rate: Tensor, relaxation: float) -> tuple[Tensor, Tensor]:
    """What one unit can be, and how probably: 0 or 1, or one of several cells of the concrete distribution.

    keep = sigmoid(s) where logit p + relaxation s is logistic, so that a cell of s has a closed probability.
    """
    if not relaxation:
        return torch.tensor([0.0, 1.0], dtype=torch.float64), torch.stack([rate, 1 - rate])
    edges = torch.linspace(-ENDS, ENDS, CELLS + 1, dtype=torch.float64)
    below = (rate.logit() + relaxation * edges).sigmoid()
    chance = torch.diff(below, prepend=below.new_zeros(1), append=below.new_ones(1))
    middle = ((edges[:-1] + edges[1:]) / 2).sigmoid()
    return torch.cat([middle.new_zeros(1), middle, middle.new_ones(1)]), chance


def expected(log_lik: Tensor, weight: Tensor, how: Dropping) -> Tensor:
    """(N,): what the drawn masks say of each datum together, averaged over every way of drawing them.

    It depends on how often each mask is drawn alone: a sum over the multinomial's counts.
    """
    if how.alpha == 0 or how.draws == 1 or len(weight) == 1:
        return weight @ log_lik
    counts = _counts(len(weight), how.draws)
    log_chance = torch.lgamma(counts.sum(1) + 1) - torch.lgamma(counts + 1).sum(1) + counts @ weight.log()
    joined = torch.logsumexp((counts / how.draws).log().unsqueeze(2) + how.alpha * log_lik, 1) / how.alpha
    return log_chance.exp() @ joined


def _counts(kinds: int, draws: int) -> Tensor:
    """Every way in which so many draws fall among so many kinds, (ways, kinds)."""
    bars = itertools.combinations(range(draws + kinds - 1), kinds - 1)
    ways = [np.diff([-1, *bar, draws + kinds - 1]) - 1 for bar in bars]
    return torch.from_numpy(np.array(ways)).double()
