"""What the stochastic-gradient samplers share: a step size, its schedule, and a switch for the noise."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from dubito import schedules
from dubito.methods.base import Sampler, State, Tick, check_positive
from dubito.schedules import Schedule
from dubito.target import Target


@dataclass(frozen=True, kw_only=True)
class Langevin(Sampler[State]):
    """A discretised diffusion on mini-batches of the full log-posterior."""

    step_size: float | None = None  # epsilon on the full log-posterior; a share of 1 / N when None
    schedule: Schedule | str = "constant"  # multiplies the step size

    share: ClassVar[float] = 0.05  # the default step size times N

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "step_size", self.step_size)
        schedules.parse(self.schedule)

    @property
    def default_share(self) -> float:
        """The default step size times N."""
        return self.share

    def resolve(self, n_data: int) -> Self:
        return self if self.step_size is not None else replace(self, step_size=self.default_share / n_data)

    def epsilon(self, tick: Tick, target: Target) -> float:
        """The step size now."""
        size = self.resolve(target.n_data).step_size or 0.0
        return size * schedules.parse(self.schedule)(int(tick.step), tick.steps)

    def noisy(self, tick: Tick) -> bool:
        """Whether noise is added now: always, but for methods that explore first."""
        return True

    def noise(self, theta: Tensor, tick: Tick) -> Callable[[], Tensor]:
        """The normals of this step, drawn while the gradient is computed; all 0 where no noise is added."""
        return tick.rng.normal_meanwhile(theta, "langevin") if self.noisy(tick) else lambda: torch.zeros_like(theta)

    @property
    def depends_on_steps(self) -> bool:
        return self.keep is not None or schedules.parse(self.schedule).depends_on_steps
