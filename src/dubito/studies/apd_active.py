"""Active learning as in adversarial posterior distillation: which posterior's entropy chooses the best labels?

A small CNN (three convolutions of 48, three of 96, three more, global average), two labels of each digit to begin with
and 10 more a step for 30 steps, chosen by entropy over 30 networks; full-batch iterations with learning rate 0.05.

What costs less here than in the released script, which has 50 steps, 50 networks, and at every step 3,000 iterations
from fresh weights:

- the first 20 labels get the 3,000 iterations; after that every method goes on from where it stood before the new
  labels came, for 250 iterations. A chain forgets a sixth of both and keeps one in 4 (there: 500, and one in 5).
  Networks that go on generalise a little worse than fresh ones (Ash and Adams, 2020, arXiv 1910.08475);
- labels are chosen among 1,000 images of the pool drawn anew at every step, and accuracy is that on the first 2,000
  test images, with a standard error of at most 1.1 points and of 0.5 at 95 %;
- the generator is trained from scratch for 200 updates at each step (there: 1,000), on standardised weights.

Faults of the released script, repaired here:

1. the noise of SGLD there has a variance of rate / (1000 N), a temperature of 1e-3; here 1;
2. its generator is never trained, because the counter that would start it is never increased; here it is, each
   step on that step's chain;
3. its MC dropout chooses without dropout, because the command asks for determinism too; here by 30 masks;
4. it plots the running maximum of the test accuracy; here the accuracy itself, of one run as there;
5. its network cuts logits off below 1e-10; here it does not;
6. its weight decay of 0.05 on the mean loss is a prior that tightens with every label; here it stays what it is at 20;
7. its BatchNorm makes the likelihood of one image depend on the others; here GroupNorm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from torch import Tensor, nn

import dubito
from dubito import plots
from dubito.data import Split
from dubito.distill import Adversarial, adversarial
from dubito.methods.base import Method
from dubito.posteriors.samples import SamplesPosterior
from dubito.results import Cell, Figure, Result, Table
from dubito.studies import images
from dubito.studies.base import Plan, Settings, Study, banded, built
from dubito.studies.pieces import answers
from dubito.tasks import Active
from dubito.tasks.active import Acquisition

RATE, DECAY, START, SUBSET = 0.05, 0.05, 20, 1000  # of the pool
AT = (50, 100, 150, 200, 320)  # labels for the table


@dataclass(frozen=True)
class Sizes:
    """How much is run."""

    runs: int
    rounds: int
    first: int
    """Iterations on the labels to begin with."""
    further: int
    """Iterations at every step after that."""
    draws: int
    pool: int
    tested: int
    channels: int
    generated: int
    """Updates of the generator."""


FULL = Sizes(1, 30, 3000, 250, 30, 50_000, 2_000, 48, 200)
QUICK = Sizes(1, 1, 8, 6, 3, 60, 20, 4, 3)


def network(channels: int, drop: bool) -> nn.Module:
    """The CNN, with dropout 0.2, 0.2 and 0.3 after its three parts where it is to drop."""

    def block(before: int, after: int, kernel: int = 3) -> list[nn.Module]:
        return [nn.Conv2d(before, after, kernel, padding=kernel // 2), nn.GroupNorm(2, after), nn.LeakyReLU(0.2)]

    def dropout(rate: float) -> list[nn.Module]:
        return [nn.Dropout(rate)] if drop else []

    few, many = channels, 2 * channels
    layers = [*block(1, few), *block(few, few), *block(few, few), nn.MaxPool2d(2), *dropout(0.2)]
    layers += [*block(few, many), *block(many, many), *block(many, many), nn.MaxPool2d(2), *dropout(0.2)]
    layers += [*block(many, many), *block(many, many, 1), *block(many, many, 1), *dropout(0.3)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(many, 10))


@dataclass(frozen=True)
class Row:
    """A method and how its labels are chosen."""

    method: str
    acquisition: Acquisition = "entropy"


ROWS = {
    "APD": Row("apd"),
    "SGLD": Row("sgld"),
    "MC dropout": Row("dropout"),
    "SGD": Row("sgd"),
    "random": Row("sgd", "random"),
}


def method(name: str, n: int, steps: int) -> Method[Any]:
    """The method with the released settings in textbook form, for n labels."""
    descent: dict[str, Any] = {"learning_rate": RATE, "optimiser": "sgd", "momentum": 0.0}
    if name in ("sgld", "apd"):
        return dubito.SGLD(step_size=RATE / n, burn_in=steps // 6, thin=min(4, steps // 3))
    return dubito.MCDropout(**descent) if name == "dropout" else dubito.MAP(**descent)


@dataclass
class Recipe:
    """The fits of one row, each of which goes on from the one before."""

    row: Row
    sizes: Sizes
    settings: Settings
    reached: dict[str, Tensor] = field(default_factory=dict)
    """Weights at the end of the latest fit."""

    def __call__(self, data: Any, previous: dubito.Posterior | None, seed: int) -> dubito.Posterior:
        """On all labels at once; where asked for, distilled."""
        fitted = self._fitted(data, seed)
        self.reached = reached(fitted)
        if self.row.method != "apd":
            return fitted
        generator = Adversarial(noise=100, batch_size=32)
        return adversarial(
            fitted, generator, steps=self.sizes.generated, seed=seed, device=self.settings.device, progress=False
        )

    def _fitted(self, data: Any, seed: int) -> dubito.Posterior:
        n, alone = len(data[1]), Settings(seed=seed, device=self.settings.device, progress=False)
        net = built(lambda: network(self.sizes.channels, self.row.method == "dropout"), alone)
        if self.reached:
            net.load_state_dict(self.reached)
        steps = self.sizes.further if self.reached else self.sizes.first
        plan = Plan(method(self.row.method, n, steps), net, steps, None, n, "tf32")
        return plan.fit(data, alone, dubito.Categorical(), dubito.Normal(std=(START * DECAY) ** -0.5))


def reached(posterior: dubito.Posterior) -> dict[str, Tensor]:
    """The last weights of a chain, or those of a single network."""
    if not isinstance(posterior, SamplesPosterior):
        return dict(posterior.mean_network().state_dict())
    (last,) = posterior.samples.get([len(posterior) - 1])[0]
    return posterior.net.layout.split(last)


def run(settings: Settings) -> Result:
    """Every row, several times."""
    sizes = _sizes(settings)
    seeds = range(settings.seed, settings.seed + sizes.runs)
    found = answers(curve, {f"{name} {seed}": (name, seed) for name in ROWS for seed in seeds}, settings)
    curves = {name: [found[f"{name} {seed}"] for seed in seeds] for name in ROWS}
    return Result(
        STUDY.name,
        STUDY.title,
        summary=verdict(curves),
        numbers=curves,
        tables=[_table(curves)],
        figures=[_figure(curves)],
        settings={**vars(sizes), "prior std": (START * DECAY) ** -0.5},
    )


def curve(name: str, seed: int, settings: Settings) -> Mapping[str, Any]:
    """One run of one row."""
    sizes, row, digits = _sizes(settings), ROWS[name], images.digits(settings).scaled(-1, 1)
    pool = Split(digits.train.x[: sizes.pool], digits.train.y[: sizes.pool])
    test = Split(digits.test.x[: sizes.tested], digits.test.y[: sizes.tested])
    task = Active(
        acquisition=row.acquisition, rounds=sizes.rounds, start=START, draws=sizes.draws,
        pool_subset=SUBSET, seed=seed, progress=settings.progress,
    )  # fmt: skip
    return task.run(Recipe(row, sizes, settings), {"pool": pool, "test": test}).numbers


def _sizes(settings: Settings) -> Sizes:
    return QUICK if settings.quick else FULL


def verdict(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The methods by their accuracy averaged over all label counts and runs."""
    area = {name: mean(mean(one["accuracy"]) for one in runs) for name, runs in curves.items()}
    ranked = sorted(area, key=lambda name: -area[name])
    runs = len(next(iter(curves.values())))
    shown = ", ".join(f"{name} {area[name]:.1%}" for name in ranked)
    often = "one run, so that small differences mean nothing" if runs == 1 else f"{runs} runs"
    return f"Accuracy averaged over all numbers of labels, {often}: {shown}."


