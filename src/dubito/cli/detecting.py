"""`dubito ood`: runs and sets of rows in, what their doubt detects out."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from dubito.cli import rows
from dubito.cli.predicting import Run, open_beside
from dubito.cli.settings import DataSettings
from dubito.report import write_figures, write_html
from dubito.results import Result
from dubito.rng import choose
from dubito.tasks import OOD


def detect(
    folders: Sequence[Path], inside: str, outside: Sequence[str], limit: int | None, device: str, task: OOD
) -> Result:
    """The first folder is a run of `dubito fit`, whose encoding all see the rows in."""
    first, posteriors = open_beside(folders, device)
    x, y = _rows(first, inside, limit, task.seed)
    near = x if y is None else (x, first.encoding.targets(y, inside))
    sets = {name: _rows(first, name, limit, task.seed)[0] for name in outside}
    return task.run(posteriors, {"inside": near, **sets})


def write(result: Result, folder: Path) -> list[Path]:
    """The result, its figures and a page of both."""
    saved = result.save(folder / f"{result.name}.json")
    write_figures(result, folder / "figures")
    return [saved, write_html([result], folder / "report.html", result.title)]


def _rows(run: Run, source: str, limit: int | None, seed: int) -> tuple[Tensor, Tensor | None]:
    found = rows.open_rows(DataSettings(source=source), "test", run.encoding)
    kept = choose(len(found.x), limit or len(found.x), seed)
    return run.encoding.inputs(found.x[kept], source), None if found.y is None else found.y[kept]
