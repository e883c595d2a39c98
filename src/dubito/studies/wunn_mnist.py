"""MNIST by two hidden layers: plain SGD, dropout, and Bayes by Backprop under a Gaussian and a scale-mixture prior.

The configuration of each method is chosen on the last 10,000 training images after training on the others, at most
twelve in all; then it is frozen, trained on all training images at three widths, and the test images are opened. Seeds
are members that train side by side on the same batches, so that methods can be compared seed by seed.

An earlier set of twelve, with larger first spreads and no warm-up, had been judged and opened on the test images; these
follow from it and from short runs of narrower networks on validation images. Blundell's own sharing-out of the KL among
batches is not tried: under Adam, which divides by the size of gradients, it all but removes the KL.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import dubito
from dubito import plots
from dubito.compress import pruned
from dubito.config import to_dict
from dubito.data import Split
from dubito.nn import mlp
from dubito.posteriors.base import Posterior
from dubito.posteriors.gaussian import GaussianPosterior
from dubito.priors import PriorSpec
from dubito.results import Cell, Figure, Result, Table
from dubito.studies.base import Floats, Settings, Study, against_published, averaged, built, gather
from dubito.studies.pieces import answers

WIDTHS = (400, 800, 1200)
SEEDS = {400: 3, 800: 3, 1200: 5}
SCALE = 255 / 126  # the paper divides pixels by 126
HELD = 10_000
EPOCHS, CHOICE, BATCH, DRAWS = 200, 100, 128, 20  # CHOICE: epochs of the runs that configurations are chosen by
CUT = 0.95  # of the weights, without which networks are judged once more
PUBLISHED = {
    "SGD": (1.83, 1.84, 1.88),
    "Dropout": (1.51, 1.33, 1.36),
    "BBB, Gaussian": (1.82, 1.99, 2.04),
    "BBB, mixture": (1.36, 1.34, 1.32),
}
WIDE = dubito.Normal(std=10.0)  # next to no weight decay


@dataclass(frozen=True)
class Config:
    """A method, its prior, and the dropout rate of its network."""

    method: dubito.Method[Any]
    prior: PriorSpec
    dropout: float = 0.0

    def describe(self) -> dict[str, Any]:
        """As plain values."""
        return {"method": to_dict(self.method), "prior": to_dict(self.prior), "dropout": self.dropout}


def bayes(prior: PriorSpec, warm: float = 0.0, init: float = 0.002) -> Config:
    """Bayes by Backprop, whose KL is let in over a share of the run."""
    method = dubito.Variational(learning_rate=1e-3, schedule="cosine", init_std=init)
    return Config(replace(method, kl=dubito.schedules.Rise(0.0, warm)) if warm else method, prior)


def mixture(pi: float, second: float, warm: float = 0.0, init: float = 0.002) -> Config:
    """The same under a scale mixture of the standard deviations 1 and e^-second."""
    return bayes(dubito.ScaleMixture(pi, 1.0, float(np.exp(-second))), warm, init)


def configs() -> dict[str, list[Config]]:
    """What is tried on the validation images: twelve configurations."""

    def sgd(rate: float, dropout: float) -> Config:
        method = dubito.MAP(optimiser="sgd", learning_rate=rate, schedule="cosine" if dropout else "constant")
        return Config(method, WIDE, dropout)

    normal = dubito.Normal(std=float(np.exp(-1)))
    return {
        "SGD": [sgd(1e-2, 0.0)],
        "Dropout": [sgd(5e-2, 0.5)],
        "BBB, Gaussian": [bayes(normal), bayes(normal, warm=0.9)],
        "BBB, mixture": [
            mixture(0.5, 8),
            mixture(0.75, 8),
            mixture(0.75, 7, warm=0.5),
            mixture(0.5, 8, warm=0.5),
            mixture(0.75, 8, warm=0.5),
            mixture(0.75, 8, warm=0.5, init=0.0067),
            mixture(0.5, 8, warm=0.9),
            mixture(0.75, 8, warm=0.9),
        ],
    }


@dataclass(frozen=True, eq=False)
class Images:
    """All training images, those to choose by, and the test images; flat, pixels over 126."""

    train: Split
    test: Split

    @property
    def known(self) -> Split:
        """What configurations are trained on."""
        return Split(self.train.x[: -self.held], self.train.y[: -self.held])

    @property
    def validation(self) -> Split:
        """What they are judged on."""
        return Split(self.train.x[-self.held :], self.train.y[-self.held :])

    @property
    def held(self) -> int:
        """How many images configurations are judged on."""
        return min(HELD, len(self.train.x) // 4)


def images(settings: Settings) -> Images:
    """MNIST, or the embedded digits where a quick run has no MNIST."""
    names = ["digits"] if settings.quick else ["mnist"]
    found = gather(names).sets[names[0]]
    return Images(*(Split(s.x.flatten(1) * SCALE, s.y) for s in (found.part("train"), found.part("test"))))


def fitted(
    config: Config, data: Split, width: int, seeds: int, settings: Settings, name: str, epochs: int = EPOCHS
) -> Posterior:
    """One configuration at one width, all seeds side by side; kept below its name."""
    net = built(lambda: mlp([data.x.shape[1], width, width, 10], dropout=config.dropout), settings)
    return dubito.fit(
        net, data, config.method, likelihood=dubito.Categorical(), prior=config.prior, members=seeds,
        epochs=1 if settings.quick else epochs, batch_size=BATCH, seed=settings.seed, device=settings.device,
        folder=settings.folder(name), precision="tf32", progress=settings.progress,
    )  # fmt: skip


def errors(posterior: Posterior, data: Split, draws: int = DRAWS) -> Floats:
    """The test error of every member in percent, averaged over its own draws."""
    members = len(posterior)
    kept = posterior.predict(data.x, draws=draws * members, keep_draws=True).draws
    probs = kept.unflatten(0, (-1, members)).mean(0)  # draw i belongs to member i modulo members
    wrong = probs.argmax(-1).cpu() != data.y
    return np.asarray(100 * wrong.double().mean(1))


def mean_network(posterior: Posterior) -> Posterior:
    """Every member without its spread."""
    if not isinstance(posterior, GaussianPosterior):
        return posterior
    return replace(posterior, std=torch.zeros_like(posterior.std))


def tried(method: str, number: int, settings: Settings) -> tuple[float, float]:
    """The validation errors of one configuration that has not seen those images, whole and lean."""
    data, width = images(settings), 16 if settings.quick else WIDTHS[-1]
    posterior = fitted(configs()[method][number], data.known, width, 1, settings, f"choice-{method}-{number}", CHOICE)
    lean = pruned(posterior, CUT) if isinstance(posterior, GaussianPosterior) else posterior
    return float(errors(posterior, data.validation)[0]), float(errors(lean, data.validation)[0])


def chosen(settings: Settings) -> tuple[dict[str, int], list[tuple[Cell, ...]]]:
    """The number of the configuration of each method with the least validation error, and all that were tried."""
    counts = {method: min(2, len(tried)) if settings.quick else len(tried) for method, tried in configs().items()}
    pieces = {f"choice {method} {number}": (method, number) for method in counts for number in range(counts[method])}
    found = dict(zip(pieces.values(), answers(tried, pieces, settings).values(), strict=True))
    best = {m: int(np.argmin([found[m, n][0] for n in range(count)])) for m, count in counts.items()}
    return best, [(m, n + 1, _words(configs()[m][n]), *error) for (m, n), error in found.items()]


def final(method: str, number: int, width: int, settings: Settings) -> Posterior:
    """The frozen configuration on all training images."""
    seeds = 2 if settings.quick else SEEDS[width]
    data = images(settings).train
    return fitted(configs()[method][number], data, width, seeds, settings, f"{method}-{number}-{width}")


def tested(method: str, number: int, width: int, settings: Settings) -> dict[str, list[float]]:
    """Test errors of every seed, by draws and by the mean network."""
    posterior, test = final(method, number, width, settings), images(settings).test
    return {"drawn": list(errors(posterior, test)), "still": list(errors(mean_network(posterior), test, 1))}


def run(settings: Settings) -> Result:
    """Choose, freeze, train, and only then look at the test images."""
    frozen, listed = chosen(settings)
    widths = (16,) if settings.quick else WIDTHS
    pieces = {f"{m} at {width}": (m, number, width) for width in reversed(widths) for m, number in frozen.items()}
    found = dict(zip(pieces.values(), answers(tested, pieces, settings).values(), strict=True))
    drawn, still = (
        {m: {width: np.array(found[m, number, width][which]) for width in widths} for m, number in frozen.items()}
        for which in ("drawn", "still")
    )
    data = images(settings)
    return Result(
        STUDY.name,
        STUDY.title,
        summary=_summary(drawn, data),
        numbers={"error": _plain(drawn), "error of the mean network": _plain(still)},
        tables=[_against(drawn), _means(drawn, still), _paired(drawn), _tried(listed)],
        figures=[_figure(drawn)],
        settings={
            "epochs": EPOCHS, "epochs of the choice": CHOICE, "batch_size": BATCH, "draws": DRAWS,
            "training rows": len(data.train.x),
            "chosen": {method: configs()[method][number].describe() for method, number in frozen.items()},
        },
    )  # fmt: skip


def _plain(found: Mapping[str, Mapping[int, Floats]]) -> dict[str, Any]:
    return {method: {str(width): list(row) for width, row in by.items()} for method, by in found.items()}


def _against(drawn: Mapping[str, Mapping[int, Floats]]) -> Table:
    rows = [
        (f"{method}, {width} units", PUBLISHED[method][WIDTHS.index(width)] if width in WIDTHS else None,
         averaged(row)[0], f"standard error {averaged(row)[1]:.3f}, {len(row)} seeds")
        for method, by in drawn.items() for width, row in by.items()
    ]  # fmt: skip
    table = against_published("Test error in percent", rows)
    return replace(table, note="Published: one run on 50,000 images, 600 epochs. Here: all 60,000 after the choice.")


def _means(drawn: Mapping[str, Mapping[int, Floats]], still: Mapping[str, Mapping[int, Floats]]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (method, width, *averaged(drawn[method][width]), *averaged(still[method][width]))
        for method in drawn
        for width in drawn[method]
    ]
    columns = ("method", "units", "error, draws", "s.e.", "error, mean network", "s.e. of it")
    title = f"With {DRAWS} draws, and by the mean weights"
    return Table(title, columns, rows, formats=dict.fromkeys(columns[2:], ".3f"))


def _paired(drawn: Mapping[str, Mapping[int, Floats]]) -> Table:
    """How much worse than the mixture each other method is, seed by seed."""
    rows = []
    for method in drawn:
        for width, row in drawn[method].items():
            if method != "BBB, mixture":
                gap = row - drawn["BBB, mixture"][width]
                rows.append((method, width, *averaged(gap), int((gap > 0).sum()), len(gap)))
    columns = ("method", "units", "error minus the mixture's", "s.e.", "seeds behind it", "seeds")
    formats = {columns[2]: "+.3f", "s.e.": ".3f"}
    return Table("Paired with the scale mixture, seed by seed", columns, rows, formats=formats)


def _tried(rows: list[tuple[Cell, ...]]) -> Table:
    columns = ("method", "number", "configuration", "validation error", f"without {CUT:.0%} of the weights")
    formats = dict.fromkeys(columns[3:], ".2f")
    note = "A plain network has no spread to prune by and keeps its weights here."
    return Table("Tried on the validation images, one seed", columns, rows, note, formats)


def _figure(drawn: Mapping[str, Mapping[int, Floats]]) -> Figure:
    widths = [str(w) for w in next(iter(drawn.values()))]
    series = []
    for method, by in drawn.items():
        middle, error = np.array([averaged(row) for row in by.values()]).T
        series.append(plots.Series(method, middle, low=middle - error, high=middle + error))
    return plots.bars("error", "Test error by hidden units", widths, series, y_label="error, %")


def _summary(drawn: Mapping[str, Mapping[int, Floats]], data: Images) -> str:
    width = list(drawn["BBB, mixture"])[-1]
    words = ["{} {:.2f} ± {:.2f}".format(m, *averaged(by[width])) for m, by in drawn.items()]
    return (
        f"At {width} units, in percent of {len(data.test.y):,} test images, mean and standard error over seeds: "
        f"{', '.join(words)}."
    )


def _words(config: Config) -> str:
    fields = to_dict(config.prior) | {"rate": config.method.learning_rate}  # type: ignore[attr-defined]
    if isinstance(config.method, dubito.Variational):
        fields |= {"init_std": config.method.init_std, "kl": config.method.kl}
    return ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else str(v) for k, v in fields.items())


STUDY = Study(
    "wunn-mnist",
    "MNIST: weight uncertainty against SGD and dropout",
    "Blundell, Cornebise, Kavukcuoglu and Wierstra, Weight Uncertainty in Neural Networks (ICML 2015), table 1.",
    "test error of SGD, dropout and Bayes by Backprop under two priors at three widths",
    run,
)
