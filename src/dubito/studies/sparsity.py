"""What the studies of sparsity share: images with a validation part, fits of several seeds, and what they leave."""

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

import dubito
from dubito import compress
from dubito.compress import figures
from dubito.compress.curve import choose, error, losses, points
from dubito.config import to_dict
from dubito.data import Split
from dubito.nn import ZerosKept, folded
from dubito.posteriors.base import Posterior
from dubito.posteriors.sparse import SparsePosterior
from dubito.priors import PriorLike
from dubito.results import Cell, Figure, Table
from dubito.rng import derive, generator
from dubito.runs import history
from dubito.runtime import Precision
from dubito.studies.base import Settings, gather, seeded
from dubito.studies.images import Images

SHARES = (
    0.0, 0.5, 0.75, 0.9, 0.95, 0.97, 0.98, 0.9825, 0.9855, 0.9875, 0.99, 0.9925, 0.995, 0.9965, 0.997, 0.998,
)  # fmt: skip
VALIDATION = 5000
PRECISION: Precision = "tf32"  # of products and convolutions on a GPU
PRIOR: dict[str, PriorLike] = {"*bias": dubito.Point(), "*": dubito.FanIn()}  # biases have none, as in the paper


def images(name: str, settings: Settings, shift: int = 0, whole: bool = False) -> Images:
    """A data set with validation rows taken from its training part, the mean training image taken off.

    shift: every training image is there again moved by up to so many pixels each way. whole: validation rows are
    learnt from too, once all is chosen. 8 x 8 digits where the run is quick.
    """
    held = gather(["digits" if settings.quick else name])
    found = next(iter(held.sets.values()))
    train, test = found.part("train"), found.part("test")
    order = torch.randperm(len(train.x), generator=generator("cpu", settings.seed, "validation"))
    kept = len(order) - (200 if settings.quick else VALIDATION)
    centre = train.x[order[:kept]].mean(0)
    rows, unseen = order if whole else order[:kept], order[kept:]
    known = Split(moved(train.x[rows], shift) - centre, train.y[rows].repeat(copies(shift)))
    return Images(known, Split(train.x[unseen] - centre, train.y[unseen]), Split(test.x - centre, test.y))


def moved(x: Tensor, shift: int) -> Tensor:
    """All images moved by every number of pixels up to `shift` each way; what comes in at the edges is 0."""
    wide, (height, width) = nn.functional.pad(x, (shift,) * 4), x.shape[-2:]
    places = product(range(2 * shift + 1), repeat=2)
    return torch.cat([wide[..., down : down + height, right : right + width] for down, right in places])


def copies(shift: int) -> int:
    """How often `moved` shows an image."""
    return (2 * shift + 1) ** 2


@dataclass(frozen=True, eq=False)
class Recipe:
    """A network, how it is made sparse and, for comparison, fitted plainly, and how what is left is trained on."""

    net: Callable[[], nn.Module]
    sparse: dubito.SparseVD
    plain: dubito.MAP
    after: dubito.MAP
    epochs: int
    plain_epochs: int
    after_epochs: int
    seeds: int = 3
    batch_size: int = 100
    shift: int = 0
    """Pixels by which training images are moved."""

    def span(self, data: Images) -> tuple[int, int]:
        """Training images without their moved copies, and the steps of an epoch, in which each is shown once."""
        rows = len(data.train.x) // copies(self.shift)
        return rows, rows // self.batch_size

    def describe(self) -> dict[str, Any]:
        """As plain values."""
        weights = sum(p.numel() for p in self.net().parameters())
        methods = {"sparse": self.sparse, "plain": self.plain, "trained on": self.after}
        epochs = {"sparse": self.epochs, "plain": self.plain_epochs, "trained on": self.after_epochs}
        shown = {"epochs": epochs, "batch size": self.batch_size, "precision": PRECISION, "moved by": self.shift}
        return {**{n: to_dict(m) for n, m in methods.items()}, **shown, "weights": weights, "seeds": self.seeds}


def fresh(recipe: Recipe, settings: Settings) -> list[nn.Module]:
    """A network for every seed, as it is before it has learnt anything."""
    return [seeded(recipe.net, derive(settings.seed, member)) for member in range(recipe.seeds)]


def fitted(
    recipe: Recipe, starts: Sequence[nn.Module], data: Images, settings: Settings, sparse: bool, name: str
) -> tuple[Posterior, list[dict[str, Any]]]:
    """A network from every start, side by side, kept below its name, and the history."""
    told: list[dict[str, Any]] = []
    folder, others = settings.folder(name), iter(starts[1:])
    rows, per_epoch = recipe.span(data)
    posterior = dubito.fit(
        starts[0],
        data.train,
        recipe.sparse if sparse else recipe.plain,
        steps=per_epoch * (recipe.epochs if sparse else recipe.plain_epochs),
        n_data=rows,
        batch_size=recipe.batch_size,
        members=len(starts),
        init=lambda _: next(others),
        prior=PRIOR if sparse else None,
        seed=settings.seed,
        device=settings.device,
        folder=folder,
        precision=PRECISION,
        progress=settings.progress,
        callback=told.append,
    )
    return posterior, told if folder is None else history(folder)


