# ruff: noqa: F405
"""dubito, "I doubt": networks that know when they do not know.

A public name is imported from `dubito.public` when one is first asked for, so that the command line answers `--help`
without waiting for torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dubito.public import *  # noqa: F403

__version__ = "0.1.0"

__all__ = [
    "fit", "plan", "load", "merge", "load_network", "compare",
    "Posterior", "Prediction", "Method", "Target", "Net", "Tick",
    "MAP", "DeepEnsemble", "SnapshotEnsemble", "MCDropout", "AlphaDivergenceDropout", "ConcreteDropout",
    "GaussianDropout", "Variational", "VariationalDropout", "SparseVD",
    "SGLD", "PSGLD", "SGHMC", "CyclicalSGLD", "CyclicalSGHMC", "HMC", "OnlineDistillation",
    "Likelihood", "Categorical", "Bernoulli", "Gaussian", "Poisson",
    "Prior", "Normal", "ScaleMixture", "Laplace", "StudentT", "FanIn", "Centred", "Fixed", "Point",
    "Undefined", "Interrupted", "Diverged",
    "compress", "data", "distill", "metrics", "nn", "online", "report", "schedules", "studies", "tasks",
]  # fmt: skip

# the modules among them
_PARTS = ("compress", "data", "distill", "metrics", "nn", "online", "report", "schedules", "studies", "tasks")


class _Package(ModuleType):
    """The package itself; importing the file fit.py or plan.py must not hide the function of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in __all__ or name in _PARTS or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'dubito' has no attribute {name!r}")
        return import_module(f"dubito.{name}") if name in _PARTS else getattr(import_module("dubito.public"), name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
