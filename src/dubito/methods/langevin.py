"""What the stochastic-gradient samplers share: a step size, its schedule, and a switch for the noise."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from dubito import schedules
from dubito.methods.base import Sampler, State, check_positive
from dubito.schedules import Schedule
from dubito.target import Target
from dubito.tick import Number, Tick


@dataclass(frozen=True, kw_only=True)
class Langevin(Sampler[State]):
    """A discretised diffusion on mini-batches of the full log-posterior."""

    step_size: float | None = None  # epsilon on the full log-posterior; a share of 1 / N when None
    schedule: Schedule | str = "constant"  # multiplies the step size

    share: ClassVar[float] = 0.05  # the default step size times N

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_size is not None:
            check_positive(self, "step_size", self.step_size)
        schedules.parse(self.schedule)

    @property
    def default_share(self) -> float:
        """The default step size times N."""
        return self.share

    def resolve(self, n_data: int) -> Self:
        return self if self.step_size is not None else replace(self, step_size=self.default_share / n_data)

    @property
    def rates(self) -> Schedule:
        """The schedule as an object."""
        return schedules.parse(self.schedule)

    def noisy(self, step: int, steps: int) -> bool:
        """Whether noise is added: always, but for methods that explore first."""
        return True

    def sizes(self, tick: Tick, target: Target) -> tuple[Number, Number]:
        """The step size eps now, halved for the gradient, and the root of eps for the noise, 0 where there is none."""
        size = self.resolve(target.n_data).step_size or 0.0
        half = tick.number(lambda step, steps: size * self.rates(step, steps) / 2)
        root = tick.number(lambda step, steps: math.sqrt(size * self.rates(step, steps)) * self.noisy(step, steps))
        return half, root

    def noise(self, theta: Tensor, tick: Tick) -> Callable[[], Tensor]:
        """The normals of this step, drawn while the gradient is computed."""
        if tick.recorder is None and not self.noisy(int(tick.step), tick.steps):
            return lambda: torch.zeros_like(theta)
        return tick.rng.normal_meanwhile(theta, "langevin")

    @property
    def depends_on_steps(self) -> bool:
        return self.keep is not None or self.rates.depends_on_steps
