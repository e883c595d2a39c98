"""`dubito active`: settings of a fit in, a growing table of labels and what was learnt from it out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import dubito
from dubito.cli import nets, rows
from dubito.cli.settings import DataSettings, FitSettings
from dubito.data import read
from dubito.posteriors.base import Posterior
from dubito.results import Result
from dubito.tasks import Active, Oracle, Person


class Prepared(NamedTuple):
    """The pool as the network sees it, labels where they are known, rows to be judged by; what a person is shown."""

    pool: tuple[Tensor, Tensor] | Tensor
    test: tuple[Tensor, Tensor] | None
    classes: list[str]
    shown: Tensor
    columns: Sequence[str]


def learn(settings: FitSettings, task: Active, test: str | None, person: bool) -> Result:
    """Run, or go on where the folder left off."""
    if settings.run.validation is not None or settings.run.patience is not None:
        raise ValueError(
            "validation and patience are not for active learning, where every label counts; leave them out"
        )
    prepared = prepare(settings, test, person)
    data = {"pool": prepared.pool} | ({"test": prepared.test} if prepared.test is not None else {})
    folder = Path(settings.run.folder)
    oracle = _person(folder, prepared) if person else None
    try:
        return task.run(
            lambda data, _, seed: _fit(settings, data, seed),
            data,
            folder=folder,
            oracle=oracle,
            recipe=settings.recipe(),
        )
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt(f"stopped; every label so far is kept in {folder}: run the same again") from stopped


def prepare(settings: FitSettings, test: str | None, person: bool) -> Prepared:
    """Read and encode the rows; a person's pool needs no labels, and those it has are not looked at."""
    source = settings.data.source
    unlabelled = person and settings.data.is_file and settings.data.target is None
    whole = _unlabelled(source) if unlabelled else rows.open_rows(settings.data, "train")
    encoding = rows.learn(whole, settings.data.standardise, flatten=settings.net.name == "mlp")
    x = encoding.inputs(whole.x, source)
    outputs = nets.outputs(nets.build(settings.net, settings.run.seed), settings.net.name, x[:2])
    if not person:
        if whole.y is None:
            raise ValueError(f"{source} has no labels to ask for; add an array y, or let a person answer with --person")
        encoding = rows.learn_targets(encoding, whole.y, outputs, settings.likelihood)
    pool = x if person or whole.y is None else (x, encoding.targets(whole.y, source))
    judged = None
    if test is not None or not settings.data.is_file:
        found = rows.open_rows(DataSettings(source=test or source), "test", encoding)
        if found.y is None:
            raise ValueError(f"{test} has no labels to be judged by; add a column or an array y")
        judged = encoding.inputs(found.x, test or source), encoding.targets(found.y, test or source)
    return Prepared(pool, judged, encoding.class_names(outputs.shape[-1]), whole.x, whole.table.features)


def _person(folder: Path, prepared: Prepared) -> Oracle:
    """Who sees the rows as they were read, under the names of their columns, and not as the network does."""
    person = Person(folder, prepared.classes, prepared.columns)
    return lambda index, _, number: person(index, prepared.shown[list(index)], number)


def _unlabelled(source: str) -> rows.Rows:
    """All columns as inputs; words among them are likely labels, whose column can be named."""
    try:
        return rows.Rows(*read(source, labelled=False))
    except ValueError as error:
        hint = "where that column holds labels, name it as target in [data]"
        raise ValueError(f"{str(error).rstrip('.')}; {hint}") from error


def _fit(settings: FitSettings, data: Any, seed: int) -> Posterior:
    run = settings.run
    return dubito.fit(
        nets.build(settings.net, seed),
        data,
        settings.method,
        likelihood=settings.likelihood,
        prior=settings.prior,
        steps=run.steps,
        epochs=run.epochs,
        batch_size=None if run.batch_size is None else min(run.batch_size, len(torch.as_tensor(data[1]))),
        members=run.members,
        temperature=run.temperature,
        seed=seed,
        device=run.device,
        precision=run.precision,
        progress=False,
    )
