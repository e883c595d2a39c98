"""Methods built from the others: ensembles of members and of snapshots, and cyclical samplers."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dubito.config import is_number
from dubito.methods.base import State, check_count
from dubito.methods.descent import DescentState
from dubito.methods.langevin import Langevin
from dubito.methods.map import MAP
from dubito.methods.sghmc import SGHMC
from dubito.methods.sgld import SGLD
from dubito.posteriors.base import Posterior
from dubito.posteriors.samples import SamplesPosterior
from dubito.rng import derive
from dubito.schedules import CyclicalCosine, Schedule
from dubito.target import Target
from dubito.tick import Tick


@dataclass(frozen=True, kw_only=True)
class DeepEnsemble(MAP):
    """Networks trained side by side from different starts (Lakshminarayanan et al., 2017, arXiv 1612.01474).

    With `bootstrap` each member sees its own resample of the data, as weights that count how often a row was drawn.
    """

    bootstrap: bool = False
    answer = "ensemble"
    default_members = 5

    @property
    def needs_index(self) -> bool:
        return self.bootstrap

    def init(self, theta: Tensor, target: Target, tick: Tick) -> DescentState:
        state = super().init(theta, target, tick)
        if not self.bootstrap:
            return state
        draws = [_resample(target.n_data, derive(tick.rng.seed, "bootstrap", m)) for m in range(len(theta))]
        return state._replace(counts=torch.stack(draws).to(theta))

    def posterior(self, state: DescentState, target: Target) -> Posterior:
        return SamplesPosterior.of(target.net, target.likelihood, state.theta, state.buffers, "ensemble")


def _resample(n: int, seed: int) -> Tensor:
    """How often each of n rows is drawn in n draws with replacement."""
    drawn = torch.randint(n, (n,), generator=torch.Generator().manual_seed(seed))
    return torch.bincount(drawn, minlength=n)


@dataclass(frozen=True, kw_only=True)
class SnapshotEnsemble(MAP):
    """One run with a learning rate that restarts; the network at the end of each cycle is kept.

    Huang et al. (2017), https://arxiv.org/abs/1704.00109.
    """

    cycles: int = 5
    schedule: Schedule | str = field(default="constant", init=False)
    answer = "ensemble"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "cycles", self.cycles, 1)

    @property
    def rates(self) -> Schedule:
        return CyclicalCosine(self.cycles)

    def keeps(self, step: int, steps: int) -> bool:
        return _cycle(step, steps, self.cycles) != _cycle(step + 1, steps, self.cycles)


def _cycle(step: int, steps: int, cycles: int) -> int:
    return step * cycles // steps


@dataclass(frozen=True, kw_only=True)
class _Cyclical(Langevin[State]):
    """A step size that falls along a cosine and restarts; noise, and samples, in the last part of each cycle only.

    Zhang et al. (2020), https://arxiv.org/abs/1902.03932.
    """

    cycles: int = 4
    exploration: float = 0.8  # share of each cycle spent finding a mode, without noise
    burn_in: int = field(default=0, init=False)
    keep: int | None = field(default=None, init=False)
    schedule: Schedule | str = field(default="constant", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "cycles", self.cycles, 1)
        if not (is_number(self.exploration) and 0 <= self.exploration < 1):
            raise ValueError(f"{type(self).__name__}: exploration must lie in [0, 1), got {self.exploration!r}")

    @property
    def rates(self) -> Schedule:
        return CyclicalCosine(self.cycles)

    def keeps(self, step: int, steps: int) -> bool:
        """Whether a step lies in the sampling part of its cycle."""
        return CyclicalCosine(self.cycles).position(step, steps) >= self.exploration

    def noisy(self, step: int, steps: int) -> bool:
        return self.keeps(step, steps)

    @property
    def depends_on_steps(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class CyclicalSGLD(_Cyclical[Any], SGLD):
    """SGLD in cycles: each finds a mode, then samples around it."""


@dataclass(frozen=True, kw_only=True)
class CyclicalSGHMC(_Cyclical[Any], SGHMC):
    """SGHMC in cycles: each finds a mode, then samples around it."""
