"""What `dubito fit` was asked to do: a TOML file and flags in, checked objects out, and TOML again."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from dubito import likelihoods, methods, priors, schedules
from dubito.cli.coerce import NONE, coerced, lacking, typed
from dubito.config import dumps_toml, from_dict, loads_toml, snake, suggestion, to_dict
from dubito.likelihoods import Likelihood
from dubito.methods.base import Method
from dubito.priors import PriorSpec
from dubito.runtime import Precision

Part = Literal["method", "likelihood", "prior"]
Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Where the rows come from and how they are prepared."""

    source: str  # a named set, or a .csv or .npz file
    target: str | None = None  # the CSV column to predict, the last when None
    split: int | None = None  # the standard split of a UCI set
    standardise: bool | None = None  # None: tables yes, images no

    @property
    def is_file(self) -> bool:
        """Whether the source is a path; names of sets have no ending."""
        return bool(Path(self.source).suffix)


@dataclass(frozen=True, kw_only=True)
class NetSettings:
    """A network of `dubito.nn` by name, or `package.module:factory`, and the arguments it is made with."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The arguments of `dubito.fit` that are plain values; validation is the share of the rows that is held out."""

    folder: str
    steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    members: int | None = None
    validation: float | None = None
    patience: int | None = None
    temperature: float = 1.0
    seed: int = 0
    device: str = "auto"
    checkpoint_every: int | None = None
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if self.validation is not None and not 0 < self.validation < 1:
            raise ValueError(f"validation is the share of rows held out, between 0 and 1, got {self.validation}")


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """All of it."""

    run: RunSettings
    data: DataSettings
    net: NetSettings
    method: Method[Any]
    likelihood: Likelihood | None = None
    prior: PriorSpec = None

    def toml(self, folder: Path, standardise: bool) -> str:
        """The same settings as a file in `folder`; its paths are relative to it."""
        data = {**vars(self.data), "standardise": standardise}
        if self.data.is_file:
            data["source"] = Path(os.path.relpath(self.data.source, folder)).as_posix()
        return dumps_toml({**vars(self.run), "folder": ".", "data": data, **self.model()})

    def model(self) -> dict[str, Any]:
        """Network, method, likelihood and prior as plain values."""
        described: dict[str, Any] = {"net": vars(self.net), "method": to_dict(self.method)}
        if self.likelihood is not None:
            described["likelihood"] = to_dict(self.likelihood)
        if isinstance(self.prior, Mapping):
            described["prior"] = {pattern: to_dict(prior) for pattern, prior in self.prior.items()}
        elif self.prior is not None:
            described["prior"] = to_dict(self.prior)
        return described

    def recipe(self) -> dict[str, Any]:
        """What makes the posterior from data, wherever it is made and kept."""
        elsewhere = ("folder", "device", "seed", "checkpoint_every")
        return {**self.model(), **{name: value for name, value in vars(self.run).items() if name not in elsewhere}}


# Reading


def read(path: Path) -> Document:
    """A TOML file, the paths in it taken relative to its own folder."""
    try:
        document = loads_toml(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no settings file {path}; check the path") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text file; give the settings as TOML") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    for table, key in _SHORT.items():
        if isinstance(document.get(table), str):
            document[table] = {key: document[table]}
    if isinstance(document.get("folder"), str):
        document["folder"] = os.path.normpath(path.parent / document["folder"])
    source = _table(document, "data").get("source")
    if isinstance(source, str) and Path(source).suffix:
        document["data"]["source"] = os.path.normpath(path.parent / source)
    return document


# A table may be written as one word: method = "sgld".
_SHORT = {"data": "source", "net": "name", "method": "name", "likelihood": "name", "prior": "name"}


def override(document: Document, flags: Mapping[str, Any]) -> None:
    """Put flags that were given ("data.target": "y", "steps": 10) over what the file says."""
    for one, other in (("steps", "epochs"), ("epochs", "steps")):
        if flags.get(one) is not None:
            document.pop(other, None)
    for key, value in flags.items():
        table, _, name = key.rpartition(".")
        if value is not None:
            _table(document, table)[name] = value


def choose(document: Document, table: str, name: str | None) -> None:
    """Take other data, or another net, method, likelihood or prior; settings of the old one go with it."""
    key = _SHORT[table]
    if name is not None and _table(document, table).get(key) != name:
        document[table] = {key: name}


