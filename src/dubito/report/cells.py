"""Numbers as words: how a table's cells look, the same in the terminal, on the page and in Markdown."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dubito.results import Cell, Table

DASH = "–"


def table_text(table: Table) -> list[list[str]]:
    """The rows as text: None as a dash, and like numbers of one column with as many decimals."""
    specs = [table.formats.get(name) or _spec([row[i] for row in table.rows]) for i, name in enumerate(table.columns)]
    return [[cell_text(cell, spec) for cell, spec in zip(row, specs, strict=True)] for row in table.rows]


def is_numeric(table: Table) -> list[bool]:
    """For each column whether it holds numbers, and so is set to the right."""
    cells = [[row[i] for row in table.rows if row[i] is not None] for i in range(len(table.columns))]
    return [bool(column) and all(_is_number(cell) for cell in column) for column in cells]


def cell_text(value: Cell, spec: str = "") -> str:
    """One value as text, by a format spec for floats or with four digits."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _float_text(value, spec)
    return value


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings or numbers as (dotted name, text) pairs."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", _list_text(value)
        else:
            yield f"{prefix}{key}", cell_text(value, ".6g")


def _list_text(values: list[Any]) -> str:
    shown = ", ".join(
        str(value) if isinstance(value, list | dict) else cell_text(value, ".6g") for value in values[:12]
    )
    return shown + (f", … ({len(values)} in all)" if len(values) > 12 else "")


def _float_text(value: float, spec: str) -> str:
    text = format(value, spec or _decimals(abs(value)))
    return text.replace("-", "−", 1) if text.startswith("-") else text


def _spec(cells: Sequence[Cell]) -> str:
    """Fixed decimals for a column of like size, nothing (each cell by its own size) otherwise."""
    sizes = [abs(cell) for cell in cells if isinstance(cell, float) and math.isfinite(cell) and cell != 0]
    return _decimals(max(sizes)) if sizes and max(sizes) <= 1000 * min(sizes) else ""


def _decimals(size: float) -> str:
    """The format spec that shows about four digits of a number of this size."""
    if not math.isfinite(size) or size == 0:
        return "g"
    if not 1e-3 <= size < 1e7:
        return ".3g"
    return f",.{min(4, max(0, 3 - math.floor(math.log10(size))))}f"


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)
