"""The time of a step, and the numbers that change with it."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from dubito.rng import Rng

Rule: TypeAlias = Callable[[int, int], float]  # a number as a function of the step and of how many there will be
Number: TypeAlias = "float | Tensor"


class Tick(NamedTuple):
    """The time of a step: its number (0-d, from 0), how many there will be, and its random numbers.

    A step that is being recorded for replay has a `recorder`: then no number may be read on the host.
    """

    step: Tensor
    steps: int
    rng: Rng
    recorder: Callable[[Rule], Tensor] | None = None

    @classmethod
    def at(cls, step: int, steps: int, seed: int = 0) -> "Tick":
        """A tick for one's own loop."""
        return cls(torch.tensor(step), steps, Rng(seed, step))

    def number(self, rule: Rule) -> Number:
        """What a rule gives at this step: a float, or a 0-d tensor that a replay finds filled in."""
        return rule(int(self.step), self.steps) if self.recorder is None else self.recorder(rule)


def add_scaled_(out: Tensor, x: Tensor, scale: Number) -> Tensor:
    """out + scale x, in place."""
    return out.addcmul_(x, scale) if isinstance(scale, Tensor) else out.add_(x, alpha=scale)
