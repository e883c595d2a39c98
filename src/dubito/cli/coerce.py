"""Values from flags and TOML in the types that a settings class declares."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dubito.config import suggestion

NONE = {"name": "None"}  # how settings files write None


def typed(cls: type[Any], values: Any, owner: str) -> Any:
    """A settings object made from a table."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{owner} must be a table of settings, got {values!r}; write a line for each below [{owner}]")
    found = coerced(cls, values, owner)
    if needed := lacking(cls, found):
        raise ValueError(f"{owner} needs a value for {needed[0]!r}; add a line for it below [{owner}]")
    return cls(**{key: None if value == NONE else value for key, value in found.items()})


def lacking(cls: type[Any], values: Mapping[str, Any]) -> list[str]:
    """Fields without a default that have no value."""
    needed = [found.name for found in fields(cls) if found.default is MISSING and found.default_factory is MISSING]
    return [name for name in needed if name not in values]


def coerced(cls: type[Any], values: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """The values in the types that the fields declare, or an error that names the field."""
    hints = get_type_hints(cls)
    known = [one.name for one in fields(cls) if one.init and one.compare]
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise ValueError(f"{owner} has no setting {key!r}; {suggestion(key, known)}")
        fitting = _fitting(value, hints[key])
        if fitting is MISSING:
            raise ValueError(f"{owner}: {key} wants {_words(hints[key])}, got {value!r}")
        found[key] = fitting
    return found


def _fitting(value: Any, hint: Any) -> Any:
    """The value as the hint wants it; MISSING where it does not fit."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        fits = [_fitting(value, choice) for choice in get_args(hint)]
        return next((fit for fit in fits if fit is not MISSING), MISSING)
    if origin is Literal:
        return value if value in get_args(hint) else MISSING
    if hint is NoneType:
        return value if value is None or value == NONE else MISSING
    if isinstance(value, bool) or hint is bool:
        return value if hint is bool and isinstance(value, bool) else MISSING
    if hint is float:
        return float(value) if isinstance(value, int | float) else MISSING
    if hint is int and isinstance(value, float):
        return int(value) if value.is_integer() else MISSING
    container = {Sequence: list, tuple: list, list: list}.get(origin or hint)
    wanted = container or (hint if hint in (int, str) else Mapping)
    return value if isinstance(value, wanted) and value != NONE else MISSING


def _words(hint: Any) -> str:
    plain = {float: "a number", int: "a whole number", bool: "true or false", str: "a word", NoneType: "none"}
    if hint in plain:
        return plain[hint]
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_words(choice) for choice in get_args(hint))
    return f"a {getattr(hint, '__name__', 'table').lower()}"
