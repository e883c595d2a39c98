"""Sparse variational dropout on the two LeNets: how many weights MNIST needs.

The recipe is that of Molchanov et al.: batches of 100, Adam, 200 epochs, the KL let in between epochs 4 and 20, weights
cut at log alpha = 3. What of a weight beyond the cut is masked in training, and a second cut, are chosen on 5,000
validation images: the least error among networks at least as sparse as the published one. The choice is frozen, all
60,000 training images are learnt from by three seeds, and only then the test images are opened.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast, get_args

from torch import nn

import dubito
from dubito import compress
from dubito.compress.curve import points
from dubito.methods.sparse_vd import Masked
from dubito.nn import lenet5, mlp, small_cnn
from dubito.results import Cell, Result, Table
from dubito.schedules import Linear
from dubito.studies import sparsity
from dubito.studies.base import Settings, Study, against_published
from dubito.studies.pieces import answers
from dubito.studies.sparsity import Recipe

DENSE_STD = 0.01  # of the first weights of dense layers
Published = tuple[tuple[str, float, float], ...]  # method, error in per cent, weights over non-zero ones

LENET_300_100: Published = (
    ("dense", 1.64, 1),
    ("pruning, Han et al. 2015", 1.59, 12),
    ("dynamic network surgery, Guo et al. 2016", 1.99, 56),
    ("soft weight sharing, Ullrich et al. 2017", 1.94, 23),
    ("Sparse VD", 1.92, 68),
)
LENET_5: Published = (
    ("dense", 0.80, 1),
    ("pruning, Han et al. 2015", 0.77, 12),
    ("dynamic network surgery, Guo et al. 2016", 0.91, 111),
    ("soft weight sharing, Ullrich et al. 2017", 0.97, 200),
    ("Sparse VD", 0.75, 280),
)


def started(network: nn.Module) -> nn.Module:
    """First weights as in the paper: N(0, 0.01^2) in dense layers, Glorot's uniform in kernels, biases 0."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=DENSE_STD)
        elif isinstance(layer, nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return network


def dense_net(quick: bool) -> nn.Module:
    """784-300-100-10, or a small one for 8 x 8 digits."""
    return nn.Sequential(nn.Flatten(), started(mlp([64, 24, 10] if quick else [784, 300, 100, 10])))


def image_net(quick: bool) -> nn.Module:
    """LeNet-5 with Caffe's layers, or a small one for 8 x 8 digits."""
    return started(small_cnn(side=8, channels=[6, 8], hidden=16) if quick else lenet5())


def recipe(net: Callable[[bool], nn.Module], schedule: Linear, masked: Masked, settings: Settings) -> Recipe:
    """The paper's, and a plain fit of the same network."""
    quick = settings.quick
    rate = 1e-2 if quick else 1e-3
    return Recipe(
        net=lambda: net(quick),
        sparse=dubito.SparseVD(learning_rate=rate, schedule=schedule, masked=masked),
        plain=dubito.MAP(learning_rate=rate, schedule="linear"),
        epochs=6 if quick else 200,
        plain_epochs=4 if quick else 50,
        seeds=2 if quick else 3,
    )


def tried(name: str, masked: Masked, settings: Settings) -> list[list[float]]:
    """A network that has seen no validation image: the share removed and the error on them, cut by cut."""
    made = replace(recipe(*NETS[name], masked, settings), seeds=1)
    data = sparsity.images("mnist", settings)
    posterior, _ = sparsity.fitted(made, data, settings, True, f"choice-{masked}")
    one = compress.scored(posterior.member(0))
    curve = points(one, posterior.likelihood, data.validation, sparsity.SHARES)
    return [[p.removed, p.error] for p in curve if p.left]


def chosen(curves: Mapping[str, list[list[float]]], ratio: float) -> tuple[Masked, float]:
    """The mask and the share removed with the least validation error among the networks that are sparse enough."""
    sparse = [(error, -removed, masked) for masked, curve in curves.items() for removed, error in curve
              if 1 - removed <= 1 / ratio]  # fmt: skip
    if not sparse:
        raise ValueError(f"no network tried was {ratio:g} times smaller; widen sparsity.SHARES")
    _, removed, masked = min(sparse)
    return cast(Masked, masked), -removed


def run(study: Study, published: Published, settings: Settings) -> Result:
    """Choose, freeze, fit, cut, write, open and ask; published figures beside measured ones."""
    curves = answers(tried, {f"mask {masked}": (study.name, masked) for masked in get_args(Masked)}, settings)
    by_mask = {name.removeprefix("mask "): curve for name, curve in curves.items()}
    masked, removed = chosen(by_mask, published[-1][2])
    made = recipe(*NETS[study.name], masked, settings)
    data = sparsity.images("mnist", settings).whole()
    sparse, records = sparsity.fitted(made, data, settings, True, "sparse")
    plain, _ = sparsity.fitted(made, data, settings, False, "plain")
    equal = {"at the share chosen": removed}
    pruned = {"12 times smaller": 1 - 1 / 12, **equal}
    found = sparsity.outcomes(sparse, data, False, equal) + sparsity.outcomes(plain, data, True, pruned)
    means = sparsity.averages(found)
    per_epoch = len(data.train.x) // made.batch_size
    return Result(
        study.name,
        study.title,
        summary=_summary(means, made),
        numbers={"means": means, "networks": [vars(one) for one in found], "tried": by_mask},
        tables=[_published(published, means), sparsity.table(found, "Every seed, opened from its file"),
                _tried(by_mask, masked, removed)],
        figures=sparsity.pictures(sparse, plain, records, per_epoch),  # type: ignore[arg-type]
        settings={**made.describe(), "share removed, chosen": removed},
    )  # fmt: skip


def _tried(curves: Mapping[str, list[list[float]]], masked: Masked, removed: float) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (name, gone, 1 / (1 - gone), 100 * error, "chosen" if (name, gone) == (masked, removed) else "")
        for name, curve in curves.items()
        for gone, error in curve
        if gone >= 0.9
    ]
    columns = ("masked in training", "removed", "weights / non-zero", "validation error %", "")
    formats = {"removed": ".2%", "weights / non-zero": ".1f", "validation error %": ".2f"}
    return Table("Tried on validation images, one seed without them", columns, rows, formats=formats)


