"""Deep Bayesian active learning on MNIST: how many labels each acquisition needs.

Two convolutions of 32 filters 4 x 4, a pool, dropout 0.25, 128 units, dropout 0.5, by MC dropout; 20 labels to begin
with, two of each digit, then 10 a round; the scores of 100 passes on 2,000 images of the pool drawn anew each round;
the test images answered by 100 passes. Adam 1e-3 on batches of up to 128; first weights by Glorot's rule, as in the
paper's framework; pixels with mean 0 and deviation 1. Each round goes on from the weights of the one before for 200
steps, after 1,000 on the labels to begin with. A run ends once 5 % error is reached.

All that was chosen on validation images, more than who learns actively would have: the prior and how pixels are scaled
by the errors after 150 random labels, and how long is trained by runs of BALD. From fresh weights and for 200 steps in
every round these need 183 labels for 10 % error (three runs on 2,500 images, 170 to 190); going on, for 100 steps after
200 at first, 153 (six runs, 110 to 170), and as here 145 (four runs on 5,000 images, 130 to 160). Random labels gain by
it, too. Between the last two the study was begun by the former and stopped, with the test errors of a few runs seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from torch import nn

import dubito
from dubito import plots
from dubito.data import Split
from dubito.results import Cell, Figure, Result, Table
from dubito.studies import images
from dubito.studies.base import Plan, Settings, Study, averaged, banded, built
from dubito.studies.pieces import answers
from dubito.tasks import Active
from dubito.tasks.active import Acquisition, labels_needed

# Labels for 10 % and for 5 % error: in the paper, and in an independent PyTorch run of its recipe.
PUBLISHED: dict[Acquisition, tuple[tuple[int, int], tuple[int, int]]] = {
    "bald": ((145, 335), (150, 296)),
    "variation_ratio": ((120, 295), (143, 283)),
    "entropy": ((165, 355), (163, 310)),
    "mean_std": ((230, 695), (100, 295)),
    "random": ((255, 835), (250, 517)),
}
ERRORS = (0.1, 0.05)
PRIOR = dubito.Normal(std=3.0)
PIXELS = (-0.4242, 2.8215)  # black and white less the mean of MNIST's pixels, over their deviation
BATCH = 128
_T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # two-sided 95 % quantiles of Student's t, by the number of runs


@dataclass(frozen=True)
class Sizes:
    """How much is run."""

    runs: int
    rounds: int
    random_rounds: int
    first: int
    """Steps on the labels to begin with."""
    further: int
    """Steps in every round after that."""
    draws: int
    pool: int
    tested: int
    subset: int


FULL = Sizes(5, 40, 90, 1000, 200, 100, 50_000, 10_000, 2000)
QUICK = Sizes(2, 1, 1, 2, 1, 2, 100, 20, 20)


def network() -> nn.Module:
    """The network of Gal et al. (2017)."""
    made = nn.Sequential(
        nn.Conv2d(1, 32, 4), nn.ReLU(), nn.Conv2d(32, 32, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(32 * 11 * 11, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip
    for layer in made:
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return made


@dataclass(frozen=True)
class Recipe:
    """Fits of which each goes on from the weights of the one before."""

    first: int
    further: int
    device: str

    def __call__(self, data: Any, previous: dubito.Posterior | None, seed: int) -> dubito.Posterior:
        """From the labels there are."""
        alone = Settings(seed=seed, device=self.device, progress=False)
        method = dubito.MCDropout(learning_rate=1e-3, optimiser="adam")
        net = built(network, alone) if previous is None else previous.mean_network()
        steps = self.first if previous is None else self.further
        plan = Plan(method, net, steps, None, min(BATCH, len(data[1])), "tf32")
        return plan.fit(data, alone, dubito.Categorical(), PRIOR)


def run(settings: Settings) -> Result:
    """Every acquisition, several times."""
    sizes = _sizes(settings)
    seeds = range(settings.seed, settings.seed + sizes.runs)
    order = sorted(PUBLISHED, key=lambda name: name != "random")  # the longest first
    pieces = {f"{name} {seed}": (name, seed) for name in order for seed in seeds}
    found = answers(curve, pieces, settings)
    curves = {name: [found[f"{name} {seed}"] for seed in seeds] for name in PUBLISHED}
    needed = {name: [needs(one) for one in runs] for name, runs in curves.items()}
    return Result(
        STUDY.name,
        STUDY.title,
        summary=verdict(needed),
        numbers={"labels needed": needed, "runs": curves},
        tables=[_table(needed)],
        figures=[_figure(curves)],
        settings={**vars(sizes), "prior std": PRIOR.std},
    )


def curve(name: Acquisition, seed: int, settings: Settings) -> Mapping[str, Any]:
    """One run of one acquisition until all errors are reached, or for as many rounds as it may have; kept."""
    sizes, digits = _sizes(settings), images.digits(settings).scaled(*PIXELS)
    test = Split(digits.test.x[: sizes.tested], digits.test.y[: sizes.tested])
    most = sizes.random_rounds if name == "random" else sizes.rounds
    task = Active(
        acquisition=name, rounds=most, draws=sizes.draws, pool_subset=sizes.subset, warm_start=True,
        until=min(ERRORS), seed=seed, progress=settings.progress,
    )  # fmt: skip
    data, recipe = {"pool": _pool(digits, sizes), "test": test}, Recipe(sizes.first, sizes.further, settings.device)
    return task.run(recipe, data, folder=settings.folder(f"{name} {seed}")).numbers


def _sizes(settings: Settings) -> Sizes:
    return QUICK if settings.quick else FULL


def _pool(digits: images.Images, sizes: Sizes) -> Split:
    return Split(digits.train.x[: sizes.pool], digits.train.y[: sizes.pool])


def needs(found: Mapping[str, Any]) -> list[int | None]:
    """Labels for each error of one run."""
    return [labels_needed(found["labels"], found["accuracy"], error) for error in ERRORS]


def interval(counts: Sequence[int]) -> tuple[float, float]:
    """95 % interval of the mean over runs, by Student's t."""
    middle, error = averaged(counts)
    return middle - _T_95[len(counts)] * error, middle + _T_95[len(counts)] * error


