"""`dubito fit`: settings in, a run folder out that `dubito predict` can use in another process."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import dubito
from dubito.cli import nets, rows
from dubito.cli.settings import FitSettings
from dubito.posteriors.base import Posterior
from dubito.posteriors.files import write_atomically
from dubito.runs import RunFolder

CONFIG = "fit.toml"


class Prepared(NamedTuple):
    """What `dubito.fit` is given, and how the rows were encoded."""

    net: nn.Module
    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor] | None
    encoding: rows.Encoding


def fit(settings: FitSettings, progress: bool) -> Posterior:
    """Run or resume; the folder says by `fit.toml` how to repeat it."""
    prepared = prepare(settings)
    home = RunFolder(settings.run.folder)
    folder = home.path
    if home.is_new():
        _note(settings, prepared, folder)
    try:
        posterior = _run(settings, prepared, progress)
    except dubito.Interrupted as stopped:
        _note(settings, prepared, folder)
        reached = str(stopped).partition(";")[0]
        raise KeyboardInterrupt(f"{reached}; to go on: dubito fit --config {folder / CONFIG}") from stopped
    _note(settings, prepared, folder)
    return posterior


def _note(settings: FitSettings, prepared: Prepared, folder: Path) -> None:
    """Before a new run, so that even a killed one can be repeated; after an old one was found to be the same."""
    standardised = prepared.encoding.x_mean is not None
    write_atomically(folder / CONFIG, settings.toml(folder, standardised).encode())
    prepared.encoding.save(folder)


def _run(settings: FitSettings, prepared: Prepared, progress: bool) -> Posterior:
    run = settings.run
    return dubito.fit(
        prepared.net,
        prepared.train,
        settings.method,
        likelihood=settings.likelihood,
        prior=settings.prior,
        steps=run.steps,
        epochs=run.epochs,
        batch_size=run.batch_size,
        members=run.members,
        validation=prepared.validation,
        patience=run.patience,
        temperature=run.temperature,
        seed=run.seed,
        device=run.device,
        folder=run.folder,
        checkpoint_every=run.checkpoint_every,
        precision=run.precision,
        progress=progress,
    )


def prepare(settings: FitSettings) -> Prepared:
    """Read, divide and encode the rows, and make the network."""
    source, run = settings.data.source, settings.run
    whole = rows.open_rows(settings.data, "train")
    if whole.y is None:
        raise ValueError(f"{source} has no targets to learn from; add an array y")
    net = nets.build(settings.net, run.seed)
    train, held = _division(len(whole.x), run.validation, run.seed)
    training = rows.Rows(whole.x[train], whole.y[train], whole.table)
    encoding = rows.learn(training, settings.data.standardise, flatten=settings.net.name == "mlp")
    x = encoding.inputs(whole.x, source)
    made = nets.outputs(net, settings.net.name, x)
    encoding = rows.learn_targets(encoding, whole.y[train], made, settings.likelihood)
    y = encoding.targets(whole.y, source)
    return Prepared(net, (x[train], y[train]), None if held is None else (x[held], y[held]), encoding)


def _division(n: int, share: float | None, seed: int) -> tuple[slice | Tensor, Tensor | None]:
    """Rows to learn from and rows to hold out, each in their order; the same for the same seed."""
    if share is None:
        return slice(None), None
    count = round(share * n)
    if not 0 < count < n:
        raise ValueError(f"validation={share} of {n} rows leaves {count} for validation; choose another share")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[count:].sort().values, order[:count].sort().values
