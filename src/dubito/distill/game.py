"""Adversarial posterior distillation: a generator learns to emit networks like those of a chain.

    critic:    maximise  E[D(theta)] - E[D(G(z))] - penalty E[(|grad D| - 1)^2]       z ~ N(0, I)
    generator: maximise  E[D(G(z))]

Wang, Vicol, Lucas, Gu, Grosse and Zemel (2018), "Adversarial Distillation of Bayesian Neural Network Posteriors",
https://arxiv.org/abs/1806.10317; the objective is WGAN-GP (Gulrajani et al., 2017, arXiv 1704.00028) unless told
otherwise: "wgan" clips the critic's weights (Arjovsky et al., 2017, arXiv 1701.07875), "gan" is the first one,
non-saturating (Goodfellow et al., 2014, arXiv 1406.2661).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito import schedules
from dubito.config import is_number
from dubito.distill.critic import Critic
from dubito.distill.optimisers import Moments, Optimiser
from dubito.methods.base import check_count, check_positive
from dubito.posteriors.generator import Generator, Parameters
from dubito.rng import Rng
from dubito.schedules import Schedule
from dubito.tick import Tick

Objective = Literal["wgan-gp", "wgan", "gan"]
OPTIMISERS: dict[str, Optimiser] = {  # as released with the paper
    "wgan-gp": Optimiser("adam", 1e-4, 0.5, 0.9),
    "wgan": Optimiser("rmsprop", 5e-5, 0.0, 0.99),
    "gan": Optimiser("adam", 2e-4, 0.5, 0.999),
}
CRITIC_STEPS = {"wgan-gp": 5, "wgan": 5, "gan": 1}


@dataclass(frozen=True, kw_only=True)
class Adversarial:
    """A weight generator and how it is trained.

    The defaults are those of the paper, but for `standardise` and `averaging`, which it does not have.
    """

    objective: Objective = "wgan-gp"
    noise: int = 32  # dimensions of z
    widths: tuple[int, ...] = (100, 100, 100)  # ReLU layers of the generator; it stores (last width + 1) x D numbers
    critic_widths: tuple[int, ...] | None = None  # the generator's, from the other end, when None
    rank: int | None = None  # emit weight matrices as products of two factors of this rank, for large networks
    directions: int | None = None  # play on so many principal directions of the vectors and not on every weight
    standardise: bool = True  # work on weights of mean 0 and standard deviation 1; False is the paper's raw weights
    batch_size: int = 100
    critic_steps: int | None = None  # per generator step; 5, or 1 under "gan"
    penalty: float = 10.0  # on slopes of the critic that differ from 1, "wgan-gp" only
    clip: float = 0.01  # largest weight of the critic, "wgan" only
    averaging: float = 0.999  # decay of the average over the generator's path that is handed out; 0: where it ended
    optimiser: Optimiser | None = None  # of both networks; the paper's for the objective when None
    schedule: Schedule | str = "constant"  # multiplies both learning rates; "linear" ends closer to the teacher

    def __post_init__(self) -> None:
        if self.objective not in tuple(OPTIMISERS):
            raise ValueError(f"unknown objective {self.objective!r}; use 'wgan-gp', 'wgan' or 'gan'")
        for name in ("noise", "batch_size"):
            check_count(self, name, getattr(self, name), 1)
        for name in ("rank", "critic_steps", "directions"):
            check_count(self, name, 1 if getattr(self, name) is None else getattr(self, name), 1)
        if self.rank is not None and self.directions is not None:
            raise ValueError("Adversarial: what is made along directions has no factors; leave out rank or directions")
        if not (is_number(self.averaging) and 0 <= self.averaging < 1):
            raise ValueError(f"Adversarial: averaging must lie in [0, 1), got {self.averaging!r}")
        schedules.parse(self.schedule)
        check_positive(self, "penalty", self.penalty)
        check_positive(self, "clip", self.clip)
        for name, widths in (("widths", self.widths), ("critic_widths", self.critic_widths)):
            if not isinstance(widths, tuple | list | None):
                raise ValueError(f"Adversarial: {name} is {widths!r}; give the width of each layer, such as (100, 100)")
            if widths is not None and not widths:
                raise ValueError(f"Adversarial: {name} is empty; give the width of each layer, such as (100, 100)")
            for width in widths or ():
                check_count(self, name, width, 1)
        if not isinstance(self.optimiser, Optimiser | None):
            raise ValueError(f"Adversarial: optimiser is {self.optimiser!r}; give distill.Optimiser('adam', 1e-4)")


class GameState(NamedTuple):
    """Parameters of both networks, the generator's average, and the moments of their optimisers."""

    generator: Parameters
    averaged: Parameters
    critic: Parameters
    by_generator: Moments
    by_critic: Moments


class GameInfo(NamedTuple):
    """What a step tells, (1,) each: the critic's estimate of the distance, its penalty, the generator's loss."""

    estimate: Tensor
    penalty: Tensor
    generator: Tensor


