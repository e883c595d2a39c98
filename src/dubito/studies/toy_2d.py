"""Two classes in the plane: where does each method doubt?

The toy of adversarial posterior distillation: 10 points per class around -(2, 2) and (2, 2), an MLP 2-10-10-2, and SGLD
as released: learning rate 0.05 on the mean loss of the 20 points, weight decay 1e-3, 10,000 iterations, one sample kept
in 20. In textbook form the step size is 0.05 / 20 and the prior N(0, 1 / (20 * 1e-3)).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

import dubito
from dubito import metrics, plots
from dubito.data import Split, toys
from dubito.nn import mlp
from dubito.prediction import Prediction, Undefined
from dubito.results import Cell, Figure, Result, Table
from dubito.studies.base import Plan, Settings, Study, built, mixing

RATE, DECAY = 0.05, 1e-3
FAR = 3.0  # distance to the nearest training point
DRAWS = 500


def plans(settings: Settings, n: int) -> dict[str, Plan]:
    """The methods; the first is the reference."""
    quick = settings.quick
    steps, (leapfrog, burn_in, kept) = (150, (5, 5, 5)) if quick else (10_000, (300, 100, 200))
    descent: dict[str, Any] = {"learning_rate": RATE, "optimiser": "sgd", "momentum": 0.0}
    plain = built(lambda: mlp([2, 10, 10, 2]), settings)
    dropped = built(lambda: mlp([2, 10, 10, 2], dropout=0.5), settings)
    return {
        "HMC": Plan(dubito.HMC(leapfrog=leapfrog, burn_in=burn_in), plain, burn_in + kept, 2 if quick else 16),
        "SGLD": Plan(dubito.SGLD(step_size=RATE / n, burn_in=100 if quick else 500), plain, steps),
        "Deep ensemble": Plan(dubito.DeepEnsemble(**descent), plain, steps, 3 if quick else 10),
        "MC dropout": Plan(dubito.MCDropout(**descent), dropped, steps),
        "MAP": Plan(dubito.MAP(**descent), plain, steps),
    }


class Plane:
    """Predictions of one posterior at fresh points of both classes and on the whole plane."""

    def __init__(self, posterior: dubito.Posterior, grid: Tensor, fresh: Split) -> None:
        self.grid = posterior.predict(grid, draws=DRAWS)
        self.fresh = posterior.predict(fresh.x, draws=DRAWS)
        self.accuracy = metrics.accuracy(self.fresh.probs, fresh.y)
        self.networks = self.grid.n_draws

    def row(self, far: Tensor, reference: "Plane") -> list[Cell]:
        """Doubt at the data and far away, and how close the probabilities are to the reference."""
        same = self is reference
        near_far = [
            _mean(p, name, at) for name in ("entropy", "bald") for p, at in ((self.fresh, None), (self.grid, far))
        ]
        distance = None if same else metrics.total_variation(self.grid.probs, reference.grid.probs)
        agreement = None if same else metrics.agreement(self.grid.probs, reference.grid.probs)
        return [self.accuracy, *near_far, distance, agreement]


def _mean(prediction: Prediction, measure: str, at: Tensor | None) -> float | None:
    """The mean of a measure over some rows, None where it does not exist."""
    try:
        values: Tensor = getattr(prediction, measure).cpu()
    except Undefined:
        return None
    return float((values if at is None else values[at]).mean())


def run(settings: Settings) -> Result:
    """Fit every method, and look at the whole plane."""
    train, fresh = toys.blobs(seed=settings.seed), toys.blobs(per_class=100, seed=settings.seed + 1)
    axis = np.linspace(-5, 5, 21 if settings.quick else 101)
    grid = torch.cartesian_prod(*[torch.tensor(axis, dtype=torch.float32)] * 2).flip(1)  # rows of constant y, as drawn
    prior = dubito.Normal(std=1 / math.sqrt(len(train.x) * DECAY))
    chosen = plans(settings, len(train.x))
    posteriors = {name: plan.fit(train, settings, dubito.Categorical(), prior) for name, plan in chosen.items()}
    planes = {name: Plane(posterior, grid, fresh) for name, posterior in posteriors.items()}
    far = torch.cdist(grid, train.x).amin(1) > FAR
    rhat = mixing(posteriors["HMC"], grid[:: len(grid) // 20])
    rows = {name: plane.row(far, planes["HMC"]) for name, plane in planes.items()}
    return Result(
        STUDY.name,
        STUDY.title,
        summary=SUMMARY,
        numbers={"rows": rows, "hmc median r-hat of predictions": rhat},
        tables=[_table(rows, rhat)],
        figures=[entropy_fields(planes, axis, train)],
        settings={
            "prior std": prior.std,
            "draws": DRAWS,
            "far": FAR,
            "methods": {name: plan.describe() for name, plan in chosen.items()},
        },
    )


def _table(rows: Mapping[str, list[Cell]], rhat: float) -> Table:
    columns = (
        "method",
        "accuracy",
        "entropy: data",
        "far",
        "BALD: data",
        "far ",
        "total variation to HMC",
        "agreement",
    )
    return Table(
        "Doubt at the data and far from it, in nats",
        columns,
        [(name, *row) for name, row in rows.items()],
        note=f"At the data: 200 fresh points of both classes. Far: more than {FAR:g} from every training point. Total "
        f"variation and agreement over the whole plane. Median R-hat of HMC's predictions: {rhat:.2f}.",
        formats=dict.fromkeys(columns[1:], ".3f"),
    )


def entropy_fields(planes: Mapping[str, Plane], axis: "np.ndarray[Any, Any]", train: Split) -> Figure:
    """The entropy of every method over the plane, with the training points."""
    points = [
        plots.Series(f"class {k}", train.x[train.y == k, 1].numpy(), train.x[train.y == k, 0].numpy()) for k in (0, 1)
    ]
    shape = (len(axis), len(axis))
    pictures = {
        name: plots.field(
            "entropy",
            name,
            axis,
            axis,
            plane.grid.entropy.cpu().numpy().reshape(shape),
            points,
            value_label="entropy (nats)",
            low=0.0,
            high=math.log(2),
        )
        for name, plane in planes.items()
    }
    return plots.panels("entropy", "Where each method doubts", pictures)


SUMMARY = ""

STUDY = Study(
    "toy-2d",
    "Two classes in the plane",
    "Wang, Vicol, Lucas, Gu, Grosse and Zemel, Adversarial Distillation of Bayesian Neural Network Posteriors (ICML "
    "2018, arXiv 1806.10317), with the settings of its released code; there the toy is a figure without numbers.",
    "the doubt of HMC, SGLD, an ensemble, dropout and one plain network over the whole plane",
    run,
)
