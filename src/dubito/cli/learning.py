"""`dubito active`: settings of a fit in, a growing table of labels and what was learnt from it out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import dubito
from dubito.cli import nets, rows
from dubito.cli.settings import DataSettings, FitSettings
from dubito.data import Table, load, read
from dubito.data.tables import csv_header
from dubito.posteriors.base import Posterior
from dubito.results import Result
from dubito.tasks import Active, Oracle, Person


class Prepared(NamedTuple):
    """The pool as the network sees it, labels where they are known, rows to be judged by; what a person is shown.

    taught: whether the rows to be judged by name the classes.
    """

    pool: tuple[Tensor, Tensor] | Tensor
    test: tuple[Tensor, Tensor] | None
    classes: list[str]
    shown: Tensor
    columns: Sequence[str]
    taught: bool


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
            recipe=settings.recipe() | ({"classes": prepared.classes} if prepared.taught else {}),
        )
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt(f"stopped; every label so far is kept in {folder}: run the same again") from stopped


def prepare(settings: FitSettings, test: str | None, person: bool) -> Prepared:
    """Read and encode the rows; a person's pool needs no labels, and those it has name the classes alone."""
    source = settings.data.source
    whole = _for_person(settings.data) if person and settings.data.is_file else rows.open_rows(settings.data, "train")
    if whole.y is None and not person:
        raise ValueError(f"{source} has no labels to ask for; add an array y, or let a person answer with --person")
    encoding = rows.learn(whole, settings.data.standardise, flatten=settings.net.name == "mlp")
    x = encoding.inputs(whole.x, source)
    outputs = nets.outputs(nets.build(settings.net, settings.run.seed), settings.net.name, x[:2])
    found = _judges(settings.data, test, encoding)
    told = found if whole.y is None else whole
    if told is not None and told.y is not None:
        encoding = rows.learn_targets(replace(encoding, table=told.table), told.y, outputs, settings.likelihood)
    pool = x if person or whole.y is None else (x, encoding.targets(whole.y, source))
    judged = None
    if found is not None and found.y is not None:
        judged = encoding.inputs(found.x, test or source), encoding.targets(found.y, test or source)
    names = encoding.class_names(outputs.shape[-1])
    taught = whole.y is None and names != [str(i) for i in range(len(names))]
    return Prepared(pool, judged, names, whole.x, whole.table.features, taught)


def _for_person(data: DataSettings) -> rows.Rows:
    """A file whose labels may be missing, or empty throughout; all columns are inputs where none is named."""
    path = Path(data.source)
    if data.target is None:
        return _unlabelled(data.source)
    if path.suffix.lower() != ".csv" or not path.is_file():
        return rows.open_rows(data, "train")
    features = tuple(name for name in csv_header(path) if name != data.target)
    return rows.Rows(*read(path, like=Table(features, data.target)))


def _judges(data: DataSettings, test: str | None, encoding: rows.Encoding) -> rows.Rows | None:
    """Rows to be judged by: those named, or the test part of a named set that has one."""
    if test is None:
        return None if data.is_file or _is_whole(data) else rows.open_rows(data, "test", encoding)
    path, table = Path(test), encoding.table
    if table.target is None and table.features and path.suffix.lower() == ".csv" and path.is_file():
        new = [name for name in csv_header(path) if name not in table.features]
        table = replace(table, target=data.target or (new[0] if len(new) == 1 else None))
    found = rows.open_rows(DataSettings(source=test), "test", replace(encoding, table=table))
    if found.y is None:
        raise ValueError(f"{test} has no labels to be judged by; add a column or an array y")
    return found


def _is_whole(data: DataSettings) -> bool:
    """Whether a named set is one part, which a note would say of one whose other part could not be had."""
    found = load(data.source, split=data.split)
    return found.test is None and not found.notes


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
