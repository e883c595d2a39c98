"""Rows for a network: read, checked against what it was trained on, encoded, and remembered in `data.json`."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubito import data
from dubito.cli.settings import DataSettings
from dubito.data import Table
from dubito.data.tables import csv_header
from dubito.likelihoods import Bernoulli, Categorical, HeteroscedasticGaussian, LearnedGaussian, Likelihood
from dubito.posteriors.files import write_atomically

Part = Literal["train", "test"]
NAME = "data.json"
FORMAT = 1


class Rows(NamedTuple):
    """Inputs and targets as they were read, and what their columns mean."""

    x: Tensor
    y: Tensor | None
    table: Table


@dataclass(frozen=True)
class Encoding:
    """How rows become what the network sees: columns, labels, and the scales of inputs and targets."""

    shape: tuple[int, ...]  # of one row as it is read
    table: Table
    flatten: bool = False
    labels: tuple[int, ...] = ()  # whole-number labels in the order of their classes, where they are not 0, 1, 2, ...
    x_mean: Any = None  # numbers in the shape of a row; None: inputs as they are
    x_std: Any = None
    y_mean: Any = None  # one number for each column of the target; None: targets as they are
    y_scale: float = 1.0

    def inputs(self, x: Tensor, source: str) -> Tensor:
        """Rows as the network sees them."""
        if tuple(x.shape[1:]) != self.shape:
            found = tuple(x.shape[1:])
            raise ValueError(
                f"a row of {source} has shape {found}, but the network was trained on {self.shape}; give such rows"
            )
        if self.x_mean is not None:
            x = (x - torch.tensor(self.x_mean)) / torch.tensor(self.x_std)
        return x.flatten(1) if self.flatten else x

    def targets(self, y: Tensor, source: str) -> Tensor:
        """Targets as the likelihood sees them."""
        if self.labels:
            return self._classes(y, source)
        if self.y_mean is not None:
            return (y.float() - torch.tensor(self.y_mean)) / self.y_scale
        return y

    def _classes(self, y: Tensor, source: str) -> Tensor:
        labels = torch.tensor(self.labels)
        index = torch.searchsorted(labels, y.contiguous()).clamp_max(len(labels) - 1)
        if bool((labels[index] != y).any()):
            strange = int(y[labels[index] != y][0])
            raise ValueError(
                f"{source} has the label {strange}, unseen in training ({', '.join(map(str, self.labels))}); "
                "correct it, or fit again with rows that have it"
            )
        return index

    def class_names(self, count: int) -> list[str]:
        """What to call each of `count` classes."""
        named = self.table.classes or tuple(map(str, self.labels))
        return [named[i] if i < len(named) else str(i) for i in range(count)]

    def original(self, value: NDArray[Any]) -> NDArray[Any]:
        """A prediction of the target, in the target's own units."""
        return value if self.y_mean is None else value * self.y_scale + np.asarray(self.y_mean, value.dtype)

    def save(self, folder: Path) -> None:
        """Write `data.json`."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        write_atomically(folder / NAME, text.encode())

    @classmethod
    def load(cls, folder: Path) -> "Encoding":
        """Read what `save` wrote."""
        path = folder / NAME
        if not path.is_file():
            raise ValueError(f"{folder} has no {NAME}, so it was not made by dubito fit; open it with dubito.load")
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["format"] > FORMAT:
                raise ValueError(f"format {record['format']} is newer than this dubito")
            values = {f.name: record[f.name] for f in fields(cls)}
            table: dict[str, Any] = {name: _tuple(value) for name, value in values["table"].items()}
            values |= {name: _tuple(values[name]) for name in ("shape", "labels")}
            return cls(**{**values, "table": Table(**table)})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} cannot be read ({error!r}); restore it or fit again") from error


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def open_rows(settings: DataSettings, part: Part, like: Encoding | None = None) -> Rows:
    """The rows of a file, or of one part of a named set; `like` the training rows where there were some."""
    if not settings.is_file:
        found = data.load(settings.source, split=settings.split)
        x, y = found.part(part)
        return Rows(x, y, Table((), "y", "real" if y.is_floating_point() else "integer", found.classes))
    if settings.split is not None:
        raise ValueError(f"split={settings.split} belongs to the UCI sets; leave it out for {settings.source}")
    if like is not None and like.table.features:
        _check_columns(Path(settings.source), like.table)
    return Rows(*data.read(settings.source, settings.target, like=like.table if like else None))


def _check_columns(path: Path, trained: Table) -> None:
    """New rows must have the columns of the training file, in any order; the target may be missing."""
    if path.suffix.lower() != ".csv" or not path.is_file():
        return
    header = csv_header(path)
    missing = [name for name in trained.features if name not in header]
    extra = [name for name in header if name not in (*trained.features, trained.target)]
    if missing or extra:
        faults = [f"lacks {_listed(missing)}"] if missing else []
        faults += [f"has {_listed(extra)}, which training did not"] if extra else []
        raise ValueError(
            f"the columns of {path} differ from those of training: it {' and '.join(faults)}; make them the same"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:5]) + (", ..." if len(names) > 5 else "")


def learn(rows: Rows, standardise: bool | None, flatten: bool) -> Encoding:
    """How to encode inputs like these: a table is standardised unless told otherwise, images are not."""
    x = rows.x
    encoding = Encoding(tuple(x.shape[1:]), rows.table, flatten and x.ndim > 2)
    if standardise is None:
        standardise = x.ndim == 2 and x.is_floating_point()
    if not standardise:
        return encoding
    if not x.is_floating_point():
        raise ValueError("the inputs are whole numbers such as token ids, which cannot be standardised; leave it out")
    mean, std = x.mean(0), x.std(0, correction=0)
    std = torch.where(x.amax(0) == x.amin(0), torch.ones_like(std), std)
    return replace(encoding, x_mean=mean.tolist(), x_std=std.tolist())


def learn_targets(encoding: Encoding, y: Tensor, outputs: Tensor, likelihood: Likelihood | None) -> Encoding:
    """How to encode targets like these, for a network with such outputs."""
    whole = not y.is_floating_point()
    classes = isinstance(likelihood, Categorical | Bernoulli) or (likelihood is None and whole)
    if classes and whole:
        return _number_classes(encoding, y, 2 if isinstance(likelihood, Bernoulli) else outputs.shape[-1])
    noise_found = likelihood is None or isinstance(likelihood, LearnedGaussian | HeteroscedasticGaussian)
    if classes or not noise_found or encoding.x_mean is None:
        return encoding
    y = y.float()
    # One scale for all columns keeps scores in original units a shift or a factor away.
    scale = float(y.var(0, correction=0).mean().sqrt()) or 1.0
    return replace(encoding, y_mean=y.mean(0).tolist(), y_scale=scale)


def _number_classes(encoding: Encoding, y: Tensor, count: int) -> Encoding:
    """Labels 0, 1, 2, ... stay, as do labels of tokens and pixels; others become classes in their order."""
    found = torch.unique(y).tolist()
    if y.ndim > 1 or (found[0] >= 0 and found[-1] < count):
        return encoding
    if len(found) > count:
        raise ValueError(f"the target has {len(found)} classes but the network only {count} outputs; give it more, or "
                         "choose another likelihood, such as gaussian.learned for numbers")  # fmt: skip
    return replace(encoding, labels=tuple(found))
