"""A distillation at work: what the loop drives while a generator or a student learns from a posterior."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from dubito import __version__, metrics
from dubito.config import to_dict, whole
from dubito.functions import LoadedFunctions, MaskedFunctions
from dubito.held import check_held
from dubito.inputs import tensors
from dubito.likelihoods import Likelihood
from dubito.loop import Record
from dubito.net import Net
from dubito.posteriors.base import Posterior
from dubito.posteriors.load import load
from dubito.runs import RunFolder
from dubito.runtime import Precision, check_precision
from dubito.sources import Resident
from dubito.tick import Tick

CHECK_DRAWS = 20  # networks behind a score on validation data


class Held(NamedTuple):
    """Rows to score on, and how often."""

    x: Any
    y: Tensor
    every: int

    @classmethod
    def of(cls, data: Any, every: int) -> "Held | None":
        """What the user gave as validation, checked."""
        if whole("check_every", every) < 1:
            raise ValueError(f"check_every must be at least 1, got {every}")
        if data is None:
            return None
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise ValueError("validation needs inputs and what they should give; pass it as (x, y)")
        return cls(tensors(data[0]), tensors(data[1]), every)

    @property
    def print(self) -> str:
        """Tells these rows from others."""
        return Resident(self.x, self.y, None).fingerprint()


class Order(NamedTuple):
    """What is to be made: the network and likelihood of what comes out, for how many steps, described how."""

    net: Net
    likelihood: Likelihood
    steps: int
    settings: Mapping[str, Any]
    held: Held | None


class Distillation(ABC):
    """Steps of a distiller, scores on validation data and checkpoints."""

    call: str

    def __init__(self, order: Order) -> None:
        if whole("steps", order.steps) < 1:
            raise ValueError(f"there is nothing to do in {order.steps} steps; ask for at least one")
        self.net, self.likelihood, self.steps, self.settings, self.held = order
        if self.held is not None:
            check_held(self.net, self.likelihood, self.held.x, self.held.y)
        self.device = self.net.device
        self.home: RunFolder | None = None

    @property
    def precision(self) -> Precision:
        """How a GPU rounds in matrix products."""
        return check_precision(self.settings.get("precision", "float32"))

    @abstractmethod
    def begin(self, seed: int) -> Any:
        """The state before the first step."""

    @abstractmethod
    def step(self, state: Any, tick: Tick) -> tuple[Any, Any]:
        """One update."""

    @abstractmethod
    def obstacle(self) -> str | None:
        """Why steps cannot be recorded."""

    def kind(self, state: Any, step: int) -> Hashable:
        """All steps are alike."""
        return None

    def ready(self, step: int) -> None:
        """A recorded step finds all it needs by itself."""
        return None

    @abstractmethod
    def made(self, state: Any) -> Posterior:
        """What a state stands for."""

    @property
    def label(self) -> str:
        """The name of the distiller."""
        return str(self.settings["distiller"]["name"])

    @property
    def log_every(self) -> int:
        """A hundred records."""
        return max(1, self.steps // 100)

    @property
    def extendable(self) -> bool:
        """Every step is a function of its number."""
        return True

    def attach(self, home: RunFolder | None, done: int, state: Any) -> None:
        """Say where checkpoints go."""
        self.home = home

    def stopped(self, state: Any) -> bool:
        """It goes on to the last step."""
        return False

    def after(self, state: Any, done: int) -> None:
        """Nothing is kept on the way."""
        return None

    def save(self, state: Any, step: int) -> None:
        """Write a checkpoint, where there is a folder."""
        if self.home is not None:
            self.home.save(state, step)

    def validate(self, state: Any, done: int) -> tuple[Record, bool]:
        """The score that tells whether it works: how good what was made is on validation data."""
        if self.held is None or (done % self.held.every and done != self.steps):
            return {}, False
        prediction = self.made(state).predict(self.held.x, draws=CHECK_DRAWS)
        found: Record = {"validation": -float(prediction.log_prob(self.held.y).double().mean())}
        if prediction.kind == "classification":
            found["accuracy"] = metrics.accuracy(prediction.probs, self.held.y)
        return found, False

    def so_far(self, state: Any) -> Posterior:
        """What is known now."""
        made = self.made(state)
        about = {**self.settings, "steps": self.steps, "dubito": __version__}
        return replace(made, about=about)  # type: ignore[type-var]

    def end(self, state: Any, done: int) -> Posterior:
        """The posterior, written where there is a folder."""
        self.save(state, done)
        posterior = self.so_far(state)
        if self.home is not None:
            self.home.replace_posterior(posterior)
            self.home.finish(self.steps)
        return posterior

    def reopen(self, home: RunFolder) -> Posterior:
        """The posterior of a finished run."""
        return load(home.posterior, self.net.tidied(), likelihood=self.likelihood, device=str(self.net.device))


Made = TypeVar("Made", bound=Posterior)
Chosen = TypeVar("Chosen")


def chosen(distiller: object | None, kind: type[Chosen]) -> Chosen:
    """The settings that were given, or the defaults; those of another distiller are refused."""
    if distiller is None:
        return kind()
    if not isinstance(distiller, kind):
        raise ValueError(f"{distiller!r} are no settings of this distillation; give distill.{kind.__name__}(...)")
    return distiller


def expect(found: Posterior, kind: type[Made], folder: str | Path | None) -> Made:
    """What was made, of the kind that was asked for."""
    if not isinstance(found, kind):
        raise ValueError(f"{folder} holds {found!r}, which is no {kind.__name__}; choose another folder")
    return found


def describe(settings: object, posterior: Posterior, seed: int) -> dict[str, Any]:
    """Settings of a distillation as plain values."""
    return {"distiller": to_dict(settings), "teacher": dict(posterior.about), "seed": seed}


def prints(posterior: Posterior, held: Held | None) -> dict[str, Any]:
    """Tells one teacher from another in a run's folder, by a few of its networks, and the rows that it is scored on."""
    given = (LoadedFunctions, MaskedFunctions)
    theta = torch.cat([part.theta.view(1, -1) for part in posterior.draw(4).chunks(1) if isinstance(part, given)])
    teacher = Resident(theta, theta[:, 0], None).fingerprint()
    return {"fingerprints": {"teacher": teacher}, "validation": "none" if held is None else held.print}
