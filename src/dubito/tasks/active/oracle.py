"""Who knows the labels: an array, or a person who looks at images and fills in a table."""

import csv
import io
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubito.inputs import tensors
from dubito.posteriors.files import make_folder, write_atomically
from dubito.tasks.base import pixels

_SIDE = 140  # pixels that a written image has at least


class Waiting(Exception):
    """Labels are asked for and not there yet; the message says where to put them."""


class Oracle(Protocol):
    """Labels for some rows of the pool; `x` are those rows, `number` counts the questions."""

    def __call__(self, index: Sequence[int], x: Tensor, number: int) -> list[int]: ...


class Known:
    """Labels from an array."""

    def __init__(self, y: Any) -> None:
        found = torch.as_tensor(tensors(y))
        if not found.dim() or found.numel() != len(found) or bool((found != found.long()).any()):
            raise ValueError(f"labels of shape {tuple(found.shape)} are not one whole number each; number the classes")
        self.y = found.reshape(-1)

    def confirm(self, index: Sequence[int], noted: Sequence[int]) -> None:
        """Refuse labels other than those that a run has learnt from already."""
        for row, label in zip(index, noted, strict=True):
            if row < len(self.y) and int(self.y[row]) != label:
                raise ValueError(
                    f"row {row} has the label {int(self.y[row])}, but the folder's run was told {label}; give the same "
                    "labels, or choose another folder"
                )

    def __call__(self, index: Sequence[int], x: Tensor, number: int) -> list[int]:
        if max(index) >= len(self.y):
            known = f"row {max(index)} was asked for and {len(self.y)} labels are known"
            raise ValueError(f"{known}; give one for each row")
        return [int(self.y[i]) for i in index]


class Person:
    """Images and a table to fill in, in `folder`; what a person has written there is never overwritten.

    classes: how many there are, or their names, which may then be written instead of numbers.
    columns: what the numbers of an input are called; inputs that have such names are never drawn as images.
    """

    def __init__(
        self, folder: str | Path, classes: int | Sequence[str] | NDArray[Any], columns: Sequence[str] = ()
    ) -> None:
        self.folder, self.columns, given = Path(folder), list(columns), cast(Any, classes)
        numbered = isinstance(given, Integral)  # numpy's whole numbers too
        if isinstance(given, str) or not (numbered or isinstance(given, Sequence | np.ndarray)):
            raise ValueError(f"classes={classes!r} are no classes; give their number, or their names in a list")
        names = [str(name) for name in (range(given) if numbered else given)]
        count = len(names)
        if len(set(names)) != count:
            raise ValueError(f"classes={names} names one class twice; give each a name of its own")
        if count < 2:
            raise ValueError(f"classes={classes!r} leave nothing to tell apart; give their number or names, 2 or more")
        self.words = {name: i for i, name in enumerate(names)}
        numbers = {str(i): i for i in range(count)}
        if not numbers.keys() & self.words.keys():  # names that are numbers mean themselves
            self.words |= numbers
        self.hint = f"0 to {count - 1}" if numbered else f"one of {', '.join(names)}"

    def __call__(self, index: Sequence[int], x: Tensor, number: int) -> list[int]:
        table = self.folder / f"to-label-{number:03d}.csv"
        if not table.exists():
            self._ask(table, index, x, number)
        found = self._read(table, index)
        missing = sum(i not in found for i in index)
        if missing:
            raise Waiting(
                f"{missing} of {len(index)} labels are missing: write them ({self.hint}) into the column label of "
                f"{table}, then run the same again"
            )
        return [found[i] for i in index]

    def _ask(self, table: Path, index: Sequence[int], x: Tensor, number: int) -> None:
        """Write the rows out; the table comes last, so that it never names an image that is not there."""
        shown = None if self.columns else pixels(x)
        folder = make_folder(self.folder / f"images-{number:03d}" if shown is not None else self.folder)
        if shown is None:
            extra = _numbers(x)
            header = ["row", "label", *self._names(len(extra[0]))]
        else:
            extra = [[_write(image, folder / f"{i}.png")] for i, image in zip(index, shown, strict=True)]
            header = ["row", "label", "image"]
        text = io.StringIO()
        rows = [[i, "", *more] for i, more in zip(index, extra, strict=True)]
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        write_atomically(table, text.getvalue().encode(), durable=True)

    def _names(self, count: int) -> list[str]:
        """A header for each number, none of them that of another column."""
        names = self.columns or [f"x{i}" for i in range(count)]
        if len(names) != count:
            raise ValueError(f"columns name {len(names)} numbers, but an input has {count}; give each one name")
        return [f"input {name}" if name in ("row", "label") else name for name in names]

    def _read(self, table: Path, index: Sequence[int]) -> dict[int, int]:
        """The labels that are there, by row; a word that is no label is named with its line."""
        found: dict[int, int] = {}
        for line, record in enumerate(_records(table), start=2):
            row, word = (record.get("row") or "").strip(), (record.get("label") or "").strip()
            if not row and not word:
                continue
            if not row.isdecimal() or int(row) not in index:
                raise ValueError(f"line {line} of {table} is about row {row!r}, which was not asked for; restore it")
            if word and word not in self.words:
                raise ValueError(f"line {line} of {table} has the label {word!r}; write {self.hint}")
            if word and found.setdefault(int(row), self.words[word]) != self.words[word]:
                raise ValueError(f"line {line} of {table} labels row {row} otherwise than before; keep one of both")
        return found


def _records(table: Path) -> list[dict[str, str]]:
    """The lines of a table that a person has saved, with whatever program."""
    try:
        text = table.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{table} is no UTF-8 text ({error.reason}); save it as CSV in UTF-8") from error
    first = text.partition("\n")[0]
    columns = next(csv.reader([first], delimiter=";"), [])
    delimiter = ";" if {"row", "label"} <= set(columns) else ","  # as spreadsheets write it in many countries
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    missing = [name for name in ("row", "label") if name not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"{table} has no column {missing[0]!r} in its first line; restore the line row,label,...")
    return list(reader)


def _numbers(x: Tensor) -> list[list[str]]:
    """Each number by the fewest digits that tell it from its neighbours."""
    flat = x.reshape(len(x), -1)
    values = (flat.float() if flat.is_floating_point() else flat.long()).cpu().numpy()
    return [[str(value).removesuffix(".0") for value in row] for row in values]


def _write(image: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]", path: Path) -> str:
    """A PNG, enlarged so that it can be seen; returns its name relative to the table."""
    from PIL import Image

    times = max(1, -(-_SIDE // image.shape[0]))
    large = (255 * image).round().astype(np.uint8).repeat(times, 0).repeat(times, 1)
    buffer = io.BytesIO()
    Image.fromarray(large).save(buffer, "png")
    write_atomically(path, buffer.getvalue())
    return f"{path.parent.name}/{path.name}"
