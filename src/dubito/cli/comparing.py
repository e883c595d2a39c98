"""`dubito compare`: runs and distilled posteriors side by side, on rows encoded as the first run's."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

import dubito
from dubito import compare
from dubito.cli import rows
from dubito.cli.predicting import Run, open_run
from dubito.cli.settings import DataSettings
from dubito.posteriors.base import Posterior
from dubito.posteriors.files import read_manifest
from dubito.results import Result


def run(
    folders: Sequence[Path], data: DataSettings, outside: DataSettings | None, draws: int, seed: int, device: str
) -> Result:
    """The comparison; the first folder is a run of `dubito fit` and the teacher of the others."""
    first = open_run(folders[0], device)
    names = [str(folder) for folder in folders]
    if len(set(names)) < len(names):
        raise ValueError(f"{', '.join(names)}: a folder is given twice; name each once")
    posteriors = {names[0]: first.posterior}
    posteriors |= {str(folder): _posterior(folder, first, device) for folder in folders[1:]}
    x, y = _rows(first, data)
    if y is None:
        raise ValueError(f"{data.source} has no targets to compare with; give rows that have them")
    beyond = None if outside is None else _rows(first, outside)[0]
    return compare(posteriors, (x, first.encoding.targets(y, data.source)), outside=beyond, draws=draws, seed=seed)


def _posterior(folder: Path, first: Run, device: str) -> Posterior:
    """Another posterior: of the same network, or of a network its own file can rebuild."""
    _, manifest = read_manifest(folder)
    module = first.posterior.net.module if manifest["net"] is None else None
    return dubito.load(folder, module, device=device)


def _rows(first: Run, data: DataSettings) -> tuple[Tensor, Tensor | None]:
    found = rows.open_rows(data, "test", first.encoding)
    return first.encoding.inputs(found.x, data.source), found.y
