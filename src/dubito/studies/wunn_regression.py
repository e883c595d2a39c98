"""Regression with two sines on a line: medians and quartiles of Bayes by Backprop, and the plain network beside it.

y = x + 0.3 sin 2 pi (x + e) + 0.3 sin 4 pi (x + e) + e with x in [0, 0.5]; the networks are asked outside too.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import dubito
from dubito import metrics, plots
from dubito.data import Split, toys
from dubito.nn import mlp
from dubito.posteriors.base import Posterior
from dubito.results import Cell, Figure, Result, Table
from dubito.studies.base import Plan, Settings, Study, built

Floats = NDArray[np.float64]

DRAWS = 200
OUTSIDE = (-0.3, 0.8, 1.2)
PLAIN = "Plain network"


def plans(settings: Settings) -> dict[str, Plan]:
    """The plain network, and a Gaussian over its weights under two priors."""
    hidden, steps = ([20, 20], 60) if settings.quick else ([400, 400], 15_000)
    net = built(lambda: mlp([1, *hidden, 1]), settings)
    method = dubito.Variational(learning_rate=1e-3, schedule="cosine", draws=2)
    return {
        PLAIN: Plan(dubito.MAP(learning_rate=1e-3, schedule="cosine"), net, steps, batch_size=100),
        "BBB, Gaussian": Plan(method, net, steps, batch_size=100),
        "BBB, mixture": Plan(method, net, steps, batch_size=100),
    }


PRIORS: dict[str, dubito.Prior] = {
    PLAIN: dubito.Normal(std=10.0),
    "BBB, Gaussian": dubito.Normal(std=1.0),
    "BBB, mixture": dubito.ScaleMixture(0.5, 1.0, float(np.exp(-6))),
}


def quartiles(posterior: Posterior, x: Tensor, seed: int) -> Floats:
    """The quartiles and the median of the functions drawn, (3, N)."""
    draws = posterior.predict(x, draws=DRAWS, seed=seed, keep_draws=True).draws[..., 0].double()
    levels = torch.tensor([0.25, 0.5, 0.75], dtype=draws.dtype, device=draws.device)
    return np.asarray(draws.quantile(levels, dim=0).cpu())


def row(posterior: Posterior, fresh: Split, seed: int) -> list[Cell]:
    """Scores on fresh points, and the width between quartiles inside and outside the data."""
    scores = metrics.evaluate(posterior.predict(fresh.x, draws=DRAWS, seed=seed), fresh.y)
    low, _, high = quartiles(posterior, torch.cat([fresh.x, torch.tensor(OUTSIDE)[:, None]]), seed)
    width = high - low
    n = len(fresh.x)
    spread: list[Cell] = [float(width[:n].mean()), *map(float, width[n:])] if width.any() else [None] * 4
    return [scores["rmse"], scores["nll"], scores["coverage"], *spread]


def run(settings: Settings) -> Result:
    """Fit the three, and ask them from -0.5 to 1.4."""
    n = 100 if settings.quick else 1000
    data, fresh = toys.wiggle(n, seed=settings.seed), toys.wiggle(n, seed=settings.seed + 1)
    planned = plans(settings)
    found = {name: plan.fit(data, settings, dubito.Gaussian.learned(), PRIORS[name]) for name, plan in planned.items()}
    rows = {name: row(posterior, fresh, settings.seed) for name, posterior in found.items()}
    return Result(
        STUDY.name,
        STUDY.title,
        summary=_summary(rows),
        numbers=rows,
        tables=[_table(rows)],
        figures=[_figure(found, data, settings)],
        settings={"draws": DRAWS, "methods": {name: plan.describe() for name, plan in planned.items()}},
    )


def _table(rows: Mapping[str, list[Cell]]) -> Table:
    places = [f"at {x:g}" for x in OUTSIDE]
    columns = ("method", "RMSE", "NLL", "coverage of 90 %", "between quartiles, inside", *places)
    note = "The distance between the quartiles of the functions drawn; one network has none."
    named = [(name, *values) for name, values in rows.items()]
    return Table("On fresh points, and outside", columns, named, note, dict.fromkeys(columns[1:], ".3f"))


def _figure(found: Mapping[str, Posterior], data: Split, settings: Settings) -> Figure:
    x = torch.linspace(-0.5, 1.4, 40 if settings.quick else 300)
    truth = plots.Series("truth", toys.wiggle_truth(x).numpy(), x.numpy())
    points = plots.Series("data", data.y[::5].numpy(), data.x[::5, 0].numpy())
    pictures = {}
    for name, posterior in found.items():
        low, median, high = quartiles(posterior, x[:, None], settings.seed)
        bands = [plots.Band("between quartiles", low, high)] if (high > low).any() else []
        pictures[name] = plots.bands("band", name, x.numpy(), median, bands, points=points, truth=truth, line="median")
    return plots.panels("bands", "Medians and quartiles", pictures)


def _summary(rows: Mapping[str, list[Cell]]) -> str:
    grown = {n: float(str(v[6])) / float(str(v[3])) for n, v in rows.items() if v[3] is not None}
    words = ", ".join(f"{n} {g:.1f} times" for n, g in grown.items())
    return (
        f"From inside the data to x = {OUTSIDE[-1]:g} the distance between the quartiles grows: {words}. The plain "
        "network draws one line everywhere."
    )


STUDY = Study(
    "wunn-regression",
    "Two sines on a line: medians and quartiles",
    "Blundell, Cornebise, Kavukcuoglu and Wierstra, Weight Uncertainty in Neural Networks (ICML 2015), section 5.2, "
    "where the result is a figure without numbers.",
    "quartiles of Bayes by Backprop inside and outside the data, the plain network beside them",
    run,
)
