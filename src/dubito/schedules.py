"""Schedules: what the learning rate or step size is multiplied by, as a function of the step."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from dubito.config import check_count, is_number

ScheduleName = Literal["constant", "cosine", "linear"]


class Schedule(ABC):
    """A multiplier for step 0, 1, ... of `steps`; a subclass needs `__call__` alone."""

    @abstractmethod
    def __call__(self, step: int, steps: int) -> float:
        """The multiplier at `step` of a run of `steps`."""

    @property
    def depends_on_steps(self) -> bool:
        """Whether a longer run has other multipliers from the start, so that a finished run cannot be extended."""
        return True


@dataclass(frozen=True)
class Constant(Schedule):
    """1 throughout."""

    def __call__(self, step: int, steps: int) -> float:
        return 1.0

    @property
    def depends_on_steps(self) -> bool:
        return False


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from 1 to `floor`: floor + (1 - floor) (1 + cos(pi t / T)) / 2 (Loshchilov & Hutter 2017)."""

    floor: float = 0.0

    def __post_init__(self) -> None:
        if not (is_number(self.floor) and 0 <= self.floor <= 1):
            raise ValueError(f"Cosine: floor is {self.floor!r}; it must lie in [0, 1].")

    def __call__(self, step: int, steps: int) -> float:
        return self.floor + (1 - self.floor) * _half_cosine(_progress(step, steps))


@dataclass(frozen=True)
class Linear(Schedule):
    """1 until the fraction `start` of the run, then linear to 0."""

    start: float = 0.0

    def __post_init__(self) -> None:
        if not (is_number(self.start) and 0 <= self.start < 1):
            raise ValueError(f"Linear: start is {self.start!r}; it must lie in [0, 1).")

    def __call__(self, step: int, steps: int) -> float:
        return min(1.0, (1 - _progress(step, steps)) / (1 - self.start))


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Multiplied by `factor` after `every` steps: factor^floor(t / every)."""

    factor: float
    every: int

    def __post_init__(self) -> None:
        if not (is_number(self.factor) and 0 < self.factor <= 1):
            raise ValueError(f"StepDecay: factor is {self.factor!r}; it must lie in (0, 1].")
        check_count(self, "every", self.every, 1)

    def __call__(self, step: int, steps: int) -> float:
        return float(self.factor ** (step // self.every))

    @property
    def depends_on_steps(self) -> bool:
        return False


@dataclass(frozen=True)
class Polynomial(Schedule):
    """(1 + t / b)^-gamma: steps that sum to infinity while their squares do not (Welling & Teh 2011)."""

    b: float
    gamma: float = 0.55

    def __post_init__(self) -> None:
        if not (is_number(self.b) and self.b > 0):
            raise ValueError(f"Polynomial: b is {self.b!r}; it must be a positive number of steps.")
        if not (is_number(self.gamma) and 0.5 < self.gamma <= 1):
            raise ValueError(f"Polynomial: gamma is {self.gamma!r}; it must lie in (0.5, 1] for the chain to converge.")

    def __call__(self, step: int, steps: int) -> float:
        return float((1 + step / self.b) ** -self.gamma)

    @property
    def depends_on_steps(self) -> bool:
        return False


@dataclass(frozen=True)
class CyclicalCosine(Schedule):
    """`cycles` half cosines from 1 to 0: (1 + cos(pi r)) / 2, r the position in the cycle (Zhang et al. 2020, eq. 1).

    Cycles differ by at most one step where `steps` is no multiple, so that the last one is complete too.
    """

    cycles: int

    def __post_init__(self) -> None:
        check_count(self, "cycles", self.cycles, 1)

    def __call__(self, step: int, steps: int) -> float:
        return _half_cosine(self.position(step, steps))

    def position(self, step: int, steps: int) -> float:
        """How far the step is into its cycle, in [0, 1)."""
        if self.cycles > steps:
            raise ValueError(f"{self.cycles} cycles do not fit into {steps} steps; use fewer cycles or more steps.")
        return (step * self.cycles % steps) / steps


@dataclass(frozen=True)
class WarmUp(Schedule):
    """Linear rise to the start of `then` over the first `steps`, then `then` over the rest (Goyal et al. 2017)."""

    steps: int
    then: Schedule = Constant()

    def __post_init__(self) -> None:
        check_count(self, "steps", self.steps, 1)
        if not isinstance(self.then, Schedule):
            raise ValueError(f"WarmUp: then must be a Schedule of dubito.schedules, got {self.then!r}")

    def __call__(self, step: int, steps: int) -> float:
        after = max(1, steps - self.steps)
        if step < self.steps:
            return (step + 1) / self.steps * self.then(0, after)
        return self.then(step - self.steps, after)

    @property
    def depends_on_steps(self) -> bool:
        return self.then.depends_on_steps


@dataclass(frozen=True)
class Rise(Schedule):
    """0 until the fraction `start` of the run, then linear to 1 at the fraction `end`."""

    start: float = 0.0
    end: float = 0.1

    def __post_init__(self) -> None:
        if not (is_number(self.start) and is_number(self.end) and 0 <= self.start < self.end <= 1):
            raise ValueError(
                f"Rise: start is {self.start!r} and end is {self.end!r}; both lie in [0, 1], the end later."
            )

    def __call__(self, step: int, steps: int) -> float:
        return min(1.0, max(0.0, (_progress(step, steps) - self.start) / (self.end - self.start)))


def ends_at_one(value: object) -> bool:
    """Whether a schedule warms up and then stays at 1."""
    return isinstance(value, Rise) or (isinstance(value, WarmUp) and value.then == Constant())


def parse(value: Schedule | str) -> Schedule:
    """A schedule by itself or by its name."""
    named: dict[ScheduleName, Schedule] = {"constant": Constant(), "cosine": Cosine(), "linear": Linear()}
    if isinstance(value, Schedule):
        return value
    for name, schedule in named.items():
        if name == value:
            return schedule
    raise ValueError(f"no schedule is called {value!r}; use {', '.join(named)} or a Schedule of dubito.schedules.")


def _progress(step: int, steps: int) -> float:
    return min(1.0, step / steps)


def _half_cosine(position: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * position))


def halving(step: int, batches: int) -> float:
    """The weight of a batch's KL that halves from batch to batch and averages 1 over the M of an epoch.

    M 2^(M-i) / (2^M - 1) for batch i = 1..M (Blundell et al. 2015, section 3.4), written as M 2^-i / (1 - 2^-M) so that
    it is finite for any M.
    """
    place = step % batches + 1
    return float(batches * 2.0**-place / (1 - 2.0**-batches))
