"""Optimisers on the flat (S, D) vector, in place: every member has its own state and its own clipped gradient."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim.adam import adam

from dubito import schedules
from dubito.config import is_number
from dubito.layout import Stretches, whole
from dubito.schedules import Schedule
from dubito.tick import Tick, add_scaled_

BETA2, EPSILON = 0.999, 1e-8  # Adam's second moment, Kingma & Ba (2015), https://arxiv.org/abs/1412.6980


class OptimState(NamedTuple):
    """Running first and second moments of the gradient; the second is empty under SGD."""

    first: Tensor
    second: Tensor


@dataclass(frozen=True, kw_only=True)
class Optimised:
    """The settings of every method that descends a loss (per-datum mean, in nats)."""

    learning_rate: float = 1e-3
    optimiser: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.9  # SGD's momentum, Adam's first decay rate
    schedule: Schedule | str = "constant"  # multiplies the learning rate
    clip_norm: float | None = None  # largest gradient norm of a member

    def __post_init__(self) -> None:
        if not (is_number(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate!r}")
        if self.optimiser not in ("adam", "sgd"):
            raise ValueError(f"unknown optimiser {self.optimiser!r}; use 'adam' or 'sgd'")
        if not (is_number(self.momentum) and 0 <= self.momentum < 1):
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum!r}")
        if self.clip_norm is not None and not (is_number(self.clip_norm) and self.clip_norm > 0):
            raise ValueError(f"clip_norm must be positive or None, got {self.clip_norm!r}")
        schedules.parse(self.schedule)

    @property
    def rates(self) -> Schedule:
        """The schedule as an object."""
        return schedules.parse(self.schedule)

    def learning_rate_at(self, step: int, steps: int) -> float:
        """The learning rate at a step."""
        return self.learning_rate * self.rates(step, steps)

    def optim_init(self, theta: Tensor) -> OptimState:
        """Zero moments for theta."""
        second = torch.zeros_like(theta) if self.optimiser == "adam" else theta.new_zeros(len(theta), 0)
        return OptimState(torch.zeros_like(theta), second)

    def descend_(
        self, theta: Tensor, grad: Tensor | Stretches, state: OptimState, tick: Tick, uphill: bool = False
    ) -> None:
        """One update of theta along -grad, or grad uphill, (S, D) or its stretches, in place; grad is overwritten."""
        parts = [grad] if isinstance(grad, Tensor) else list(grad)
        if self.clip_norm is not None:
            norm = torch.stack([part.norm(dim=1, keepdim=True) for part in parts]).norm(dim=0)
            for part in parts:
                part.mul_((self.clip_norm / norm.clamp_min(1e-30)).clamp_max(1.0))
        fused = self.optimiser == "adam" and theta.device.type == "cpu"
        if len(parts) > 1 and not (fused and len(theta) == 1):  # a single row's stretches are contiguous
            parts = [whole(parts)]
        if fused:
            self._fused_(theta, parts, state, tick, uphill)
            return
        grad, sign = parts[0], 1 if uphill else -1
        if self.optimiser == "sgd":
            state.first.mul_(self.momentum).add_(grad)
            add_scaled_(theta, state.first, tick.number(lambda step, steps: sign * self.learning_rate_at(step, steps)))
            return
        state.first.lerp_(grad, 1 - self.momentum)
        state.second.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
        root = tick.number(lambda step, steps: math.sqrt(1 - BETA2 ** (step + 1)))
        rate = tick.number(lambda step, steps: self.learning_rate_at(step, steps) / (1 - self.momentum ** (step + 1)))
        add_scaled_(theta, state.first / state.second.sqrt().div_(root).add_(EPSILON), sign * rate)

    def _fused_(self, theta: Tensor, grads: list[Tensor], state: OptimState, tick: Tick, uphill: bool) -> None:
        """The same in one pass over memory, a third of the time on the CPU."""
        sizes = [grad.shape[1] for grad in grads]
        held, first, second = ([*whole.split(sizes, dim=1)] for whole in (theta, *state))
        counts = [torch.tensor(float(tick.step)) for _ in grads]  # of the updates before; the kernel adds this one
        adam(
            held, grads, first, second, [], counts, fused=True, amsgrad=False, beta1=self.momentum, beta2=BETA2,
            lr=tick.number(self.learning_rate_at), weight_decay=0.0, eps=EPSILON, maximize=uphill,
        )  # fmt: skip
