"""Who knows the labels: an array, or a person who looks at images and fills in a table."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from torch import Tensor

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

    def __init__(self, y: Tensor) -> None:
        self.y = y

    def __call__(self, index: Sequence[int], x: Tensor, number: int) -> list[int]:
        return [int(self.y[i]) for i in index]


class Person:
    """Images and a table to fill in, in `folder`; what a person has written there is never overwritten.

    classes: how many there are, or their names, which may then be written instead of numbers.
    """

    def __init__(self, folder: str | Path, classes: int | Sequence[str]) -> None:
        self.folder = Path(folder)
        count = classes if isinstance(classes, int) else len(classes)
        numbers = {str(i): i for i in range(count)}
        self.words = numbers if isinstance(classes, int) else {**{w: i for i, w in enumerate(classes)}, **numbers}
        self.hint = f"0 to {count - 1}" if isinstance(classes, int) else f"one of {', '.join(classes)}"

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
        shown = pixels(x)
        folder = make_folder(self.folder / f"images-{number:03d}" if shown is not None else self.folder)
        if shown is None:
            extra = [[f"{v:.9g}" for v in row] for row in x.flatten(1).tolist()]
            header = ["row", "label", *(f"x{i}" for i in range(len(extra[0])))]
        else:
            extra = [[_write(image, folder / f"{i}.png")] for i, image in zip(index, shown, strict=True)]
            header = ["row", "label", "image"]
        text = io.StringIO()
        rows = [[i, "", *more] for i, more in zip(index, extra, strict=True)]
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        write_atomically(table, text.getvalue().encode(), durable=True)

    def _read(self, table: Path, index: Sequence[int]) -> dict[int, int]:
        """The labels that are there, by row; a word that is no label is named with its line."""
        found: dict[int, int] = {}
        with table.open(newline="", encoding="utf-8-sig") as file:
            delimiter = ";" if ";" in file.readline() else ","  # as spreadsheets write it in many countries
            file.seek(0)
            for line, record in enumerate(csv.DictReader(file, delimiter=delimiter), start=2):
                row, word = (record.get("row") or "").strip(), (record.get("label") or "").strip()
                if not row.isdigit() or int(row) not in index:
                    raise ValueError(
                        f"line {line} of {table} is about row {row!r}, which was not asked for; restore it"
                    )
                if word and word not in self.words:
                    raise ValueError(f"line {line} of {table} has the label {word!r}; write {self.hint}")
                if word:
                    found[int(row)] = self.words[word]
        return found


def _write(image: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]", path: Path) -> str:
    """A PNG, enlarged so that it can be seen; returns its name relative to the table."""
    from PIL import Image

    times = max(1, -(-_SIDE // image.shape[0]))
    large = (255 * image).round().astype(np.uint8).repeat(times, 0).repeat(times, 1)
    buffer = io.BytesIO()
    Image.fromarray(large).save(buffer, "png")
    write_atomically(path, buffer.getvalue())
    return f"{path.parent.name}/{path.name}"