def assign(document: Document, assignment: str) -> None:
    """`--set step_size=1e-6` for the method, `--set prior.std=0.5` or `--set likelihood.std=0.1` for the others."""
    key, found, text = assignment.partition("=")
    if not found or not key.strip():
        raise ValueError(f"--set wants name=value, such as step_size=1e-6, got {assignment!r}")
    path = key.strip().split(".")
    if path[0] not in get_args(Part):
        path.insert(0, "method")
    place = document
    for step in path[:-1]:
        place = _table(place, step)
    place[path[-1]] = _value(text.strip())


def parse(document: Document) -> FitSettings:
    """Every value checked; the first that is wrong is named with its cure."""
    tables = ("data", "net", *get_args(Part))
    known = [*(f.name for f in fields(RunSettings)), *tables]
    for key in document:
        if key not in known:
            raise ValueError(f"there is no setting {key!r}; {suggestion(key, known)}")
    for key, cure in _NEEDED.items():
        if not document.get(key):
            raise ValueError(f"{key} is missing; {cure}")
    return FitSettings(
        run=typed(RunSettings, {key: value for key, value in document.items() if key not in tables}, "fit"),
        data=typed(DataSettings, document["data"], "data"),
        net=typed(NetSettings, document["net"], "net"),
        method=_build(document["method"], "method"),
        likelihood=_build(document["likelihood"], "likelihood") if "likelihood" in document else None,
        prior=_prior(document["prior"]) if "prior" in document else None,
    )


_NEEDED = {
    "data": "say what to learn from with --data and a file or the name of a set (see dubito data)",
    "net": "say which network with --net, for example --net mlp --net-args '{\"sizes\": [4, 50, 3]}'",
    "method": "say how to infer with --method (see dubito methods)",
    "folder": "say where to keep the run with --folder",
}


def _table(document: Document, name: str) -> Document:
    if not name:
        return document
    found = document.setdefault(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"{name} must be a table of settings, got {found!r}; write a line for each below [{name}]")
    return found


def _value(text: str) -> Any:
    """Text of a flag as a number, a truth value, none, JSON, or itself."""
    for read_as in (int, float):
        try:
            return read_as(text)
        except ValueError:
            continue
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": dict(NONE)}[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text


def classes(part: Part) -> dict[str, type]:
    """The classes that may be named, by the name that users type."""
    if part == "method":
        return {snake(name): cls for name, cls in methods.registry().items()}
    if part == "prior":
        module, base = priors, (priors.Prior, priors.Fixed, priors.Point, priors.FanIn, priors.Centred)
        return {snake(name): cls for name, cls in _members(module, base)}
    found = {snake(name): cls for name, cls in _members(likelihoods, (Likelihood,))}
    nested = {"gaussian.learned": "learned_gaussian", "gaussian.heteroscedastic": "heteroscedastic_gaussian"}
    return {**found, **{short: found[name] for short, name in nested.items()}}


def _members(module: Any, bases: tuple[type, ...]) -> list[tuple[str, type]]:
    named = [(name, cls) for name, cls in vars(module).items() if isinstance(cls, type) and issubclass(cls, bases)]
    return [(name, cls) for name, cls in named if is_dataclass(cls)]


def _prior(described: Any) -> PriorSpec:
    """One prior, or one for each pattern of parameter names."""
    patterns = isinstance(described, Mapping) and described and "name" not in described
    if patterns and all(isinstance(value, Mapping) for value in described.values()):
        return {pattern: _build(value, "prior") for pattern, value in described.items()}
    built: PriorSpec = _build(described, "prior")
    return built


def _build(described: Any, part: Part) -> Any:
    """The method, likelihood or prior that a table describes."""
    if not isinstance(described, Mapping) or "name" not in described:
        raise ValueError(f"{part} has settings but no name; say which one with --{part}")
    known = classes(part)
    name = str(described["name"])
    if name not in known and snake(name) not in known:
        raise ValueError(f"no {part} is called {name!r}; {suggestion(name, known)}")
    cls = known.get(name) or known[snake(name)]
    values = coerced(cls, {key: value for key, value in described.items() if key != "name"}, cls.__name__)
    if needed := lacking(cls, values):
        raise ValueError(f"{cls.__name__} needs a value for {needed[0]!r}; give it with --set {part}.{needed[0]}=...")
    nested = dict(_members(schedules, (schedules.Schedule,)))
    return from_dict({"name": cls.__name__, **values}, {cls.__name__: cls, **nested})
