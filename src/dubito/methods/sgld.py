"""Stochastic gradient Langevin dynamics (Welling & Teh, 2011).

theta <- theta + eps/2 * grad log p(theta | D) + N(0, eps)
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from dubito.methods.base import Info, info
from dubito.methods.langevin import Langevin
from dubito.target import Batch, Target
from dubito.tick import Tick, add_scaled_


class SGLDState(NamedTuple):
    """One weight vector per chain."""

    theta: Tensor


@dataclass(frozen=True, kw_only=True)
class SGLD(Langevin[SGLDState]):
    """Langevin dynamics on mini-batches; `schedules.Polynomial` gives the decaying steps of the paper."""

    def init(self, theta: Tensor, target: Target, tick: Tick) -> SGLDState:
        return SGLDState(theta.clone())

    def step(self, state: SGLDState, batch: Batch, target: Target, tick: Tick) -> tuple[SGLDState, Info]:
        noise = self.noise(state.theta, tick)
        parts, grad = target.value_and_grad(state.theta, batch)
        half, root = self.sizes(tick, target)
        add_scaled_(state.theta, grad, half)
        add_scaled_(state.theta, noise(), root)
        return state, info(parts.log_lik, parts.log_prior, target)
