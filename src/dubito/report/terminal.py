"""Results in the terminal: tables that fit the width, and plain text that stays readable in a file or a pipe."""

from typing import TYPE_CHECKING

from dubito.report.cells import is_numeric, table_text
from dubito.results import Result, Table

if TYPE_CHECKING:
    from rich.console import Console


def print_result(result: Result, console: "Console | None" = None) -> None:
    """Print title, summary and tables; figures and settings are for the page."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console()
    console.print(Text(_fit(result.title, console), style="bold"))
    for paragraph in filter(None, (part.strip() for part in result.summary.split("\n\n"))):
        console.print(Text(_fit(" ".join(paragraph.split()), console)))
    for table in result.tables:
        console.print()
        print_table(table, console)


def print_table(table: Table, console: "Console") -> None:
    """Print one table: as a grid where it fits, row by row on a narrower screen; a file or pipe has no width."""
    from rich.text import Text

    console.print(Text(_fit(table.title, console), style="bold"))
    lines = _grid(table, console)
    if console.is_terminal and max(map(len, lines)) > console.width:
        _print_rows(table, console)
    else:
        for i, line in enumerate(lines):
            console.print(Text(line, style="dim" if i < 2 else ""), soft_wrap=True)
    if table.note:
        console.print(Text(_fit(table.note, console), style="dim"))


def _grid(table: Table, console: "Console") -> list[str]:
    """Aligned lines: the columns' names, a rule, the rows."""
    rows = (list(table.columns), *table_text(table))
    texts = [[_fit(" ".join(cell.splitlines()), console) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    sides = [">" if numeric else "<" for numeric in is_numeric(table)]
    lines = ["  ".join(f"{c:{s}{w}}" for c, s, w in zip(row, sides, widths, strict=True)).rstrip() for row in texts]
    return [lines[0], _fit("─", console)[0] * (sum(widths) + 2 * len(widths) - 2), *lines[1:]]


def _print_rows(table: Table, console: "Console") -> None:
    from rich.padding import Padding
    from rich.text import Text

    for row in table_text(table):
        console.print(Text(_fit(row[0], console), style="bold"))
        for name, cell in zip(table.columns[1:], row[1:], strict=True):
            console.print(Padding(Text(_fit(f"{name}: {cell}", console)), (0, 0, 0, 2)))


def _fit(text: str, console: "Console") -> str:
    """The text in characters that the output can write; dashes, minus signs and rules have plain forms."""
    try:
        text.encode(console.encoding)
    except UnicodeEncodeError:
        plain = text.translate({ord("–"): "-", ord("−"): "-", ord("─"): "-"})
        return plain.encode(console.encoding, "replace").decode(console.encoding)
    return text
