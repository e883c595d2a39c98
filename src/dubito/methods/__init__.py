"""The algorithms, one file each; `find` knows them by class or by name."""

import importlib
import inspect
import pkgutil
from difflib import get_close_matches
from functools import cache
from typing import Any

from dubito.config import snake
from dubito.methods.base import Method


@cache
def registry() -> dict[str, type[Method[Any]]]:
    """Every method of this package by class name, found by looking through its files."""
    found: dict[str, type[Method[Any]]] = {}
    for module in pkgutil.iter_modules(__path__):
        for name, cls in vars(importlib.import_module(f"{__name__}.{module.name}")).items():
            if inspect.isclass(cls) and issubclass(cls, Method) and _is_algorithm(cls):
                found[name] = cls
    return dict(sorted(found.items()))


def _is_algorithm(cls: type[Method[Any]]) -> bool:
    return not inspect.isabstract(cls) and not cls.__name__.startswith("_") and hasattr(cls, "answer")


def find(method: "Method[Any] | str") -> Method[Any]:
    """A method as given, or by its name in snake case with default settings."""
    if isinstance(method, Method):
        return method
    if not isinstance(method, str):
        raise ValueError(f"method must be an instance such as dubito.SGLD(), or a name such as 'sgld', got {method!r}")
    named = {snake(name): cls for name, cls in registry().items()}
    if method in named:
        return named[method]()
    close = get_close_matches(method, named, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(named))}"
    raise ValueError(f"no method is called {method!r}; {hint}")
