"""Stochastic gradient Hamiltonian Monte Carlo (Chen et al., 2014, https://arxiv.org/abs/1402.4102).

    v <- (1 - a) v + eps/2 * grad log p(theta | D) + N(0, a eps),   theta <- theta + v

With friction a = 1 it is SGLD.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dubito.config import is_number
from dubito.methods.base import Info, info
from dubito.methods.langevin import Langevin
from dubito.target import Batch, Target
from dubito.tick import Tick, add_scaled_


class SGHMCState(NamedTuple):
    """Weights and velocity of each chain."""

    theta: Tensor
    velocity: Tensor


@dataclass(frozen=True, kw_only=True)
class SGHMC(Langevin[SGHMCState]):
    """Langevin dynamics with momentum 1 - `friction`; the default step size has the friction as a factor."""

    friction: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_number(self.friction) and 0 < self.friction <= 1):
            raise ValueError(f"{type(self).__name__}: friction must lie in (0, 1], got {self.friction!r}")

    @property
    def default_share(self) -> float:
        return self.share * self.friction

    def init(self, theta: Tensor, target: Target, tick: Tick) -> SGHMCState:
        return SGHMCState(theta.clone(), torch.zeros_like(theta))

    def step(self, state: SGHMCState, batch: Batch, target: Target, tick: Tick) -> tuple[SGHMCState, Info]:
        noise = self.noise(state.theta, tick)
        parts, grad = target.value_and_grad(state.theta, batch)
        half, root = self.sizes(tick, target)
        add_scaled_(state.velocity.mul_(1 - self.friction), grad, half)
        add_scaled_(state.velocity, noise(), math.sqrt(self.friction) * root)
        state.theta.add_(state.velocity)
        return state, info(parts.log_lik, parts.log_prior, target)
