"""The user's own files: CSV with a header line, or npz with arrays x and y."""

import csv
import math
import os
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubito.data.errors import DataError

TargetType = Literal["class", "integer", "real"]
_INTEGER = re.compile(r"[+-]?\d+")
_DAMAGE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)  # of an npz file


@dataclass(frozen=True)
class Table:
    """What was read: column names (none for npz), the target and its type, and the label of each class index."""

    features: tuple[str, ...] = ()
    target: str | None = None
    target_type: TargetType | None = None
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Csv:
    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]

    def column(self, name: str) -> list[str]:
        index = self.header.index(name)
        return [row[index].strip() for row in self.rows]

    def numbers(self, name: str) -> NDArray[np.float64]:
        cells = self.column(name)
        try:
            values = np.array(cells, dtype=np.float64)
        except ValueError:
            values = np.array([_number(cell) for cell in cells])
        if not np.isfinite(values).all():
            self.complain(name, int(np.flatnonzero(~np.isfinite(values))[0]), "is not a finite number")
        if (large := np.abs(values) > np.finfo(np.float32).max).any():
            self.complain(name, int(np.flatnonzero(large)[0]), "is too large for float32")
        return values

    def whole(self, name: str) -> list[int]:
        """Whole numbers digit for digit, so that long labels stay apart."""
        values = self.numbers(name)
        if (values != values.round()).any():
            self.complain(name, int(np.flatnonzero(values != values.round())[0]), "is not a whole number")
        numbers = [int(c) if _INTEGER.fullmatch(c) else int(v) for c, v in zip(self.column(name), values, strict=True)]
        large = next((row for row, number in enumerate(numbers) if not -(2**63) <= number < 2**63), None)
        if large is not None:
            self.complain(name, large, "is too large for 64 bits")
        return numbers

    def complain(self, name: str, row: int, fault: str) -> None:
        cell = self.column(name)[row]
        where = f"line {self.lines[row]}, column {name!r} of {self.path}"
        if not cell:
            raise DataError(f"{where} is empty: fill it in or drop the row.")
        raise DataError(f"{where} {fault} ({cell!r}): correct it, or drop the row or the column.")


def read(
    path: str | os.PathLike[str], target: str | None = None, *, labelled: bool = True, like: Table | None = None
) -> tuple[Tensor, Tensor | None, Table]:
    """Inputs (N, ...), targets (N,) or None, and what the columns meant.

    CSV: every column but the target (by name, the last when left out) is a number. Whole numbers make an int64 target,
    other numbers float32, words are classes in alphabetical order. With `labelled=False` all columns are inputs.
    `like`, the training Table, picks columns by name and keeps its class indices; the target may be missing or empty.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"there is no file {path}: check the path.")
    if path.suffix.lower() == ".csv":
        return _csv_tensors(_open_csv(path), target, labelled, like)
    if path.suffix.lower() == ".npz":
        return _npz_tensors(path, labelled, like)
    raise DataError(f"{path} is neither .csv nor .npz: convert it to one of the two.")


def csv_header(path: Path) -> list[str]:
    """The column names of a CSV file: its first line that is not blank."""
    return [cell.strip() for _, row in _numbered(path, 1) for cell in row]


def _numbered(path: Path, most: int | None = None) -> list[tuple[int, list[str]]]:
    """Lines that are not blank, all or the first few, with their numbers."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            return list(islice(((reader.line_num, row) for row in reader if any(map(str.strip, row))), most))
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError(f"{path} cannot be read as CSV ({error}): save it as comma-separated UTF-8 text.") from error


def _open_csv(path: Path) -> _Csv:
    numbered = _numbered(path)
    if len(numbered) < 2:
        raise DataError(f"{path} has no rows: it needs a header line and at least one line of values.")
    header = [cell.strip() for cell in numbered[0][1]]
    _check_header(path, header)
    for line, row in numbered[1:]:
        if len(row) != len(header):
            raise DataError(
                f"line {line} of {path} has {len(row)} cells but the header has {len(header)}: make them equal."
            )
    return _Csv(path, header, [row for _, row in numbered[1:]], [line for line, _ in numbered[1:]])


def _check_header(path: Path, header: list[str]) -> None:
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise DataError(f"{path} is not separated by commas (its header is {header[0]!r}): save it with commas.")
    if all(not math.isnan(_number(cell)) for cell in header):
        raise DataError(f"{path} has no header: its first line holds numbers, so put a line of column names above it.")
    if twice := [cell for cell in header if header.count(cell) > 1]:
        raise DataError(f"{path} has two columns named {twice[0]!r}: rename one.")


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _csv_tensors(
    table: _Csv, target: str | None, labelled: bool, like: Table | None
) -> tuple[Tensor, Tensor | None, Table]:
    target = _target_name(table, target, labelled, like)
    features = list(like.features) if like and like.features else [name for name in table.header if name != target]
    for name in features:
        _require(table, name)
    if not features:
        raise DataError(f"{table.path} has no column besides the target {target!r}: add the inputs.")
    x = torch.from_numpy(np.stack([table.numbers(name) for name in features], axis=1).astype(np.float32))
    if target is None:
        return x, None, Table(tuple(features))
    y, kind, classes = _target(table, target, like)
    return x, y, Table(tuple(features), target, kind, classes)


