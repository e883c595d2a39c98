"""The time of a step, and the numbers that change with it."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from dubito.rng import Rng

Rule: TypeAlias = Callable[[int, int], float]  # a number as a function of the step and of how many there will be
Number: TypeAlias = "float | Tensor"


class Tick(NamedTuple):
    """The time of a step: its number (0-d, from 0), how many there will be, and its random numbers.

    A step that is being recorded for replay has a `recorder`: then no number may be read on the host, and `kind` is
    what its method says of all steps that the recording will stand for.
    """

    step: Tensor
    steps: int
    rng: Rng
    recorder: Callable[[Rule], Tensor] | None = None
    kind: Any = None

    @classmethod
    def at(cls, step: int, steps: int, seed: int = 0) -> "Tick":
        """A tick for one's own loop."""
        return cls(torch.tensor(step), steps, Rng(seed, step))

    def number(self, rule: Rule) -> Number:
        """What a rule gives at this step: a float, or a 0-d tensor that a replay finds filled in."""
        return rule(int(self.step), self.steps) if self.recorder is None else self.recorder(rule)

    def on(self, clock: Callable[[int], int], steps: int) -> "Tick":
        """The same moment by another clock: `clock` of this step, of so many; it must have a time for every step."""
        recorder = self.recorder
        if recorder is None:
            return self._replace(step=torch.tensor(clock(int(self.step))), steps=steps)
        return self._replace(
            step=recorder(lambda step, _: clock(step)).long(),
            steps=steps,
            recorder=lambda rule: recorder(lambda step, _: rule(clock(step), steps)),
        )


def add_scaled_(out: Tensor, x: Tensor, scale: Number) -> Tensor:
    """out + scale x, in place."""
    return out.addcmul_(x, scale) if isinstance(scale, Tensor) else out.add_(x, alpha=scale)
