"""Attacks on dropout networks of several alpha-divergences and on a plain network (Li and Gal, 2017).

An MLP of 3 x 1000 on pixels in [0, 1], dropout 0.5 before every layer and on the input, SGD 0.01 without momentum,
batches of 128, 200 epochs (there: 500), weight decay 1e-6 on weights and none on biases; 10 masks in every step, in
every gradient of an attack, where they are always new ones, and in every answer. FGSM from 0 to 0.5 against the class
that the averaged answer puts first, and small steps towards the digit 0. The published curves have no numbers: what can
be compared is their order and whether doubt rises.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

import dubito
from dubito.posteriors.base import Posterior
from dubito.priors import PriorLike
from dubito.results import Cell, Result, Table
from dubito.studies import images
from dubito.studies.base import Plan, Settings, Study, built
from dubito.studies.pieces import ahead
from dubito.tasks import FGSM, Robustness, TargetedFGSM, Trajectory

DRAWS, BATCH, EPOCHS, DECAY = 10, 128, 200, 1e-6
ALPHAS = (0.0, 0.5, 1.0)
EPSILONS = tuple(round(0.02 * k, 2) for k in range(26))


def network(rate: float, width: int) -> nn.Module:
    """Three hidden layers, with dropout before every layer where there is any."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before in (784, width, width):
        layers += [nn.Dropout(rate)] if rate else []
        layers += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*layers, *([nn.Dropout(rate)] if rate else []), nn.Linear(width, 10))


def plans(settings: Settings, n: int) -> dict[str, Plan]:
    """A row for each method."""
    steps, width = (40, 30) if settings.quick else (EPOCHS * (n // BATCH), 1000)
    descent: dict[str, Any] = {"learning_rate": 0.01, "optimiser": "sgd", "momentum": 0.0}
    plain, dropped = (built(partial(network, rate, width), settings) for rate in (0.0, 0.5))
    return {
        "plain MLP": Plan(dubito.MAP(**descent), plain, steps, None, BATCH, "tf32"),
        **{
            f"alpha = {alpha:g}": Plan(
                dubito.AlphaDivergenceDropout(alpha, draws=DRAWS, **descent), dropped, steps, None, BATCH, "tf32"
            )
            for alpha in ALPHAS
        },
    }


def posterior(name: str, digits: images.Images, settings: Settings) -> Posterior:
    """One method; kept."""
    plan = plans(settings, len(digits.train.x))[name]
    prior = weight_decay(len(digits.train.x))
    return plan.fit(digits.train, settings, dubito.Categorical(), prior, folder=settings.folder(name))


def weight_decay(n: int) -> dict[str, PriorLike]:
    """The prior of Keras' weight decay, DECAY |w|^2 beside the mean loss of n data; biases have none."""
    return {"*bias": dubito.Point(), "*": dubito.Normal(std=(2 * DECAY * n) ** -0.5)}


def _made(name: str, settings: Settings) -> None:
    posterior(name, images.digits(settings).whole(), settings)


def run(settings: Settings) -> Result:
    """Fit, and attack each by its own gradients."""
    digits = images.digits(settings).whole()
    chosen = plans(settings, len(digits.train.x))
    ahead(_made, {name: (name,) for name in reversed(chosen)}, settings)
    fitted = {name: posterior(name, digits, settings) for name in chosen}
    count, steps, epsilons = (20, 3, (0.0, 0.2)) if settings.quick else (10_000, 100, EPSILONS)
    test = tuple(t[:count] for t in digits.test)
    shared: dict[str, Any] = {"draws": DRAWS, "seed": settings.seed, "progress": settings.progress}
    attack = FGSM(epsilon=0.2, draws=DRAWS, fresh=True, against="prediction")
    fgsm = Robustness(attack=attack, epsilons=epsilons, bootstrap=0, shown=3, **shared).run(fitted, {"test": test})
    targeted = TargetedFGSM(target=0, steps=steps, draws=DRAWS, fresh=True)
    way = Trajectory(attack=targeted, shown=5, **shared).run(fitted, {"test": test})
    curves = fgsm.numbers["against epsilon"]
    return Result(
        STUDY.name,
        STUDY.title,
        summary=" ".join(verdict(name, curve) for name, curve in curves.items()),
        numbers={"fgsm": fgsm.numbers, "targeted": way.numbers},
        tables=[_table(curves), *way.tables],
        figures=[*fgsm.figures, *(replace(one, name=f"targeted-{one.name}") for one in way.figures)],
        settings={
            "weight decay": DECAY,
            "methods": {name: plan.describe() for name, plan in chosen.items()},
        },
    )


def verdict(name: str, curve: Mapping[str, Sequence[float]]) -> str:
    """How accuracy falls and doubt rises."""
    entropy = {epsilon: by[2] for epsilon, by in curve.items()}
    most = max(entropy, key=lambda epsilon: entropy[epsilon])
    first, last = next(iter(curve.values())), list(curve.values())[-1]
    return (
        f"{name}: accuracy from {first[0]:.1%} to {last[0]:.1%}, mean entropy from {first[2]:.2f} to at most "
        f"{entropy[most]:.2f} nats, at epsilon {most}."
    )


def _table(curves: Mapping[str, Mapping[str, Sequence[float]]]) -> Table:
    columns = ("epsilon", *(f"{name}: {what}" for name in curves for what in ("accuracy", "entropy")))
    epsilons = list(next(iter(curves.values())))
    rows: list[tuple[Cell, ...]] = [(e, *(curve[e][i] for curve in curves.values() for i in (0, 2))) for e in epsilons]
    return Table("FGSM", columns, rows, "Entropy in nats; standard errors are in the figures.")


STUDY = Study(
    name="alpha-attacks",
    title="Does doubt rise as accuracy falls?",
    source="Li and Gal, 2017, Dropout inference in Bayesian neural networks with alpha-divergences (arXiv 1703.02914); "
    "the published figures have no numbers.",
    shows="accuracy and entropy of dropout networks under FGSM and on the way to a wrong digit",
    run=run,
)