def _table(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    labels = next(iter(curves.values()))[0]["labels"]
    counts = [n for n in AT if n in labels] or labels
    rows: list[tuple[Cell, ...]] = [
        (name, *(mean(one["accuracy"][labels.index(n)] for one in runs) for n in counts))
        for name, runs in curves.items()
    ]
    runs = len(next(iter(curves.values())))
    note = f"{'One run' if runs == 1 else f'Mean over {runs} runs'}; the published curves have no numbers."
    return Table("Test accuracy by labels", ("method", *map(str, counts)), rows, note)


def _figure(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    series = [banded(name, runs[0]["labels"], [one["accuracy"] for one in runs]) for name, runs in curves.items()]
    several = len(next(iter(curves.values()))) > 1
    caption = "Mean over runs; bands from the worst to the best." if several else "One run."
    return plots.lines("accuracy", "Accuracy by labels", series, x_label="labels", y_label="accuracy", caption=caption)


STUDY = Study(
    name="apd-active",
    title="Whose entropy chooses the best labels",
    source="Wang et al., 2018, Adversarial distillation of Bayesian neural network posteriors (arXiv 1806.10317); "
    "recipe from the released code, its faults repaired; the published curves have no numbers.",
    shows="active learning on MNIST by the entropy of four kinds of posterior, and at random",
    run=run,
)
