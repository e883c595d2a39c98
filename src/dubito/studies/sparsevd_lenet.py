"""Sparse variational dropout on the two LeNets: how many weights MNIST needs.

The recipe is that of Molchanov et al.: batches of 100, Adam, 200 epochs, the KL let in between epochs 4 and 20, weights
cut at log alpha = 3. Whether the mean of a weight beyond the cut is masked in training, whether a fit starts from a
trained network, and a second cut, are chosen on 5,000 validation images: the least error among networks at least as
sparse as the published one, and of equal ones the least sparse. The choice is frozen, all 60,000 training images are
learnt from by three seeds, and only then the test images are opened.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

import dubito
from dubito import compress
from dubito.compress.curve import points
from dubito.methods.sparse_vd import Masked
from dubito.nn import lenet5, mlp, small_cnn
from dubito.posteriors.base import Posterior
from dubito.results import Cell, Result, Table
from dubito.schedules import Linear
from dubito.studies import sparsity
from dubito.studies.base import Settings, Study, against_published
from dubito.studies.images import Images
from dubito.studies.pieces import answers
from dubito.studies.sparsity import Recipe

DENSE_STD = 0.01  # of the first weights of dense layers
EPOCHS = 200
MASKED: tuple[Masked, ...] = ("nothing", "mean")
STARTS = ("scratch", "trained")
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


class Subject(NamedTuple):
    """A network, and how its learning rate falls."""

    net: Callable[[bool], nn.Module]
    schedule: Linear


def recipe(subject: Subject, masked: Masked, settings: Settings) -> Recipe:
    """The paper's, and a plain fit of the same network."""
    quick = settings.quick
    rate = 1e-2 if quick else 1e-3
    return Recipe(
        net=lambda: subject.net(quick),
        sparse=dubito.SparseVD(learning_rate=rate, schedule=subject.schedule, masked=masked),
        plain=dubito.MAP(learning_rate=rate, schedule="linear"),
        epochs=6 if quick else EPOCHS,
        plain_epochs=4 if quick else 50,
        seeds=2 if quick else 3,
    )


def trained(made: Recipe, starts: Sequence[nn.Module], data: Images, settings: Settings, name: str) -> Posterior:
    """The plain fit, which is compared with and which a sparse one may start from."""
    return sparsity.fitted(made, starts, data, settings, False, name)[0]


def trained_nets(plain: Posterior) -> list[nn.Module]:
    """A network for every seed of a plain fit."""
    return [plain.member(index).mean_network() for index in range(len(plain))]


def before(name: str, masked: Masked, settings: Settings) -> tuple[Recipe, Images, list[nn.Module]]:
    """What the networks that are tried have: a recipe, rows, and both starts; none has seen a validation image."""
    made = replace(recipe(SUBJECTS[name], masked, settings), seeds=1)
    data, scratch = sparsity.images("mnist", settings), sparsity.fresh(made, settings)
    return made, data, [*scratch, *trained_nets(trained(made, scratch, data, settings, "choice-plain"))]


def tried(name: str, masked: Masked, settings: Settings) -> list[list[list[float]]]:
    """By start: the share removed and the error on validation images, cut by cut."""
    made, data, starts = before(name, masked, settings)
    posterior, _ = sparsity.fitted(made, starts, data, settings, True, f"choice-{masked}")
    held = [compress.scored(posterior.member(index)) for index in range(len(starts))]
    curves = [points(one, posterior.likelihood, data.validation, sparsity.SHARES) for one in held]
    return [[[p.removed, p.error] for p in curve if p.left] for curve in curves]


class Choice(NamedTuple):
    """What is masked in training, where a fit starts, and the share removed in the end."""

    masked: Masked
    start: str
    removed: float


Curves = Mapping[tuple[Masked, str], list[list[float]]]  # by what is masked and by start


def chosen(curves: Curves, ratio: float) -> Choice:
    """The least validation error among the networks that are sparse enough; removing more must be worth something."""
    sparse = [(error, removed, masked, start) for (masked, start), curve in curves.items() for removed, error in curve
              if 1 - removed <= 1 / ratio]  # fmt: skip
    if not sparse:
        raise ValueError(f"no network tried was {ratio:g} times smaller; widen sparsity.SHARES")
    _, removed, masked, start = min(sparse)
    return Choice(masked, start, removed)


def run(study: Study, published: Published, settings: Settings) -> Result:
    """Choose, freeze, fit, cut, write, open and ask; published figures beside measured ones."""
    subject = SUBJECTS[study.name]
    before(study.name, MASKED[0], settings)  # once, not in every process
    found_by = answers(tried, {masked: (study.name, masked) for masked in MASKED}, settings)
    curves = {(m, start): curve for m in MASKED for start, curve in zip(STARTS, found_by[m], strict=True)}
    choice = chosen(curves, published[-1][2])
    made = recipe(subject, choice.masked, settings)
    data, scratch = sparsity.images("mnist", settings).whole(), sparsity.fresh(made, settings)
    plain = trained(made, scratch, data, settings, "plain")
    starts = trained_nets(plain) if choice.start == STARTS[1] else scratch
    sparse, records = sparsity.fitted(made, starts, data, settings, True, "sparse")
    equal = {"at the share chosen": choice.removed}
    pruned = {"12 times smaller": 1 - 1 / 12, **equal}
    found = sparsity.outcomes(sparse, data, False, equal) + sparsity.outcomes(plain, data, True, pruned)
    means = sparsity.averages(found)
    per_epoch = len(data.train.x) // made.batch_size
    return Result(
        study.name,
        study.title,
        summary=_summary(means, made),
        numbers={"means": means, "networks": [vars(one) for one in found],
                 "tried": {f"{masked}, {start}": curve for (masked, start), curve in curves.items()}},
        tables=[_published(published, means), sparsity.table(found, "Every seed, opened from its file"),
                _tried(curves, choice)],
        figures=sparsity.pictures(sparse, plain, records, per_epoch),  # type: ignore[arg-type]
        settings={**made.describe(), "chosen": choice._asdict()},
    )  # fmt: skip


def _tried(curves: Curves, choice: Choice) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (masked, start, gone, 1 / (1 - gone), 100 * error, "chosen" if (masked, start, gone) == choice else "")
        for (masked, start), curve in curves.items()
        for gone, error in curve
        if gone >= 0.9
    ]
    columns = ("masked in training", "start", "removed", "weights / non-zero", "validation error %", "")
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


SUBJECTS = {
    "sparsevd-lenet-300-100": Subject(dense_net, Linear(0.5)),  # the learning rate falls in the second half
    "sparsevd-lenet-5": Subject(image_net, Linear(0.0)),  # or throughout
}


SOURCE = "Molchanov, Ashukha and Vetrov, Variational Dropout Sparsifies Deep Neural Networks (2017), arXiv 1701.05369."

WHY = (
    "The paper masks the means of weights beyond the cut in training, with which more of them go; here validation "
    "images decide among what is tried below. Dense networks have zeros of their own: weights that no gradient holds "
    "decay until float32 has no smaller number."
)

DENSE: Study = Study(
    "sparsevd-lenet-300-100",
    "Sparse variational dropout on LeNet-300-100",
    SOURCE,
    "how many weights of 784-300-100-10 MNIST needs, and the file that is left",
    lambda settings: run(DENSE, LENET_300_100, settings),
    WHY,
)
IMAGES: Study = Study(
    "sparsevd-lenet-5",
    "Sparse variational dropout on LeNet-5",
    SOURCE,
    "how many weights of a convolutional network MNIST needs, and the file that is left",
    lambda settings: run(IMAGES, LENET_5, settings),
    WHY,
)
