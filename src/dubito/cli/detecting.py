"""`dubito ood`: runs and sets of rows in, what their doubt detects out."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from dubito.cli import rows
from dubito.cli.predicting import Run, open_run
from dubito.cli.settings import DataSettings
from dubito.report import write_figures, write_html
from dubito.results import Result
from dubito.rng import choose
from dubito.tasks import OOD


def detect(
    folders: Sequence[Path], inside: str, outside: Sequence[str], limit: int | None, device: str, task: OOD
) -> Result:
    """Every run on the same rows; they must see them in the same encoding."""
    runs = {label: open_run(folder, device) for label, folder in labels(folders).items()}
    first, *others = runs.values()
    for folder, other in zip(folders[1:], others, strict=True):
        if other.encoding != first.encoding:
            raise ValueError(f"{folder} encodes its rows otherwise than {folders[0]}; look at one after the other")
    x, y = _rows(first, inside, limit, task.seed)
    near = x if y is None else (x, first.encoding.targets(y, inside))
    sets = {name: _rows(first, name, limit, task.seed)[0] for name in outside}
    return task.run({label: run.posterior for label, run in runs.items()}, {"inside": near, **sets})


def labels(folders: Sequence[Path]) -> dict[str, Path]:
    """Runs by the names of their folders, or by their paths where names repeat."""
    short = {folder.resolve().name: folder for folder in folders}
    return short if len(short) == len(folders) else {str(folder): folder for folder in folders}


def write(result: Result, folder: Path) -> list[Path]:
    """The result, its figures and a page of both."""
    saved = result.save(folder / f"{result.name}.json")
    write_figures(result, folder / "figures")
    return [saved, write_html([result], folder / "report.html", result.title)]


def _rows(run: Run, source: str, limit: int | None, seed: int) -> tuple[Tensor, Tensor | None]:
    found = rows.open_rows(DataSettings(source=source), "test", run.encoding)
    kept = choose(len(found.x), limit or len(found.x), seed)
    return run.encoding.inputs(found.x[kept], source), None if found.y is None else found.y[kept]
