"""Random labels: does a network that can memorise anything notice that there is nothing to learn?

Labels are drawn once and have nothing to do with the images. A network with binary dropout and no weight decay learns
the training part by heart; sparse variational dropout finds that no weight is worth its nats. Of CIFAR-10 10,000 images
are learnt, by a VGG-like network of a quarter of the width: all of them take an hour.
"""

from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import nn

import dubito
from dubito import compress, metrics
from dubito.compress.curve import losses
from dubito.data import Split
from dubito.nn import mlp, vgg
from dubito.results import Cell, Result, Table
from dubito.rng import generator
from dubito.schedules import Linear
from dubito.studies import sparsity
from dubito.studies.base import Settings, Study, against_published, gather, seeded
from dubito.studies.images import Images
from dubito.studies.pieces import answers

CLASSES = 10
DRAWS = 10
RATE = 0.1
SETS = ("mnist", "cifar10")
ROWS = {"cifar10": 10_000}  # of the training part; all of it where nothing is said
FLAT = dubito.Normal(std=100.0)  # as good as no weight decay, which would keep a network from learning by heart


def shuffled(data: Images, seed: int, rows: int | None = None) -> Images:
    """The same images, or so many of the training part, with labels from a hat."""

    def drawn(part: Split, name: str) -> Split:
        return Split(part.x, torch.randint(CLASSES, (len(part.x),), generator=generator("cpu", seed, "labels", name)))

    parts = {name: drawn(part, name) for name, part in data._asdict().items()}
    return Images(**{**parts, "train": Split(*(t[:rows] for t in parts["train"]))})


def network(name: str, quick: bool) -> nn.Module:
    """Dense layers for grey images, a small VGG for colours, or a small dense net for 8 x 8 digits."""
    if quick:
        return nn.Sequential(nn.Flatten(), mlp([64, 64, 10]))
    return nn.Sequential(nn.Flatten(), mlp([784, 1200, 1200, 10])) if name == "mnist" else vgg(width=0.25)


def methods(quick: bool) -> dict[str, tuple[dubito.Method[Any], int]]:
    """By name: the method, and its epochs."""
    rate = 1e-2 if quick else 1e-3
    sparse = dubito.SparseVD(learning_rate=rate, schedule=Linear(0.7))
    binary = dubito.MCDropout(rate=RATE, learning_rate=rate, schedule="linear")
    return {"binary dropout": (binary, 4 if quick else 300), "Sparse VD": (sparse, 6 if quick else 300)}


def row(posterior: dubito.Posterior, data: Images, sparse: bool) -> list[float | None]:
    """Accuracy on training and test rows in per cent, and the share of weights that are zero."""
    shown = slice(0, 10_000)
    parts = [Split(part.x[shown], part.y[shown]) for part in (data.train, data.test)]
    if not sparse:
        predicted = [posterior.predict(part.x, draws=DRAWS).probs.cpu() for part in parts]
        return [100 * metrics.accuracy(p, part.y) for p, part in zip(predicted, parts, strict=True)] + [None]
    net = posterior.mean_network()
    wrong = [fmean(losses(net, posterior.likelihood, part).tolist()) for part in parts]
    kept, total = (sum(pair[i] for pair in compress.counts(net).values()) for i in (0, 1))
    return [*(100 * (1 - share) for share in wrong), 100 * (1 - kept / total)]


def memorised(name: str, label: str, settings: Settings) -> list[float | None]:
    """The row of one method on one set."""
    data = shuffled(sparsity.images(name, settings), settings.seed, ROWS.get(name))
    method, epochs = methods(settings.quick)[label]
    posterior = dubito.fit(
        seeded(partial(network, name, settings.quick), settings.seed), data.train, method, epochs=epochs,
        batch_size=100, seed=settings.seed, device=settings.device, folder=settings.folder(f"{name} {label}"),
        prior=sparsity.PRIOR if label == "Sparse VD" else FLAT, precision="tf32", progress=settings.progress,
    )  # fmt: skip
    return row(posterior, data, label == "Sparse VD")


def run(settings: Settings) -> Result:
    """Both methods on both sets."""
    here = gather(["digits"] if settings.quick else SETS)
    names = sorted(here.sets, key=lambda name: name != "cifar10")  # the longest first
    labels = sorted(methods(settings.quick), key=lambda label: label != "Sparse VD")
    found = answers(memorised, {f"{n} {label}": (n, label) for n in names for label in labels}, settings)
    rows = {n: {label: found[f"{n} {label}"] for label in methods(settings.quick)} for n in here.sets}
    return Result(
        STUDY.name,
        STUDY.title,
        summary=here.note,
        numbers=rows,
        tables=[_table(rows), _published(rows)],
        settings={"rows": ROWS, **{label: epochs for label, (_, epochs) in methods(settings.quick).items()}},
    )


def _table(rows: dict[str, dict[str, list[float | None]]]) -> Table:
    cells: list[tuple[Cell, ...]] = [
        (name, label, *values) for name, by in rows.items() for label, values in by.items()
    ]
    columns = ("data", "method", "training accuracy %", "test accuracy %", "weights that are 0 %")
    return Table("Random labels", columns, cells, formats=dict.fromkeys(columns[2:], ".2f"))


def _published(rows: dict[str, dict[str, list[float | None]]]) -> Table:
    known = {"binary dropout": (100.0, 10.0, None), "Sparse VD": (10.0, 10.0, 100.0)}
    names = ("training accuracy %", "test accuracy %", "sparsity %")
    lines = [
        (f"{name}, {label}: {what}", published, measured, "")
        for name, by in rows.items()
        for label, values in by.items()
        for what, published, measured in zip(names, known[label], values, strict=True)
        if published is not None
    ]
    return against_published("Published beside measured", lines)


STUDY = Study(
    "sparsevd-random-labels",
    "Random labels",
    "Molchanov, Ashukha and Vetrov (2017), arXiv 1701.05369, after Zhang et al. (2017), arXiv 1611.03530.",
    "binary dropout memorises random labels, sparse variational dropout removes every weight",
    run,
    "The paper's networks with binary dropout know every label by heart. Where ours know fewer, we think that epochs "
    "are short for labels without a pattern; the network for CIFAR-10 is a quarter as wide.",
)