@dataclass(frozen=True)
class Outcome:
    """One network: how sparse, errors on validation and test rows, zeros by layer, and the size of its file."""

    what: str
    ratio: float
    validation: float
    test: float
    layers: tuple[float, ...]
    smaller: float
    faster: float


def trained_on(recipe: Recipe, network: nn.Module, data: Images, settings: Settings, name: str) -> nn.Module:
    """What is left of a network after weights went, fitted on with its zeros kept."""
    rows, per_epoch = recipe.span(data)
    posterior = dubito.fit(
        ZerosKept(network),
        data.train,
        recipe.after,
        steps=per_epoch * recipe.after_epochs,
        n_data=rows,
        batch_size=recipe.batch_size,
        seed=settings.seed,
        device=settings.device,
        folder=settings.folder(name),
        precision=PRECISION,
        progress=settings.progress,
    )
    return folded(posterior.mean_network())


def outcome(what: str, masked: nn.Module, dense: nn.Module, data: Images, likelihood: dubito.Likelihood) -> Outcome:
    """Write a network to a file, open it again, ask it, and time it against the whole one."""
    masked, dense = (copy.deepcopy(net).cpu() for net in (masked, dense))  # .cpu() moves a module itself
    with tempfile.TemporaryDirectory() as folder:
        path = compress.save_network(compress.small_network(masked), Path(folder) / "network.safetensors")
        size, opened = path.stat().st_size, compress.load_network(path)
    validation, test = (error(losses(opened, likelihood, part), likelihood) for part in (data.validation, data.test))
    seconds = compress.latencies([opened, dense], data.test.x)
    layers = tuple(1 - kept / total for kept, total in compress.counts(masked).values())
    smaller = compress.dense_bytes(dense) / size
    return Outcome(what, compress.ratio(masked), validation, test, layers, smaller, seconds[1] / seconds[0])


TrainOn = Callable[[nn.Module, str], nn.Module]  # a network after weights went, and a name for what comes of it


def outcomes(
    posterior: Posterior, data: Images, plain: bool, shares: Mapping[str, float], train_on: TrainOn | None = None
) -> list[Outcome]:
    """Every seed: uncut for a plain fit, or at log alpha's own threshold; then with named shares of weights removed.

    With `train_on`, what the shares leave is there as it was cut and as it is when it was trained on.
    """
    found = []
    for index in range(len(posterior)):
        one = compress.scored(posterior.member(index), "magnitude" if plain else None)
        kind, whole = ("magnitude", "dense") if plain else ("Sparse VD", "Sparse VD, log alpha < 3")
        networks = {whole: one.masked(torch.finfo(torch.float32).tiny if plain else float(one.cut or 0.0))}
        for name, share in shares.items():
            networks[f"{kind}, {name}"] = cut = one.masked(one.at_share(share))
            if train_on is not None:
                networks[f"{kind}, {name}, trained on"] = train_on(cut, f"{kind} {name} {index}")
        for what, network in networks.items():
            found.append(outcome(f"{what}, seed {index}", network, one.network, data, posterior.likelihood))
    return found


def chosen_share(posterior: Posterior, data: Images) -> float:
    """The share of the first seed's weights that validation rows do not miss."""
    curve = points(compress.scored(posterior.member(0)), posterior.likelihood, data.validation, SHARES)
    return choose(curve).removed


def averages(found: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """Means over seeds by what was done."""
    kinds = dict.fromkeys(one.what.rpartition(", seed")[0] for one in found)
    groups = {kind: [one for one in found if one.what.startswith(f"{kind}, seed")] for kind in kinds}
    fields = ("ratio", "test", "smaller", "faster")
    return {kind: {f: fmean(getattr(one, f) for one in ones) for f in fields} for kind, ones in groups.items()}


def table(found: Sequence[Outcome], title: str) -> Table:
    """One row a network."""
    columns = ("network", "weights / non-zero", "test error %", "zeros by layer %", "file times smaller",
               "CPU times faster")  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            one.what,
            one.ratio,
            100 * one.test,
            " - ".join(f"{100 * share:.1f}" for share in one.layers),
            one.smaller,
            one.faster,
        )
        for one in found
    ]
    formats = dict.fromkeys((columns[1], columns[4], columns[5]), ".1f") | {columns[2]: ".2f"}
    return Table(title, columns, rows, formats=formats)


def pictures(posterior: SparsePosterior, plain: Posterior, records: Sequence[Any], per_epoch: int) -> list[Figure]:
    """Of the first seed, beside that of a plain fit."""
    return figures.standard(posterior.member(0), plain.member(0).mean_network(), records, per_epoch)
