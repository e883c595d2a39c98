"""Attacks: inputs moved a little so that a posterior errs.

Epsilon is in units of pixels in [0, 1], whatever the range `bounds` of the inputs is: on inputs in [-1, 1] an
epsilon of 0.1 moves each by at most 0.2. No input leaves its range.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from dubito.config import check_count, is_number
from dubito.inputs import check_finite, tensors
from dubito.posteriors.base import Posterior, check_posterior
from dubito.rng import generator
from dubito.tasks.attack.victim import Victim

Bounds: TypeAlias = tuple[float, float]
_ROOM = 1e-5  # of the range: inputs may be rounded


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """What all attacks share."""

    epsilon: float | None = 0.1
    """How far an input may be moved, in units of [0, 1] pixels."""
    draws: int = 1
    """Networks the attacker differentiates: one draw (a grey box), or the average over several."""
    fresh: bool = False
    """Whether these are new ones at every step, or the same throughout."""
    seed: int = 0

    boundless: ClassVar[bool] = False  # whether it may go without a ball

    def __post_init__(self) -> None:
        if self.epsilon is None and not self.boundless:
            raise ValueError(f"{type(self).__name__} needs a ball to stay in; give epsilon, in units of [0, 1] pixels")
        epsilon: Any = self.epsilon
        everywhere = self.boundless and (epsilon is None or epsilon == torch.inf)
        if not (everywhere or (is_number(epsilon) and epsilon >= 0)):
            raise ValueError(f"epsilon={epsilon!r} must be 0 or more and finite, in units of [0, 1] pixels")
        check_count(self, "draws", self.draws, 1)

    @abstractmethod
    def moves(self, victim: Victim, x: Tensor, y: Tensor, bounds: Bounds) -> Iterator[Tensor]:
        """The perturbed inputs after each step."""

    def path(self, posterior: Posterior, x: Any, y: Any = None, *, bounds: Bounds = (0.0, 1.0)) -> Iterator[Tensor]:
        """The inputs after each step; without labels, away from what the attacked networks predict."""
        check_posterior(posterior)
        ends = _ends(bounds)
        given = _checked(tensors(x), ends)
        victim = Victim(posterior, self.draws, self.fresh, self.seed)
        start = victim.prepared(given)
        labels = self.aim(victim, start, y)
        victim.check(start, labels)
        yield from self.moves(victim, start, labels.to(start.device), ends)

    def perturb(self, posterior: Posterior, x: Any, y: Any = None, *, bounds: Bounds = (0.0, 1.0)) -> Tensor:
        """The inputs at the end of the attack, on the posterior's device."""
        return deque(self.path(posterior, x, y, bounds=bounds), maxlen=1).pop()

    def aim(self, victim: Victim, x: Tensor, y: Any) -> Tensor:
        """The labels whose probability is changed."""
        if y is None and victim.posterior.likelihood.kind != "classification":
            raise ValueError("without classes there is no prediction to go away from; give y")
        return victim.labels(x) if y is None else torch.as_tensor(tensors(y))

    def _radius(self, bounds: Bounds) -> float:
        """Epsilon in the units of the inputs."""
        return torch.inf if self.epsilon is None else self.epsilon * (bounds[1] - bounds[0])


