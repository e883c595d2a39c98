"""Preconditioned SGLD (Li et al., 2016, https://arxiv.org/abs/1512.07666): Langevin steps in RMSprop's metric.

    V <- decay V + (1 - decay) g^2,   G = 1 / (floor + sqrt(V)),   g = grad log p(theta | D) / N
    theta <- theta + eps/2 * G grad log p(theta | D) + N(0, eps G)

V moves during burn-in only. With a G that is constant from then on the correction term of the paper, usually left out,
is exactly zero, and the chain has the right stationary distribution.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dubito.config import is_number
from dubito.methods.base import Info, check_positive, info
from dubito.methods.langevin import Langevin
from dubito.target import Batch, Target
from dubito.tick import Tick, add_scaled_


class PSGLDState(NamedTuple):
    """One weight vector per chain and the running square of its gradient."""

    theta: Tensor
    square: Tensor


@dataclass(frozen=True, kw_only=True)
class PSGLD(Langevin[PSGLDState]):
    """Langevin dynamics whose step adapts to each weight during burn-in."""

    decay: float = 0.99
    floor: float = 0.1  # added to sqrt(V): no step is larger than eps / floor

    share = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "floor", self.floor)
        if not (is_number(self.decay) and 0 <= self.decay < 1):
            raise ValueError(f"PSGLD: decay must lie in [0, 1), got {self.decay!r}")

    def init(self, theta: Tensor, target: Target, tick: Tick) -> PSGLDState:
        return PSGLDState(theta.clone(), torch.zeros_like(theta))

    def step(self, state: PSGLDState, batch: Batch, target: Target, tick: Tick) -> tuple[PSGLDState, Info]:
        noise = self.noise(state.theta, tick)
        parts, grad = target.value_and_grad(state.theta, batch)
        weight = tick.number(self._weight)
        if isinstance(weight, Tensor) or weight:
            state.square.lerp_((grad / target.n_data).square_(), weight)
        metric = state.square.sqrt().add_(self.floor).reciprocal_()
        half, root = self.sizes(tick, target)
        add_scaled_(state.theta, grad.mul_(metric), half)
        add_scaled_(state.theta, noise().mul_(metric.sqrt_()), root)
        return state, info(parts.log_lik, parts.log_prior, target)

    def _weight(self, step: int, steps: int) -> float:
        """What the newest squared gradient counts for: 0 once the metric is frozen."""
        return max(1 - self.decay, 1 / (step + 1)) if step <= self.burn_in else 0.0