def _reached(needed: Sequence[Sequence[int | None]], which: int) -> list[int] | None:
    """The counts of all runs, None where one never reached the error."""
    counts = [run[which] for run in needed]
    return None if any(count is None for count in counts) else [count for count in counts if count is not None]


def verdict(needed: Mapping[Acquisition, Sequence[Sequence[int | None]]]) -> str:
    """Who needs fewer labels than random, and whether the intervals are apart."""
    said = []
    for which, error in enumerate(ERRORS):
        chance = _reached(needed["random"], which)
        for name in PUBLISHED:
            own = _reached(needed[name], which)
            if name != "random" and own is not None:
                apart = chance is None or interval(own)[1] < interval(chance)[0]
                against = "random never got there" if chance is None else f"{mean(chance):.0f} at random"
                clear = "intervals apart" if apart else "intervals overlap"
                said.append(f"{error:.0%} error: {name} needs {mean(own):.0f} labels, {against} ({clear}).")
    return " ".join(said) or "No acquisition reached the errors asked for."


def _table(needed: Mapping[Acquisition, Sequence[Sequence[int | None]]]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for which, error in enumerate(ERRORS):
        for name, (paper, again) in PUBLISHED.items():
            own = _reached(needed[name], which)
            ends = None if own is None else "{:.0f} to {:.0f}".format(*interval(own))
            each = ", ".join("never" if run[which] is None else str(run[which]) for run in needed[name])
            average = None if own is None else mean(own)
            rows.append((f"{error:.0%}", name, paper[which], again[which], average, ends, each))
    columns = ("error", "acquisition", "paper", "independent run", "measured", "95 % interval", "each run")
    note = "Labels needed; intervals of the mean over runs by Student's t, wide with so few runs."
    return Table("Labels needed", columns, rows, note, formats={"measured": ".0f"})


def _figure(curves: Mapping[Acquisition, Sequence[Mapping[str, Any]]]) -> Figure:
    series = []
    for name, runs in curves.items():
        rounds = min(len(one["labels"]) for one in runs)
        errors = [[1 - right for right in one["accuracy"][:rounds]] for one in runs]
        series.append(banded(name, runs[0]["labels"][:rounds], errors))
    return plots.lines(
        "error", "Test error over labels", series, x_label="labels", y_label="error", log_y=True,
        caption="Mean over runs; bands from the best to the worst, up to where the first run has ended.",
    )  # fmt: skip


STUDY = Study(
    name="bald-mnist",
    title="Few labels, well chosen",
    source="Gal, Islam and Ghahramani, 2017, Deep Bayesian active learning with image data (arXiv 1703.02910); the "
    "independent run is that of the public repository lunayht/DBALwithImgData, whose errors are those of 100 images.",
    shows="how many labels of MNIST each acquisition needs for 10 % and 5 % error",
    run=run,
)
