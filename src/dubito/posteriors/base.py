"""What a posterior is: something one can draw functions from. It carries its network and its likelihood, no data."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from dubito import prediction as predictions
from dubito.functions import Functions
from dubito.likelihoods import Likelihood
from dubito.net import Net
from dubito.prediction import Prediction, Undefined
from dubito.runtime import Precision, check_precision

if TYPE_CHECKING:
    from dubito.diagnostics import Diagnostics
    from dubito.priors import Assigned


def check_draws(name: str, value: Any) -> None:
    """A number of networks, or of rows at a time, asked for."""
    if not isinstance(value, Integral):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def check_posterior(found: object, name: str = "posterior") -> None:
    """Refuse a module, or whatever else was given in place of a posterior."""
    if not isinstance(found, Posterior):
        kind = type(found).__name__
        raise ValueError(f"{name} is of type {kind}, not a posterior; give what dubito.fit or dubito.load returns")


def check_name(what: str, name: object) -> None:
    """Refuse a name that is no text: it stands in tables, figures and files."""
    if not isinstance(name, str):
        raise ValueError(f"{what} come by name, and {name!r} is no text; give it as {str(name)!r}")


def check_named(posteriors: object) -> None:
    """Refuse what is not at least one posterior, each by its name."""
    if not isinstance(posteriors, Mapping):
        raise ValueError(f"posteriors come by name, and {posteriors!r} has none; give {{name: posterior}}")
    if not posteriors:
        raise ValueError("there is no posterior to look at; give at least one, as {name: posterior}")
    for name, posterior in posteriors.items():
        check_name("posteriors", name)
        check_posterior(posterior, repr(name))


class Posterior(ABC):
    """A distribution over networks; `about` holds how it was made, for its file and for people."""

    kind: ClassVar[str]
    net: Net
    likelihood: Likelihood
    about: Mapping[str, Any]

    @abstractmethod
    def draw(self, n: int, seed: int = 0) -> Functions:
        """n functions x -> outputs, the same at every call and on any batching."""

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write a folder that `dubito.load` opens."""

    @abstractmethod
    def to(self, device: str | torch.device) -> "Posterior":
        """The same posterior on another device; "auto" as in `fit`."""

    @abstractmethod
    def __len__(self) -> int:
        """How many networks are stored."""

    def predict(
        self,
        x: Any,
        draws: int = 100,
        seed: int = 0,
        *,
        batch_size: int | None = None,
        keep_draws: bool | None = None,
        precision: Precision = "float32",
        progress: bool = False,
    ) -> Prediction:
        """The predictive distribution at x: tensors, arrays, a Dataset or a DataLoader (labels are left out).

        precision: how a GPU rounds in matrix products; whatever comes out is in the network's own type.
        """
        check_draws("draws", draws)
        if batch_size is not None:
            check_draws("batch_size", batch_size)
        check_precision(precision)
        functions = self.draw(draws, seed)
        return predictions.predict(functions, self.likelihood, x, batch_size, keep_draws, precision, progress)

    def sample(self, n: int, seed: int = 0) -> dict[str, Tensor]:
        """n networks as {name: (n, *shape)}, for posteriors over weights."""
        raise Undefined(
            f"{type(self).__name__} is no distribution over weights, so there are none to sample; use draw()"
        )

    def member(self, index: int) -> "Posterior":
        """One of several that were fitted side by side, by itself."""
        raise Undefined(f"{type(self).__name__} has no members to take apart; use it as a whole")

    def mean_network(self) -> nn.Module:
        """The plain module that stands for the whole posterior, where one can."""
        raise Undefined(f"{type(self).__name__} has no single network that stands for it; use predict()")

    def diagnose(self, x: Any = None) -> "Diagnostics":
        """R-hat and effective sample sizes, of weights and, where x is given, of predictions at x."""
        raise Undefined(
            f"{type(self).__name__} draws independently, so there is no chain to diagnose; judge it by its scores, or "
            "beside another posterior with dubito.compare"
        )

    def as_prior(self) -> "dict[str, Assigned]":
        """This posterior as the prior of another fit: `fit(net, data, method, prior=posterior.as_prior())`."""
        raise Undefined(
            f"{type(self).__name__} has no density to be a prior; take one that has, of a Variational fit or of "
            "distill.mixture(posterior)"
        )