@dataclass(frozen=True, kw_only=True)
class FGSM(Attack):
    """One step against the label: x - eps sign(d log p(y | x) / dx) (Goodfellow et al., 2015, arXiv 1412.6572)."""

    epsilon: float = 0.1
    against: Literal["label", "prediction"] = "label"
    """Whose probability falls: that of the label, or that of the class which the attacked networks put first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.against not in ("label", "prediction"):
            raise ValueError(f"against={self.against!r} is unknown; choose 'label' or 'prediction'")

    def aim(self, victim: Victim, x: Tensor, y: Any) -> Tensor:
        return super().aim(victim, x, y if self.against == "label" else None)

    def moves(self, victim: Victim, x: Tensor, y: Tensor, bounds: Bounds) -> Iterator[Tensor]:
        yield (x - self._radius(bounds) * victim.gradient(x, y).sign()).clamp(*bounds)


@dataclass(frozen=True, kw_only=True)
class TargetedFGSM(Attack):
    """Steps towards a class: x + step sign(d log p(target | x) / dx), inside the ball where there is one.

    Kurakin et al. (2017), arXiv 1611.01236; without a ball, and with steps of 0.01, as Li and Gal (2017) use it.
    """

    target: int = 0
    epsilon: float | None = None
    """None: only the range of the inputs limits the way."""
    step_size: float = 0.01
    """In units of [0, 1] pixels."""
    steps: int = 100

    boundless = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "target", self.target, 0)
        _check_steps(self, self.steps, self.step_size)

    def moves(self, victim: Victim, x: Tensor, y: Tensor, bounds: Bounds) -> Iterator[Tensor]:
        size, radius, now = self.step_size * (bounds[1] - bounds[0]), self._radius(bounds), x
        for step in range(self.steps):
            moved = now + size * victim.gradient(now, y, step).sign()
            now = (x + (moved - x).clamp(-radius, radius)).clamp(*bounds)
            yield now

    def aim(self, victim: Victim, x: Tensor, y: Any) -> Tensor:
        single = victim.posterior.likelihood.kind != "classification"
        event = () if single else victim.labels(x[:1]).shape[1:]  # an input has a class for each token or pixel
        return torch.full((len(x), *event), self.target, dtype=torch.long)


@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """Steps against the label, each projected back to the ball (Madry et al., 2018, arXiv 1706.06083).

    The first run starts at the input itself, each restart at a random point of the ball; of every input the end with
    the least probability of its label is kept.
    """

    epsilon: float = 0.1
    norm: Literal["linf", "l2"] = "linf"
    steps: int = 40
    step_size: float | None = None
    """In units of [0, 1] pixels; 2.5 epsilon / steps when left out."""
    restarts: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in ("linf", "l2"):
            raise ValueError(f"norm={self.norm!r} is unknown; choose 'linf' or 'l2'")
        _check_steps(self, self.steps, self.step_size)
        check_count(self, "restarts", self.restarts, 0)

    def moves(self, victim: Victim, x: Tensor, y: Tensor, bounds: Bounds) -> Iterator[Tensor]:
        best, least = x, x.new_full((len(x),), torch.inf)
        for run in range(self.restarts + 1):
            now = x if run == 0 else self._clipped(x, self._random(x, run, bounds), bounds)
            for step in range(self.steps):
                now = self._clipped(x, now - x - self._step(victim.gradient(now, y, step), bounds), bounds)
                if not self.restarts:
                    yield now
            if self.restarts:
                value = victim.log_prob(now, y, self.steps)
                better = (value < least).view(-1, *(1,) * (x.dim() - 1))
                best, least = torch.where(better, now, best), torch.minimum(value, least)
                yield best

    def _step(self, slope: Tensor, bounds: Bounds) -> Tensor:
        size = 2.5 * self.epsilon / self.steps if self.step_size is None else self.step_size
        direction = slope.sign() if self.norm == "linf" else slope / _norms(slope).clamp_min(1e-12)
        return size * (bounds[1] - bounds[0]) * direction

    def _clipped(self, x: Tensor, delta: Tensor, bounds: Bounds) -> Tensor:
        """The nearest point of the ball, then of the range, which is nearer to x still."""
        radius = self._radius(bounds)
        if self.norm == "linf":
            inside = delta.clamp(-radius, radius)
        else:
            inside = delta * (radius / _norms(delta).clamp_min(1e-12)).clamp_max(1)
        return (x + inside).clamp(*bounds)

    def _random(self, x: Tensor, run: int, bounds: Bounds) -> Tensor:
        """A uniform point of the ball around 0."""
        source, radius = generator(x.device, self.seed, "start", run), self._radius(bounds)
        if self.norm == "linf":
            return (2 * torch.rand(x.shape, generator=source, device=x.device, dtype=x.dtype) - 1) * radius
        normal = torch.randn(x.shape, generator=source, device=x.device, dtype=x.dtype)
        far = torch.rand(len(x), generator=source, device=x.device, dtype=x.dtype) ** (1 / x[0].numel())
        return radius * normal / _norms(normal).clamp_min(1e-12) * far.view(-1, *(1,) * (x.dim() - 1))


def _norms(x: Tensor) -> Tensor:
    """The length of each row, in a shape that divides it."""
    lengths: Tensor = x.reshape(len(x), -1).norm(dim=1)
    return lengths.view(-1, *(1,) * (x.dim() - 1))


def _check_steps(attack: Attack, steps: int, step_size: float | None) -> None:
    check_count(attack, "steps", steps, 1)
    if step_size is not None and not (is_number(step_size) and step_size > 0):
        raise ValueError(f"step_size={step_size!r} must be positive, in units of [0, 1] pixels")


def _ends(bounds: Any) -> Bounds:
    """The least and the largest value of an input."""
    try:
        low, high = map(float, bounds)
    except (TypeError, ValueError):
        low = high = torch.nan
    if not -torch.inf < low < high < torch.inf:
        raise ValueError(f"bounds={bounds} hold no range; give the least and the largest value of an input")
    return low, high


def _checked(x: Any, bounds: Bounds) -> Tensor:
    """Refuse what cannot be moved, or lies outside the range already."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise ValueError("only inputs in one tensor of real numbers can be moved a little; tokens and tuples cannot")
    if not x.numel():
        raise ValueError("there is nothing to attack: the inputs have no rows; give at least one")
    check_finite(x, "x")
    low, high = bounds
    least, most, room = float(x.min()), float(x.max()), _ROOM * (high - low)
    if least < low - room or most > high + room:
        raise ValueError(
            f"inputs reach from {least:g} to {most:g}, beyond {low:g} to {high:g}; give their true bounds="
        )
    return x.clamp(low, high)
