"""What a method is: settings as fields, and three functions over an explicit state.

`step` is functional in shape and in-place in body: it owns its state, updates its tensors where they lie and returns
it. Whoever wants history copies. All tensors of a state have the members axis first.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

from torch import Tensor

from dubito.config import check_count as check_count
from dubito.config import check_positive as check_positive
from dubito.inputs import Inputs
from dubito.likelihoods import Likelihood
from dubito.net import Buffers, Net
from dubito.posteriors.base import Posterior
from dubito.posteriors.samples import SamplesPosterior
from dubito.priors import Assigned
from dubito.target import Batch, Target, point_names
from dubito.tick import Tick

State = TypeVar("State", bound=tuple[Any, ...])
Answer = Literal["exact", "mean-field", "point", "ensemble", "dropout", "sparse", "multiplicative"]


class Info(NamedTuple):
    """What a step tells: nats per datum for each member (S,), fit and complexity apart."""

    fit: Tensor
    complexity: Tensor


class Told(Protocol):
    """An `Info`, or one with more fields."""

    @property
    def fit(self) -> Tensor:
        """-log p(y | x, theta) per datum."""

    @property
    def complexity(self) -> Tensor:
        """-log p(theta) / N, or a divergence from the prior."""


class Weights(NamedTuple):
    """Networks, one per member: whole vectors (S, D) and their running statistics."""

    theta: Tensor
    buffers: Buffers


class Fate(NamedTuple):
    """What becomes of a parameter that has a prior: its role, the estimator, and why, where that says more.

    prior: what stands in its place, where the method brings one of its own.
    """

    role: Literal["random", "point"]
    estimator: str
    why: str = ""
    prior: str = ""


class Method(ABC, Generic[State]):
    """An algorithm; subclasses are frozen dataclasses whose fields are its settings."""

    default_members: ClassVar[int] = 1
    answer: ClassVar[Answer]  # what it converges to on a problem with a known posterior
    live_norm: ClassVar[bool] = False  # whether BatchNorm statistics move while it trains
    full_batch: ClassVar[bool] = False
    shares: ClassVar[bool] = False  # whether members share part of a state: none can be taken apart
    drops: ClassVar[bool] = False  # whether the network's own dropout is on while it trains
    selects: ClassVar[bool] = True  # whether validation data may choose an earlier state than the last

    @property
    def needs_index(self) -> bool:
        """Whether it must know which rows a batch holds."""
        return False

    @property
    def needs_all_rows(self) -> bool:
        """Whether every step takes the whole data."""
        return self.full_batch

    @abstractmethod
    def init(self, theta: Tensor, target: Target, tick: Tick) -> State:
        """The state at the starting points theta (S, D), which are copied."""

    @abstractmethod
    def step(self, state: State, batch: Batch, target: Target, tick: Tick) -> tuple[State, "Told"]:
        """One update, in place."""

    @abstractmethod
    def weights(self, state: State) -> Weights:
        """The networks a state holds now."""

    def shown(self, state: State, target: Target) -> Weights:
        """The networks that are scored on validation data."""
        return self.weights(state)

    @abstractmethod
    def posterior(self, state: State, target: Target) -> Posterior:
        """What is known after the last step."""

    def prepare(self, net: Net, x: Inputs) -> Net:
        """The network as this method wants it; x is an example."""
        return net

    def check(self, net: Net, assigned: Mapping[str, Assigned], likelihood: Likelihood) -> None:
        """Refuse what this method cannot do, with the cure."""

    def fates(self, net: Net, names: Sequence[str], x: Inputs | None) -> dict[str, Fate]:
        """What becomes of the parameters that have a prior; x is an example, where there is one."""
        return dict.fromkeys(names, Fate("point", "optimised"))

    def resolve(self, n_data: int) -> "Method[State]":
        """The same method with defaults that depend on the data filled in."""
        return self

    def keeps(self, step: int, steps: int) -> bool:
        """Whether the state after update `step` (counted from 0) is a sample to keep."""
        return False

    def kind(self, state: State, step: int, steps: int) -> Hashable:
        """What an update does beside what all do: those of one kind differ in numbers alone, and are recorded once."""
        return None

    def noted(self, state: State, target: Target) -> dict[str, float]:
        """What else the history tells, once an epoch."""
        return {}

    @property
    def depends_on_steps(self) -> bool:
        """Whether a longer run would have taken another path."""
        return False


@dataclass(frozen=True, kw_only=True)
class Sampler(Method[State]):
    """A method whose kept states are the posterior: BatchNorm frozen, dropout off, no point parameters."""

    burn_in: int = 500  # updates before the first kept sample
    thin: int = 20  # updates per kept sample
    keep: int | None = None  # the last so many only

    answer = "exact"

    def __post_init__(self) -> None:
        check_count(self, "burn_in", self.burn_in, 0)
        check_count(self, "thin", self.thin, 1)
        if self.keep is not None:
            check_count(self, "keep", self.keep, 1)

    def keeps(self, step: int, steps: int) -> bool:
        """Any state is a sample; `Collect` thins them."""
        return True

    def fates(self, net: Net, names: Sequence[str], x: Inputs | None) -> dict[str, Fate]:
        return dict.fromkeys(names, Fate("random", "sampled"))

    def weights(self, state: State) -> Weights:
        """The chains' positions."""
        return Weights(state[0], {})

    def posterior(self, state: State, target: Target) -> Posterior:
        """The chains' positions as samples; a fit replaces them by all that were kept."""
        return SamplesPosterior.of(target.net, target.likelihood, state[0], {}, "chains")

    def check(self, net: Net, assigned: Mapping[str, Assigned], likelihood: Likelihood) -> None:
        """Samplers need a density over every parameter and statistics that have seen data."""
        if points := point_names(assigned):
            raise ValueError(
                f"{type(self).__name__} samples every parameter, but {points[0]!r} is Point(); give it a "
                "prior, or Fixed() to keep it"
            )
        if names := net.untouched_norms:
            raise ValueError(
                f"BatchNorm {names[0]!r} has never seen data and a sampler keeps its statistics frozen; fit "
                "with MAP first, or use a batch-free norm such as nn.GroupNorm or nn.LayerNorm"
            )


def info(log_lik: Tensor, log_prior: Tensor, target: Target) -> Info:
    """Fit and complexity per datum from the parts of a log-posterior."""
    return Info(-log_lik, -log_prior / target.n_data)