class Inputs(NamedTuple):
    """What changes from step to step: rows for each critic step (k, B), mixing shares (k, B, 1), noise (k + 1, B, z).

    `rate` multiplies the learning rates, 0-d.
    """

    rows: Tensor
    share: Tensor
    z: Tensor
    rate: Tensor


class Game:
    """A generator and a critic over vectors of one size; `step` is tensors only and in place, fit to be captured."""

    def __init__(self, settings: Adversarial, shapes: tuple[tuple[int, ...], ...]) -> None:
        self.settings = settings
        self.generator = Generator(settings.noise, tuple(settings.widths), shapes, settings.rank)
        size = sum(torch.Size(s).numel() for s in shapes)
        self.critic = Critic(size, tuple(settings.critic_widths or settings.widths[::-1]))
        self.optimiser = settings.optimiser or OPTIMISERS[settings.objective]
        self.critic_steps = settings.critic_steps or CRITIC_STEPS[settings.objective]

    def init(self, rng: Rng, like: Tensor) -> GameState:
        """Both networks before the first step."""
        generator = self.generator.init(rng.child("generator"), like)
        critic = self.critic.init(rng.child("critic"), like)
        averaged = {name: p.clone() for name, p in generator.items()}
        return GameState(generator, averaged, critic, self.optimiser.init(generator), self.optimiser.init(critic))

    def inputs(self, rng: Rng, n: int, like: Tensor, tick: Tick) -> Inputs:
        """The inputs of one step, rows being among n."""
        k, size = self.critic_steps, self.settings.batch_size
        uniform = rng.uniform((1, k, size, 2), "rows", like.new_empty(0, dtype=torch.float64))[0]
        z = rng.normal_(like.new_empty(1, k + 1, size, self.settings.noise), "z")[0]
        number = tick.number(schedules.parse(self.settings.schedule))
        rate = number if isinstance(number, Tensor) else torch.full((), number, device=like.device)
        return Inputs((uniform[..., 0] * n).long(), uniform[..., 1:].to(like.dtype), z, rate)

    def step(self, state: GameState, take: Callable[[Tensor], Tensor], inputs: Inputs) -> GameInfo:
        """Some steps of the critic on rows given by `take`, then one of the generator."""
        for k in range(self.critic_steps):
            with torch.no_grad():
                fake = self.generator(state.generator, inputs.z[k])
            estimate, penalty = self._critic_step(state, take(inputs.rows[k]), fake, inputs.share[k], inputs.rate)
        loss = self._generator_step(state, inputs.z[-1], inputs.rate)
        return GameInfo(estimate, penalty, loss)

    def _critic_step(
        self, state: GameState, real: Tensor, fake: Tensor, share: Tensor, rate: Tensor
    ) -> tuple[Tensor, Tensor]:
        held = _leaves(state.critic)
        with torch.enable_grad():
            first = self.critic.first(held, torch.cat([real, fake]))
            real_scores, fake_scores = self.critic.scores(held, first).chunk(2)
            at_real, at_fake = first.chunk(2)
            penalty = self._penalty(held, torch.lerp(at_real, at_fake, share))
            loss = self._critic_loss(real_scores, fake_scores) + penalty
            grads = torch.autograd.grad(loss, list(held.values()))
        self.optimiser.descend_(state.critic, grads, state.by_critic, rate)
        if self.settings.objective == "wgan":
            for parameter in state.critic.values():
                parameter.clamp_(-self.settings.clip, self.settings.clip)
        return (real_scores.mean() - fake_scores.mean()).detach().view(1), penalty.detach().view(1)

    def _penalty(self, critic: Parameters, first: Tensor) -> Tensor:
        if self.settings.objective != "wgan-gp":
            return first.new_zeros(())
        return self.settings.penalty * (self.critic.slopes(critic, first) - 1).square().mean()

    def _critic_loss(self, real: Tensor, fake: Tensor) -> Tensor:
        if self.settings.objective == "gan":
            return F.softplus(-real).mean() + F.softplus(fake).mean()
        return fake.mean() - real.mean()

    def _generator_step(self, state: GameState, z: Tensor, rate: Tensor) -> Tensor:
        held = _leaves(state.generator)
        with torch.enable_grad():
            scores = self.critic.scores(state.critic, self.critic.first(state.critic, self.generator(held, z)))
            loss = F.softplus(-scores).mean() if self.settings.objective == "gan" else -scores.mean()
            grads = torch.autograd.grad(loss, list(held.values()))
        self.optimiser.descend_(state.generator, grads, state.by_generator, rate)
        self._average(state)
        return loss.detach().view(1)

    def _average(self, state: GameState) -> None:
        """Move the average towards the present by 1 - averaging, and by more in the first steps."""
        updates = state.by_generator.updates
        share = (9 / (updates + 9)).clamp_min(1 - self.settings.averaging)
        for name, parameter in state.averaged.items():
            parameter.lerp_(state.generator[name], share.to(parameter.dtype))


def _leaves(parameters: Parameters) -> Parameters:
    """The same storage as leaves of a new graph."""
    return {name: p.detach().requires_grad_() for name, p in parameters.items()}
