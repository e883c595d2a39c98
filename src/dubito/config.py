"""Settings as data: frozen dataclasses to plain dictionaries and TOML, and back."""

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

_NONE = {"name": "None"}  # TOML has no null


def snake(name: str) -> str:
    """A class name as users type it: MCDropout -> mc_dropout, SGLD -> sgld."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the closest known word, or all of them."""
    names = list(known)
    close = get_close_matches(word, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names) or 'none'}."


def to_dict(settings: object) -> dict[str, Any]:
    """{"name": class name, field: value, ...}, recursively; fields left out of comparison are no settings.

    A field that is None by default and in fact is left out. An object that is no dataclass, such as a user's own
    prior, is recorded by its repr and cannot be read back.
    """
    name = type(settings).__name__
    if not is_dataclass(settings):
        return {"name": name, "repr": _stable_repr(settings)}
    described: dict[str, Any] = {"name": name}
    for field in _setting_fields(settings):
        value = getattr(settings, field.name)
        if field.name == "name":
            raise ValueError(f"{name} has a field called 'name', which is taken by the class name; rename the field.")
        if value is not None or field.default is not None:
            described[field.name] = _plain(value)
    return described


def from_dict(described: Mapping[str, Any], registry: Mapping[str, type]) -> Any:
    """The object `to_dict` described, its classes looked up by name (also in snake case) in `registry`."""
    if "name" not in described:
        raise ValueError(f"settings {dict(described)} lack a 'name'; add the name of the class they belong to.")
    values = {key: value for key, value in described.items() if key != "name"}
    cls = _find_class(str(described["name"]), "repr" in described, registry)
    known = {field.name: field for field in _setting_fields(cls)}
    for key in values:
        if key not in known:
            raise ValueError(f"{cls.__name__} has no setting {key!r}; {suggestion(key, known)}")
    for key, field in known.items():
        if key not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{cls.__name__} needs a value for {key!r}; add it to its settings.")
    built = {key: _build(value, registry) for key, value in values.items()}
    try:
        return cls(**built)
    except TypeError as error:
        raise ValueError(f"{cls.__name__} cannot take {built}: {error}; check the type of each value.") from error


def dumps_toml(described: Mapping[str, Any]) -> str:
    """A plain dictionary as TOML; keys whose value is None are left out."""
    import tomli_w

    return tomli_w.dumps(_without_none(described))


def loads_toml(text: str) -> dict[str, Any]:
    """TOML as a plain dictionary."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the settings are not valid TOML: {error}; correct that line.") from error


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """How two described settings differ, one line each: "step_size: 1e-06 here, 1e-05 there"."""
    return list(_differences(a, b, ""))


def check_count(owner: object, name: str, value: Any, least: int) -> None:
    """A setting that counts something."""
    if not isinstance(value, Integral):  # numpy's whole numbers too
        raise ValueError(f"{type(owner).__name__}: {name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{type(owner).__name__}: {name} must be at least {least}, got {value}")


def is_number(value: object) -> bool:
    """Whether a setting is a finite real number, of Python or of numpy."""
    return isinstance(value, Real) and math.isfinite(value)


def is_real(value: object) -> bool:
    """Whether a setting is a real number, of Python or of numpy; infinity is one too."""
    return isinstance(value, Real) and not math.isnan(value)


def whole(name: str, value: Any) -> int:
    """An argument that counts something."""
    if not isinstance(value, Integral):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return int(value)


def check_finite_number(owner: object, name: str, value: Any) -> None:
    """A setting that is any real number."""
    if not is_number(value):
        raise ValueError(f"{type(owner).__name__}: {name} must be a finite number, got {value!r}; 0.5 is one")


def check_positive(owner: object, name: str, value: Any) -> None:
    """A setting that must be positive."""
    if not (is_number(value) and value > 0):
        raise ValueError(f"{type(owner).__name__}: {name} must be positive, got {value!r}")


def _setting_fields(settings: Any) -> list[Field[Any]]:
    return [field for field in fields(settings) if field.compare and field.init]


def _stable_repr(value: object) -> str:
    """The repr without memory addresses, which differ between runs."""
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _plain(value: object) -> Any:
    if value is None:
        return dict(_NONE)
    if isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    return to_dict(value)


def _build(value: Any, registry: Mapping[str, type]) -> Any:
    if isinstance(value, Mapping) and "name" in value:
        return None if value == _NONE else from_dict(value, registry)
    if isinstance(value, Mapping):
        return {key: _build(item, registry) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_build(item, registry) for item in value)
    return value


def _find_class(name: str, by_repr: bool, registry: Mapping[str, type]) -> type:
    found = registry.get(name) or {snake(key): cls for key, cls in registry.items()}.get(name)
    if found is not None and is_dataclass(found):
        return found
    if by_repr or found is not None:
        raise ValueError(f"{name} was recorded by its repr alone and cannot be rebuilt; pass the object itself.")
    raise ValueError(f"no class is called {name!r}; {suggestion(name, registry)}")


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value


def _differences(a: Mapping[str, Any], b: Mapping[str, Any], path: str) -> Iterator[str]:
    for key in [*a, *(key for key in b if key not in a)]:
        here, there = a.get(key, MISSING), b.get(key, MISSING)
        if isinstance(here, Mapping) and isinstance(there, Mapping) and here.get("name") == there.get("name"):
            yield from _differences(here, there, f"{path}{key}.")
            if "name" not in here and here.keys() == there.keys() and list(here) != list(there):  # first match wins
                yield f"{path}{key}: {', '.join(here)} here, {', '.join(there)} there in this order"
        elif not _same(here, there):
            yield f"{path}{key}: {_show(here)} here, {_show(there)} there"


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    both_nan = isinstance(a, float) and isinstance(b, float) and a != a and b != b
    return both_nan or bool(a == b)


def _show(value: Any) -> str:
    if value is MISSING:
        return "missing"
    if isinstance(value, Mapping) and "name" in value:
        inner = ", ".join(f"{key}={_show(item)}" for key, item in value.items() if key != "name")
        return f"{value['name']}({inner})" if value != _NONE else "None"
    return str(value)
