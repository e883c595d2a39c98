"""`dubito predict` and `dubito evaluate`: a run folder and new rows in, predictions or scores out."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import dubito
from dubito import metrics
from dubito.cli import nets, rows
from dubito.cli.fitting import CONFIG
from dubito.cli.settings import DataSettings, FitSettings, parse, read
from dubito.posteriors.base import Posterior
from dubito.posteriors.files import read_manifest, write_atomically
from dubito.prediction import Prediction
from dubito.runtime import check_precision

LEVEL = 0.9  # of the interval that is written
Arrays = dict[str, NDArray[Any]]


class Run(NamedTuple):
    """A fitted posterior and how its rows are encoded."""

    settings: FitSettings
    posterior: Posterior
    encoding: rows.Encoding


class Predicted(NamedTuple):
    """A prediction, the inputs as the network saw them and, where the rows have them, the targets as they were read."""

    prediction: Prediction
    x: Tensor
    y: Tensor | None


def open_run(folder: Path, device: str) -> Run:
    """The run that `dubito fit` keeps in a folder."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; give the folder of a run of dubito fit")
    encoding = rows.Encoding.load(folder)
    settings = parse(read(folder / CONFIG))
    net = nets.build(settings.net, settings.run.seed)
    posterior = dubito.load(folder, net, device=device)
    return Run(settings, posterior, encoding)


class Beside(NamedTuple):
    """A run, and all posteriors by name: its own first, then others that see rows in its encoding."""

    run: Run
    posteriors: dict[str, Posterior]


def open_beside(folders: Sequence[Path], device: str) -> Beside:
    """A run of `dubito fit`, and others beside it that encode rows alike, or posteriors distilled from it."""
    places = [folder.resolve() for folder in folders]
    if len(set(places)) < len(places):
        raise ValueError(f"{', '.join(map(str, folders))}: a folder is given twice; name each once")
    first, *others = folders
    run = open_run(first, device)
    short = {place.name for place in places}
    names = [place.name if len(short) == len(places) else str(f) for f, place in zip(folders, places, strict=True)]
    found = [run.posterior, *(_other(folder, first, run, device) for folder in others)]
    return Beside(run, dict(zip(names, found, strict=True)))


def _other(folder: Path, first: Path, run: Run, device: str) -> Posterior:
    """Another run, whose rows must be encoded alike, or a posterior of the same network, or of one its file names."""
    if (folder / rows.NAME).is_file():
        other = open_run(folder, device)
        if other.encoding != run.encoding:
            raise ValueError(f"{folder} encodes its rows otherwise than {first}; look at one after the other")
        return other.posterior
    _, manifest = read_manifest(folder)
    module = run.posterior.net.tidied() if manifest["net"] is None else None
    return dubito.load(folder, module, device=device)


def same_split(run: Run, data: DataSettings) -> DataSettings:
    """Rows of the set a run was trained on come from the split of its training, unless another is asked for."""
    trained = run.settings.data
    return replace(data, split=trained.split) if data.split is None and data.source == trained.source else data


def predict(
    run: Run,
    data: DataSettings,
    part: rows.Part,
    draws: int,
    seed: int,
    precision: str = "float32",
    progress: bool = False,
) -> Predicted:
    """What the posterior says about rows like those of its training; of the same set, those of the same split."""
    data = same_split(run, data)
    found = rows.open_rows(data, part, run.encoding)
    x = run.encoding.inputs(found.x, data.source)
    prediction = run.posterior.predict(x, draws, seed, precision=check_precision(precision), progress=progress)
    return Predicted(prediction, x, found.y)


def scores(run: Run, predicted: Predicted, source: str) -> dict[str, float]:
    """`metrics.evaluate`, in the target's own units."""
    if predicted.y is None:
        wanted = run.encoding.table.target or "y"
        raise ValueError(f"{source} has no targets to compare with; add a column or an array {wanted!r}")
    y = run.encoding.targets(predicted.y, source)
    found = metrics.evaluate(predicted.prediction, y)
    scale = run.encoding.y_scale
    for name in ("rmse", "crps"):
        if name in found:
            found[name] *= scale
    found["nll"] += math.log(scale) * math.prod(y.shape[1:])
    return found


# Predictions as files


def arrays(run: Run, prediction: Prediction) -> Arrays:
    """Every measure that exists, in the target's own units."""
    found = prediction.numpy()
    if prediction.kind == "classification":
        names = np.array(run.encoding.class_names(found["probs"].shape[-1]))
        return {"prediction": names[found["probs"].argmax(-1)], **found, "classes": names}
    scale = run.encoding.y_scale
    factors = {"std": scale, "aleatoric": scale**2, "epistemic": scale**2}
    scaled = {name: value * np.asarray(factors[name], value.dtype) for name, value in found.items() if name in factors}
    lower, upper = (run.encoding.original(end.cpu().numpy()) for end in prediction.interval(LEVEL))
    return {"mean": run.encoding.original(found["mean"]), **scaled, "lower": lower, "upper": upper}


def write(path: Path, found: Arrays) -> int:
    """Write a .csv or an .npz file, whole or not at all; returns the number of rows."""
    if path.suffix == ".npz":
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **found)  # type: ignore[arg-type]
        write_atomically(path, buffer.getvalue())
    else:
        columns = _columns(found)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        write_atomically(path, text.getvalue().encode())
    return len(next(iter(found.values())))


def check_out(path: Path) -> None:
    """Before the work: predictions go to a .csv or an .npz file in a folder that exists."""
    if path.suffix not in (".csv", ".npz"):
        raise ValueError(f"--out is {path}; end it in .csv or .npz")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to; make it first")
    if path.is_dir():
        raise IsADirectoryError(f"--out is {path}, which is a folder; give the name of a file")


def _columns(found: Arrays) -> dict[str, list[str]]:
    """One column for each number of a row, named by class: prediction, p_cat, p_dog, entropy, ..."""
    classes = found.get("classes")
    short = {"probs": "p", "lower": f"lower_{LEVEL:.0%}"[:-1], "upper": f"upper_{LEVEL:.0%}"[:-1]}
    columns: dict[str, list[str]] = {}
    for name, values in found.items():
        if name == "classes":
            continue
        if values.ndim > 2:
            raise ValueError(f"a row has {name} of shape {values.shape[1:]}, too much for a CSV; write to an .npz file")
        head = short.get(name, name)
        for key, column in _named(head, values, classes):
            columns[key] = [cell if isinstance(cell, str) else f"{cell:.9g}" for cell in column.tolist()]
    return columns


def _named(head: str, values: NDArray[Any], classes: NDArray[Any] | None) -> list[tuple[str, NDArray[Any]]]:
    if values.ndim == 1:
        return [(head, values)]
    if values.shape[1] == 1:
        return [(head, values[:, 0])]
    labels = classes if classes is not None else range(values.shape[1])
    return [(f"{head}_{label}", values[:, i]) for i, label in enumerate(labels)]
