"""Progress bars for long work; nothing at all where output is not wanted."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def track(items: Iterable[T], total: int, label: str, show: bool) -> Iterator[T]:
    """Iterate under a bar, which appears only where there is a terminal and more than one thing to do."""
    if not show or total < 2 or not sys.stderr.isatty():
        yield from items
        return
    bar = make_bar(label)
    with bar:
        task = bar.add_task(label, total=total, text="")
        for item in items:
            yield item
            bar.advance(task)


def make_bar(label: str) -> Any:
    """A bar with rate, remaining time and a free text, on standard error."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=False,
    )