def _summary(means: dict[str, dict[str, float]], made: Recipe) -> str:
    said = [
        f"{kind}: {one['ratio']:.0f} times fewer weights at {100 * one['test']:.2f} % test error, a file "
        f"{one['smaller']:.0f} times smaller, {one['faster']:.1f} times as fast on the CPU"
        for kind, one in means.items()
    ]
    return f"Means over {made.seeds} seeds. " + "; ".join(said) + "."


def _published(published: Published, means: dict[str, dict[str, float]]) -> Any:
    """Error and ratio of each published method, beside ours where we have it."""
    pruning = "pruning, Han et al. 2015"
    ours = {"dense": "dense", "Sparse VD": "Sparse VD, log alpha < 3", pruning: "magnitude, 12 times smaller"}
    notes = {pruning: "measured by magnitude without training on", "Sparse VD": "cut at log alpha 3"}
    rows: list[tuple[str, float | None, float | None, str]] = []
    for name, wrong, ratio in published:
        one = means.get(ours.get(name, ""))
        note = notes.get(name, "")
        rows.append((f"{name}: test error %", wrong, None if one is None else 100 * one["test"], note))
        rows.append((f"{name}: weights / non-zero", float(ratio), None if one is None else one["ratio"], note))
    chosen = means["Sparse VD, at the share chosen"]
    rows.append(("Sparse VD, at the share chosen: test error %", None, 100 * chosen["test"], ""))
    rows.append(("Sparse VD, at the share chosen: weights / non-zero", None, chosen["ratio"], ""))
    return against_published("Published beside measured, means over seeds", rows)


NETS: dict[str, tuple[Callable[[bool], nn.Module], Linear]] = {
    "sparsevd-lenet-300-100": (dense_net, Linear(0.5)),  # the learning rate falls in the second half
    "sparsevd-lenet-5": (image_net, Linear(0.0)),  # or throughout
}


SOURCE = "Molchanov, Ashukha and Vetrov, Variational Dropout Sparsifies Deep Neural Networks (2017), arXiv 1701.05369."

DENSE: Study = Study(
    "sparsevd-lenet-300-100",
    "Sparse variational dropout on LeNet-300-100",
    SOURCE,
    "how many weights of 784-300-100-10 MNIST needs, and the file that is left",
    lambda settings: run(DENSE, LENET_300_100, settings),
)
IMAGES: Study = Study(
    "sparsevd-lenet-5",
    "Sparse variational dropout on LeNet-5",
    SOURCE,
    "how many weights of a convolutional network MNIST needs, and the file that is left",
    lambda settings: run(IMAGES, LENET_5, settings),
)
