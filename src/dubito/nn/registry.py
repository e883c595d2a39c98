"""Named networks: a factory registered here marks what it makes with a recipe that rebuilds it from JSON."""

import difflib
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from torch import nn

P = ParamSpec("P")
Factory = Callable[..., nn.Module]

_FACTORIES: dict[str, Factory] = {}
_MARK = "_dubito_recipe"


def register(factory: Callable[P, nn.Module]) -> Callable[P, nn.Module]:
    """Make `factory` buildable by its name; its arguments must be JSON values."""
    name = getattr(factory, "__name__", repr(factory))
    signature = inspect.signature(factory)

    @functools.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> nn.Module:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        module = factory(*args, **kwargs)
        module.__dict__[_MARK] = {"name": name, "arguments": _as_json(name, bound.arguments), "shape": repr(module)}
        return module

    _FACTORIES[name] = make
    return make


def names() -> tuple[str, ...]:
    """The networks that `build` and `--net` know, in alphabetical order."""
    return tuple(sorted(_FACTORIES))


def recipe(module: nn.Module) -> dict[str, Any] | None:
    """How `module` was made, or None for a net of another origin or one whose layers were changed since."""
    mark = module.__dict__.get(_MARK)
    if mark is None or mark["shape"] != repr(module) or hooked(module):
        return None
    return {"name": mark["name"], "arguments": json.loads(json.dumps(mark["arguments"]))}


def hooked(module: nn.Module) -> bool:
    """Whether some layer does more at a call than its forward pass."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def build(recipe: Mapping[str, Any]) -> nn.Module:
    """The network a recipe describes, freshly initialised; `{"name": "fcnn1"}` is a whole recipe."""
    name, arguments = recipe.get("name"), recipe.get("arguments", {})
    factory = _FACTORIES.get(str(name))
    if factory is None:
        close = difflib.get_close_matches(str(name), _FACTORIES, n=1)
        cure = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(names())}."
        raise ValueError(f"there is no network named {name!r} in dubito.nn; {cure}")
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        usage = f"{name}{inspect.signature(factory)}"
        raise ValueError(f"the arguments {arguments!r} do not fit {usage}: {error}.") from error
    return factory(**arguments)


def _as_json(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(json.dumps(dict(arguments)))
    except TypeError as error:
        raise ValueError(f"{name} got {dict(arguments)!r}, but its arguments must be JSON values: {error}.") from error
    return values
