"""Tables of what there is: methods, data sets and studies."""

import inspect
from dataclasses import MISSING, Field, fields
from typing import Any

from dubito import data, methods, studies
from dubito.config import snake, suggestion
from dubito.data.catalogue import SETS
from dubito.results import Result, Table


def methods_result() -> Result:
    """Every method of the registry with its first line, its answer and its settings."""
    found = methods.registry()
    rows = [(snake(name), _first_line(cls), cls.default_members, _settings(cls)) for name, cls in found.items()]
    note = "Change a setting with --set name=value; `none` leaves it to the data. docs/which-method.md helps to choose."
    table = Table("Methods", ("name", "what it does", "members", "settings"), rows, note)
    return Result("methods", f"{len(rows)} methods", tables=[table])


def method_result(name: str) -> Result:
    """One method: its documentation and its settings, one a row."""
    known = {snake(key): cls for key, cls in methods.registry().items()}
    if name not in known:
        raise ValueError(f"no method is called {name!r}; {suggestion(name, known)}")
    cls = known[name]
    rows = [(f.name, _type(f), _default(f)) for f in _fields(cls)]
    table = Table(
        "Settings", ("name", "type", "default"), rows, f"members: {cls.default_members} unless told otherwise"
    )
    return Result(name, cls.__name__, inspect.getdoc(cls) or "", tables=[table])


def data_result() -> Result:
    """Every named set, whether it is here, and what it is."""
    here = data.available()
    rows = [(name, "yes" if name in here else "no", entry.description) for name, entry in SETS.items()]
    note = f"Looked for in {data.data_folder()}; others are downloaded where that is possible (docs/data.md)."
    return Result("data", f"{len(rows)} data sets", tables=[Table("Data", ("name", "here", "what it is"), rows, note)])


def studies_result() -> Result:
    """Every study and what it shows."""
    rows = [(name, studies.find(name).shows) for name in studies.names()]
    table = Table("Studies", ("name", "what it shows"), rows, "dubito study NAME runs one, --quick a small version.")
    return Result("studies", f"{len(rows)} studies", tables=[table])


def _first_line(cls: type[Any]) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]


def _fields(cls: type[Any]) -> list[Field[Any]]:
    return [found for found in fields(cls) if found.init and found.compare]


def _settings(cls: type[Any]) -> str:
    return ", ".join(f"{found.name}={_default(found)}" for found in _fields(cls))


def _default(found: Field[Any]) -> str:
    if found.default is MISSING:
        return "needed"
    return (
        str(found.default).lower() if found.default is None or isinstance(found.default, bool) else str(found.default)
    )


def _type(found: Field[Any]) -> str:
    return found.type.__name__ if isinstance(found.type, type) else str(found.type).replace("typing.", "")