def _target_name(table: _Csv, target: str | None, labelled: bool, like: Table | None) -> str | None:
    if not labelled:
        return None
    if target is not None:
        _require(table, target)
        return target
    if like is not None:
        known = like.target in table.header and any(table.column(like.target))
        return like.target if known else None
    return table.header[-1]


def _require(table: _Csv, name: str) -> None:
    if name not in table.header:
        raise DataError(f"{table.path} has no column {name!r}: its columns are {', '.join(table.header)}.")


def _target(table: _Csv, name: str, like: Table | None) -> tuple[Tensor, TargetType, tuple[str, ...]]:
    cells = table.column(name)
    if "" in cells:
        table.complain(name, cells.index(""), "is empty")
    kind = (like and like.target_type) or _target_type(cells)
    if kind == "class":
        classes = like.classes if like and like.classes else tuple(sorted(set(cells)))
        return _class_indices(cells, classes, table.path), kind, classes
    if kind == "real":
        return torch.from_numpy(table.numbers(name)).float(), kind, ()
    return torch.tensor(table.whole(name)), kind, ()


def _target_type(cells: Sequence[str]) -> TargetType:
    """Whole numbers, numbers, or words; a few words among numbers are slips, named when read as numbers."""
    if all(_INTEGER.fullmatch(cell) for cell in cells):
        return "integer"
    words = sum(math.isnan(_number(cell)) for cell in cells)
    return "class" if 2 * words > len(cells) else "real"


def _class_indices(labels: Sequence[str], classes: tuple[str, ...], path: Path) -> Tensor:
    index = {label: i for i, label in enumerate(classes)}
    for row, label in enumerate(labels):
        if label not in index:
            raise DataError(
                f"row {row} of {path} has the class {label!r}, unseen in training ({', '.join(classes)}): "
                "correct it, or fit again with rows that have it."
            )
    return torch.tensor([index[label] for label in labels])


def _npz_tensors(path: Path, labelled: bool, like: Table | None) -> tuple[Tensor, Tensor | None, Table]:
    arrays = _open_npz(path)
    x = _npz_inputs(path, arrays["x"])
    if "y" not in arrays or not labelled:
        return x, None, Table()
    y = arrays["y"]
    if y.ndim == 0 or len(y) != len(x):
        raise DataError(f"{path} has {len(x)} rows in x but y of shape {y.shape}: give one target per row.")
    if y.dtype.kind in "US":
        labels = _npz_words(path, y)
        classes = like.classes if like and like.classes else tuple(sorted(set(labels)))
        return x, _class_indices(labels, classes, path), Table((), "y", "class", classes)
    values = _npz_numbers(path, "y", y.astype(np.int64) if y.dtype.kind == "b" else y)
    return x, values, Table((), "y", "real" if values.is_floating_point() else "integer")


def _open_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, Mapping):
                raise ValueError("it holds one array without a name")
            names = ", ".join(archive) or "none"
            arrays = {name: np.asarray(archive[name]) for name in ("x", "y") if name in archive}
    except _DAMAGE as error:
        raise DataError(f"{path} cannot be read as npz ({error}): save plain arrays with numpy.savez.") from error
    if "x" not in arrays:
        raise DataError(f"{path} has no array 'x' (it has {names}): save inputs as x and targets as y.")
    return arrays


def _npz_inputs(path: Path, x: NDArray[Any]) -> Tensor:
    if x.ndim < 2 or x.size == 0:
        raise DataError(
            f"x in {path} has shape {x.shape}: it needs rows first, as in (N, features), and at least one row."
        )
    return _npz_numbers(path, "x", x)


def _npz_words(path: Path, y: NDArray[Any]) -> list[str]:
    if y.size != len(y):
        raise DataError(f"y in {path} has words of shape {y.shape}: give one word per row, or whole numbers.")
    try:
        return [str(label) for label in (np.char.decode(y, "utf-8") if y.dtype.kind == "S" else y).ravel()]
    except UnicodeDecodeError as error:
        raise DataError(f"y in {path} is no UTF-8 text ({error}): save the labels as text.") from error


def _npz_numbers(path: Path, name: str, array: NDArray[Any]) -> Tensor:
    """Floats as float32, integers (token ids, labels) as int64."""
    if array.dtype.kind not in "fiub":
        raise DataError(f"{name} in {path} holds {array.dtype}, not numbers: encode it first.")
    if array.dtype.kind in "iu":
        if array.dtype == np.uint64 and (array > np.iinfo(np.int64).max).any():
            raise DataError(f"{name} in {path} has the number {array.max()}, too large for int64: use smaller ones.")
        return torch.from_numpy(array.astype(np.int64))
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    if not np.isfinite(values).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise DataError(f"{name} in {path} is not finite at index {where}: fill it in or drop the row.")
    return torch.from_numpy(values)
