"""Hamiltonian Monte Carlo with step-size adaptation: the reference for everything else.

Leapfrog trajectories on the full data, accepted with probability min(1, exp(-dH)) (Neal, 2011,
https://arxiv.org/abs/1206.1901). During burn-in the step size follows the dual averaging of Hoffman & Gelman (2014,
https://arxiv.org/abs/1111.4246); each trajectory's step is jittered so that no orbit closes on itself.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dubito.config import is_number
from dubito.methods.base import Sampler, check_count, check_positive, info
from dubito.target import Batch, Parts, Target
from dubito.tick import Number, Tick

JITTER = 0.5  # relative half-width of the step size's jitter: wide, as some direction always meets its half period
SHRINKAGE, OFFSET, DECAY = 0.05, 10.0, 0.75  # dual averaging's gamma, t0 and kappa, as in the paper


class HMCState(NamedTuple):
    """Position, log-posterior and gradient of each chain; log step sizes of the adaptation."""

    theta: Tensor
    parts: Parts
    grad: Tensor
    log_step: Tensor
    log_step_mean: Tensor
    error: Tensor
    centre: Tensor


class HMCInfo(NamedTuple):
    """Nats per datum of each chain, its acceptance probability, its step size and whether the trajectory diverged."""

    fit: Tensor
    complexity: Tensor
    accept: Tensor
    step_size: Tensor
    divergent: Tensor


@dataclass(frozen=True, kw_only=True)
class HMC(Sampler[HMCState]):
    """One update is one trajectory; every chain adapts its own step size while it burns in."""

    step_size: float | None = None  # leapfrog step to start from; 0.1 / sqrt(N) when None
    leapfrog: int = 20  # leapfrog steps in a trajectory
    accept: float = 0.8  # acceptance probability aimed at
    burn_in: int = 500
    thin: int = 1

    full_batch = True
    default_members = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_size is not None:
            check_positive(self, "step_size", self.step_size)
        check_count(self, "leapfrog", self.leapfrog, 1)
        if not (is_number(self.accept) and 0 < self.accept < 1):
            raise ValueError(f"HMC: accept must lie between 0 and 1, got {self.accept!r}")

    def init(self, theta: Tensor, target: Target, tick: Tick) -> HMCState:
        start = math.log(self.step_size or 0.1 / math.sqrt(target.n_data))
        log_step = theta.new_full((len(theta),), start)
        unknown = Parts(theta.new_full((len(theta),), math.nan), theta.new_zeros(len(theta)))
        zero = torch.zeros_like(log_step)
        centre = log_step + math.log(10)
        return HMCState(theta.clone(), unknown, torch.zeros_like(theta), log_step, log_step.clone(), zero, centre)

    def step(self, state: HMCState, batch: Batch, target: Target, tick: Tick) -> tuple[HMCState, HMCInfo]:
        if tick.recorder is None and int(tick.step) == 0:
            self._place(state, *target.value_and_grad(state.theta, batch))
        jitter = 1 + JITTER * (2 * tick.rng.uniform((len(state.theta),), "jitter", state.theta) - 1)
        adapting = tick.number(lambda step, steps: float(step < self.burn_in))
        size = torch.lerp(state.log_step_mean, state.log_step, adapting).exp() * jitter
        momentum = tick.rng.normal_(torch.empty_like(state.theta), "momentum")
        energy = self._log_joint(state.parts, momentum, target)
        theta, parts, grad, momentum = self._trajectory(state, size, momentum, batch, target)
        change = (self._log_joint(parts, momentum, target) - energy).to(theta.dtype)
        accept = change.clamp_max(0).exp().nan_to_num(0.0)
        taken = tick.rng.uniform((len(theta),), "accept", theta) < accept
        self._keep(state, taken, theta, parts, grad)
        self._adapt(state, accept, tick)
        base = info(state.parts.log_lik, state.parts.log_prior, target)
        return state, HMCInfo(*base, accept, size, (~(change > -1000)).to(theta.dtype))

    def _trajectory(
        self, state: HMCState, size: Tensor, momentum: Tensor, batch: Batch, target: Target
    ) -> tuple[Tensor, Parts, Tensor, Tensor]:
        theta, parts, grad, step = state.theta.clone(), state.parts, state.grad, size.unsqueeze(1)
        for _ in range(self.leapfrog):
            momentum = momentum + step / 2 * grad
            theta = theta + step * momentum
            parts, grad = target.value_and_grad(theta, batch)
            momentum = momentum + step / 2 * grad
        return theta, parts, grad, momentum

    def _log_joint(self, parts: Parts, momentum: Tensor, target: Target) -> Tensor:
        """log p(theta | D) - |momentum|^2 / 2, in double precision: differences of large numbers decide."""
        log_prob = (target.n_data * parts.log_lik.double() + parts.log_prior.double()) / target.temperature
        return log_prob - momentum.double().square().sum(1) / 2

    def _place(self, state: HMCState, parts: Parts, grad: Tensor) -> None:
        state.parts.log_lik.copy_(parts.log_lik)
        state.parts.log_prior.copy_(parts.log_prior)
        state.grad.copy_(grad)

    def _keep(self, state: HMCState, taken: Tensor, theta: Tensor, parts: Parts, grad: Tensor) -> None:
        rows = taken.unsqueeze(1)
        state.theta.copy_(torch.where(rows, theta, state.theta))
        old = state.parts
        new = Parts(*(torch.where(taken, a, b) for a, b in zip(parts, old, strict=True)))
        self._place(state, new, torch.where(rows, grad, state.grad))

    def _adapt(self, state: HMCState, accept: Tensor, tick: Tick) -> None:
        """Dual averaging of the log step size towards the acceptance aimed at; all weights are 0 after burn-in."""

        def while_burning_in(weight: Callable[[int], float]) -> Number:
            return tick.number(lambda step, steps: weight(step + 1) if step < self.burn_in else 0.0)

        state.error.lerp_(self.accept - accept, while_burning_in(lambda time: 1 / (time + OFFSET)))
        pull = while_burning_in(lambda time: math.sqrt(time) / SHRINKAGE)
        state.log_step.copy_(state.centre - pull * state.error)
        state.log_step_mean.lerp_(state.log_step, while_burning_in(lambda time: time**-DECAY))
