"""`dubito compare`: runs and distilled posteriors side by side, on rows encoded as the first run's."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from dubito import compare
from dubito.cli import rows
from dubito.cli.predicting import Run, open_beside, same_split
from dubito.cli.settings import DataSettings
from dubito.results import Result


def run(
    folders: Sequence[Path], data: DataSettings, outside: DataSettings | None, draws: int, seed: int, device: str
) -> Result:
    """The comparison; the first folder is a run of `dubito fit` and the teacher of the others."""
    first, posteriors = open_beside(folders, device)
    x, y = _rows(first, same_split(first, data))
    if y is None:
        raise ValueError(f"{data.source} has no targets to compare with; give rows that have them")
    beyond = None if outside is None else _rows(first, outside)[0]
    found = compare(posteriors, (x, first.encoding.targets(y, data.source)), outside=beyond, draws=draws, seed=seed)
    if first.encoding.y_mean is None:
        return found
    units = f"Targets are in units of the {first.encoding.y_scale:.4g} by which training divided them."
    return replace(found, summary=f"{found.summary} {units}")


def _rows(first: Run, data: DataSettings) -> tuple[Tensor, Tensor | None]:
    found = rows.open_rows(data, "test", first.encoding)
    return first.encoding.inputs(found.x, data.source), found.y
