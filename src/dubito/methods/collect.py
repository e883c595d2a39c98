"""Thinning: which states of a sampler are kept."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic

from torch import Tensor

from dubito.inputs import Inputs
from dubito.likelihoods import Likelihood
from dubito.methods.base import Method, Sampler, State, Told, Weights
from dubito.net import Net
from dubito.posteriors.base import Posterior
from dubito.priors import Assigned
from dubito.target import Batch, Target
from dubito.tick import Tick


@dataclass(frozen=True)
class Collect(Method[State], Generic[State]):
    """Keep one state in `thin` after `burn_in` updates, the last `keep` of them where that is given."""

    method: Method[State]
    burn_in: int = 0
    thin: int = 1
    keep: int | None = None

    @classmethod
    def of(cls, sampler: Sampler[State]) -> "Collect[State]":
        """A sampler thinned as its own fields say."""
        return cls(sampler, sampler.burn_in, sampler.thin, sampler.keep)

    def init(self, theta: Tensor, target: Target, tick: Tick) -> State:
        return self.method.init(theta, target, tick)

    def step(self, state: State, batch: Batch, target: Target, tick: Tick) -> tuple[State, Told]:
        return self.method.step(state, batch, target, tick)

    def weights(self, state: State) -> Weights:
        return self.method.weights(state)

    def posterior(self, state: State, target: Target) -> Posterior:
        return self.method.posterior(state, target)

    def prepare(self, net: Net, x: Inputs) -> Net:
        return self.method.prepare(net, x)

    def check(self, net: Net, assigned: Mapping[str, Assigned], likelihood: Likelihood) -> None:
        self.method.check(net, assigned, likelihood)

    def resolve(self, n_data: int) -> "Collect[State]":
        return replace(self, method=self.method.resolve(n_data))

    def kept(self, updates: int) -> int:
        """How many states the first so many updates keep, `keep` aside."""
        return max(0, updates - self.burn_in) // self.thin

    def keeps(self, step: int, steps: int) -> bool:
        number = self.kept(step + 1)
        due = number > self.kept(step) and self.method.keeps(step, steps)
        return due and (self.keep is None or number > self.kept(steps) - self.keep)

    @property
    def depends_on_steps(self) -> bool:
        return self.keep is not None or self.method.depends_on_steps
