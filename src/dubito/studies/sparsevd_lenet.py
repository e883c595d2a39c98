"""Sparse variational dropout on the two LeNets: how many weights MNIST needs.

The recipe is that of Molchanov et al.: batches of 100, Adam, 200 epochs, the KL let in between epochs 4 and 20, weights
cut at log alpha = 3. Nothing is chosen but a second cut, on 5,000 validation images that are no part of the training.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

import dubito
from dubito.nn import lenet5, mlp, small_cnn
from dubito.results import Result
from dubito.schedules import Linear
from dubito.studies import sparsity
from dubito.studies.base import Settings, Study, against_published
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
    """LeNet-5 as in Caffe, or a small one for 8 x 8 digits."""
    return started(small_cnn(side=8, channels=[6, 8], hidden=16) if quick else lenet5())


def recipe(net: Callable[[bool], nn.Module], schedule: Linear, settings: Settings) -> Recipe:
    """The paper's, and a plain fit of the same network."""
    quick = settings.quick
    return Recipe(
        net=lambda: net(quick),
        sparse=dubito.SparseVD(learning_rate=1e-2 if quick else 1e-3, schedule=schedule),
        plain=dubito.MAP(learning_rate=1e-2 if quick else 1e-3, schedule="linear"),
        epochs=6 if quick else 200,
        plain_epochs=4 if quick else 50,
        seeds=2 if quick else 3,
    )


def run(made: Recipe, published: Published, settings: Settings, study: Study) -> Result:
    """Fit, cut, write, open and ask; published figures beside measured ones."""
    data = sparsity.images("mnist", settings)
    records: list[Any] = []
    sparse = sparsity.fitted(made, data, settings, True, records)
    plain = sparsity.fitted(made, data, settings, False, [])
    found = sparsity.outcomes(sparse, data, False) + sparsity.outcomes(plain, data, True)
    means = sparsity.averages(found)
    per_epoch = len(data.train.x) // made.batch_size
    return Result(
        study.name,
        study.title,
        summary=_summary(means, made),
        numbers={"means": means, "networks": [vars(one) for one in found]},
        tables=[_published(published, means), sparsity.table(found, "Every seed, opened from its file")],
        figures=sparsity.pictures(sparse, records, per_epoch),  # type: ignore[arg-type]
        settings=made.describe(),
    )


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
    ours = {"dense": "dense", "Sparse VD": "Sparse VD, log alpha < 3", pruning: "magnitude, cut on validation"}
    notes = {pruning: "measured by magnitude without training on", "Sparse VD": "cut at log alpha 3"}
    rows: list[tuple[str, float | None, float | None, str]] = []
    for name, wrong, ratio in published:
        one = means.get(ours.get(name, ""))
        note = notes.get(name, "")
        rows.append((f"{name}: test error %", wrong, None if one is None else 100 * one["test"], note))
        rows.append((f"{name}: weights / non-zero", float(ratio), None if one is None else one["ratio"], note))
    chosen = means["Sparse VD, cut on validation"]
    rows.append(("Sparse VD, cut on validation: test error %", None, 100 * chosen["test"], ""))
    rows.append(("Sparse VD, cut on validation: weights / non-zero", None, chosen["ratio"], ""))
    return against_published("Published beside measured, means over seeds", rows)


def run_dense(settings: Settings) -> Result:
    """784-300-100-10: the learning rate falls in the second half."""
    return run(recipe(dense_net, Linear(0.5), settings), LENET_300_100, settings, DENSE)


def run_images(settings: Settings) -> Result:
    """LeNet-5: the learning rate falls throughout."""
    return run(recipe(image_net, Linear(0.0), settings), LENET_5, settings, IMAGES)


SOURCE = "Molchanov, Ashukha and Vetrov, Variational Dropout Sparsifies Deep Neural Networks (2017), arXiv 1701.05369."

DENSE = Study(
    "sparsevd-lenet-300-100",
    "Sparse variational dropout on LeNet-300-100",
    SOURCE,
    "how many weights of 784-300-100-10 MNIST needs, and the file that is left",
    run_dense,
)
IMAGES = Study(
    "sparsevd-lenet-5",
    "Sparse variational dropout on LeNet-5",
    SOURCE,
    "how many weights of a convolutional network MNIST needs, and the file that is left",
    run_images,
)
