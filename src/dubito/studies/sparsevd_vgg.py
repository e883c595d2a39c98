"""Sparse variational dropout on a VGG-like network and CIFAR-10, at several widths.

A plain fit first, then Sparse VD from its weights, as in the paper, for 120 epochs (there: 200). Inputs have the mean
training image taken off and are not whitened.
"""

from functools import partial
from typing import Any

from torch import nn

import dubito
from dubito import plots
from dubito.nn import small_cnn, vgg
from dubito.plots import Series
from dubito.results import Cell, Figure, Result, Table
from dubito.schedules import Linear
from dubito.studies import sparsity
from dubito.studies.base import Settings, Study, seeded
from dubito.studies.images import Images
from dubito.studies.pieces import ahead

WIDTHS = (0.25, 0.5)


def network(width: float, quick: bool) -> nn.Module:
    """The VGG-like network, or a small one for 8 x 8 digits."""
    return small_cnn(side=8, channels=[4, 6], hidden=8) if quick else vgg(width=width)


def fitted(width: float, data: Images, settings: Settings) -> tuple[dubito.Posterior, dubito.Posterior]:
    """The plain fit, and the sparse one that starts from it."""
    quick = settings.quick
    options: dict[str, Any] = {
        "batch_size": 100,
        "seed": settings.seed,
        "device": settings.device,
        "precision": "tf32",
        "progress": settings.progress,
    }
    places = [settings.folder(f"{part} {width:g}") for part in ("plain", "sparse")]
    start = seeded(partial(network, width, quick), settings.seed)
    first = dubito.MAP(learning_rate=1e-3, schedule="linear")
    plain = dubito.fit(start, data.train, first, epochs=2 if quick else 40, folder=places[0], **options)
    second = dubito.SparseVD(learning_rate=1e-2 if quick else 1e-4, schedule=Linear(0.5), init_std=5.5e-4)
    epochs = 2 if quick else 120
    net = plain.mean_network()
    return plain, dubito.fit(net, data.train, second, prior=sparsity.PRIOR, epochs=epochs, folder=places[1], **options)


def _made(width: float, settings: Settings) -> None:
    fitted(width, sparsity.images("cifar10", settings), settings)


def run(settings: Settings) -> Result:
    """Every width: dense, and sparse at log alpha's own threshold and at the cut that validation chose."""
    data = sparsity.images("cifar10", settings)
    rows: list[tuple[Cell, ...]] = []
    widths = WIDTHS[:1] if settings.quick else WIDTHS
    ahead(_made, {f"{width:g}": (width,) for width in reversed(widths)}, settings)
    for width in widths:
        plain, sparse = fitted(width, data, settings)
        shares = {"cut on validation": sparsity.chosen_share(sparse, data)}
        found = sparsity.outcomes(plain, data, True, {}) + sparsity.outcomes(sparse, data, False, shares)
        for one in found:
            what = one.what.rpartition(", seed")[0]
            rows.append((width, what, one.ratio, 100 * one.validation, 100 * one.test, one.smaller, one.faster))
    columns = ("width", "network", "weights / non-zero", "validation error %", "test error %", "file times smaller",
               "CPU times faster")  # fmt: skip
    formats = dict.fromkeys(columns[2:], ".1f") | dict.fromkeys(columns[3:5], ".2f")
    return Result(
        STUDY.name,
        STUDY.title,
        summary="The paper reports up to 68 times fewer weights with a negligible loss of accuracy; its curve over "
        "widths is a figure.",
        numbers={"rows": [list(row) for row in rows]},
        tables=[Table("By width", columns, rows, formats=formats)],
        figures=[_figure(rows)],
        settings={"widths": list(WIDTHS)},
    )


def _figure(rows: list[tuple[Cell, ...]]) -> Figure:
    kinds = list(dict.fromkeys(str(row[1]) for row in rows))
    series = [
        Series(kind, [r[4] for r in rows if r[1] == kind], [r[0] for r in rows if r[1] == kind])  # type: ignore[misc]
        for kind in kinds
    ]
    return plots.lines("widths", "Test error by width", series, x_label="width factor", y_label="test error %")


STUDY = Study(
    "sparsevd-vgg",
    "Sparse variational dropout on a VGG-like network",
    "Molchanov, Ashukha and Vetrov, Variational Dropout Sparsifies Deep Neural Networks (2017), arXiv 1701.05369.",
    "how many weights a deep convolutional network needs on CIFAR-10, by width",
    run,
)
