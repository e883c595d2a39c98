"""Sine regression: do error bars grow where the data end?

2,048 points of a sine over three periods with noise that follows its size, and 60 flat points on each side; a network
gives mean and standard deviation of y, and is asked far outside what it has seen.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import dubito
from dubito import metrics, plots
from dubito.data import Split, toys
from dubito.nn import mlp
from dubito.prediction import Prediction, Undefined
from dubito.results import Cell, Figure, Result, Table
from dubito.studies.base import Plan, Settings, Study, built

Floats = NDArray[np.float64]

UNIT = math.pi  # inputs are divided by this
EDGE = 4 * math.pi  # the last training point
FLOOR = 0.1  # of the noise: without noise in the flat parts the likelihood has no bound
SMALL, LARGE = [1, 20, 50, 20, 2], [1, 200, 500, 500, 500, 200, 2]
DRAWS = 100
DISTANCES = (math.pi, 2 * math.pi, 4 * math.pi)  # beyond the edge


def train(settings: Settings) -> Split:
    """The training points, inputs in units of half a period."""
    sizes = (160, 10) if settings.quick else (2048, 60)
    x, y = toys.sine(*sizes, seed=settings.seed, min_std=FLOOR)
    return Split(x / UNIT, y)


def posteriors(data: Split, settings: Settings) -> tuple[dict[str, dubito.Posterior], dict[str, Any]]:
    """Every method's posterior, and its settings; the sampler starts where MAP ended."""
    plans = _descents(settings)
    model = (dubito.Gaussian.heteroscedastic(), dubito.Normal(std=1.0))
    found = {name: plan.fit(data, settings, *model) for name, plan in plans.items()}
    plans["SGHMC"] = _sampler(found["MAP"].mean_network(), len(data.x), settings)
    found["SGHMC"] = plans["SGHMC"].fit(data, settings, *model)
    return found, {name: plan.describe() for name, plan in plans.items()}


def _descents(settings: Settings) -> dict[str, Plan]:
    """One network, five, one with dropout, and a Gaussian over its weights."""
    quick = settings.quick
    steps, wide_steps, long_steps = (40, 10, 10) if quick else (6000, 2500, 12_000)
    rates: dict[str, Any] = {"learning_rate": 3e-3, "schedule": "cosine"}
    small = built(lambda: mlp(SMALL), settings)
    large = built(lambda: mlp([1, 20, 20, 2] if quick else LARGE, dropout=0.1), settings)
    dropout = dubito.MCDropout(learning_rate=1e-3, schedule="cosine")
    return {
        "MAP": Plan(dubito.MAP(**rates), small, steps, batch_size=128),
        "Deep ensemble": Plan(dubito.DeepEnsemble(**rates), small, steps, 2 if quick else 5, 128),
        "MC dropout": Plan(dropout, large, wide_steps, batch_size=128),
        "VI": Plan(dubito.Variational(estimator="flipout", **rates), small, long_steps, batch_size=128),
    }


def _sampler(start: nn.Module, n: int, settings: Settings) -> Plan:
    """Every step uses all rows: with 128 of them the noise of the gradient would outweigh that of the sampler."""
    burn_in, thin, steps = (20, 2, 60) if settings.quick else (4000, 80, 20_000)
    method = dubito.SGHMC(step_size=5e-7, friction=0.02, burn_in=burn_in, thin=thin)
    return Plan(method, start, steps, batch_size=n)


def epistemic(prediction: Prediction) -> Floats | None:
    """Standard deviation between draws of the mean, None for one network."""
    try:
        return np.asarray(prediction.epistemic.double().sqrt().cpu())[:, 0]
    except Undefined:
        return None


def row(posterior: dubito.Posterior, fresh: Split, seed: int) -> list[Cell]:
    """Scores inside the data on fresh points, and the doubt about the mean inside and beyond the edge."""
    scores = metrics.evaluate(posterior.predict(fresh.x, draws=DRAWS, seed=seed), fresh.y)
    inside = epistemic(posterior.predict(fresh.x, draws=DRAWS, seed=seed))
    beyond = epistemic(posterior.predict(_beyond(), draws=DRAWS, seed=seed))
    doubt: list[Cell] = [None] * (1 + len(DISTANCES))
    if inside is not None and beyond is not None:
        doubt = [float(inside.mean()), *beyond.reshape(2, -1).mean(0)]
    return [scores["rmse"], scores["nll"], scores["coverage"], *doubt]


def _beyond() -> Tensor:
    """Inputs at the distances from the edge, left ones first."""
    right = torch.tensor([EDGE + d for d in DISTANCES]) / UNIT
    return torch.cat([-right, right])[:, None]


def run(settings: Settings) -> Result:
    """Fit every method, and ask it inside and outside the data."""
    data, fresh = train(settings), train(Settings(settings.quick, seed=settings.seed + 1))
    found, described = posteriors(data, settings)
    rows = {name: row(posterior, fresh, settings.seed) for name, posterior in found.items()}
    x = torch.linspace(-8 * math.pi, 8 * math.pi, 41 if settings.quick else 321)
    predictions = {name: p.predict(x[:, None] / UNIT, draws=DRAWS, seed=settings.seed) for name, p in found.items()}
    return Result(
        STUDY.name,
        STUDY.title,
        summary=SUMMARY,
        numbers=rows,
        tables=[_table(rows)],
        figures=[_bands(predictions, x, data), _doubt(predictions, x)],
        settings={"noise floor": FLOOR, "input unit": UNIT, "prior std": 1.0, "draws": DRAWS, "methods": described},
    )


def _table(rows: Mapping[str, list[Cell]]) -> Table:
    places = [f"{round(d / math.pi)} half periods out" for d in DISTANCES]
    columns = ("method", "RMSE", "NLL", "coverage of 90 %", "epistemic std inside", *places)
    return Table(
        "On fresh points inside the data, and beyond their edge",
        columns,
        [(name, *values) for name, values in rows.items()],
        note="The epistemic standard deviation is that of the predicted mean between draws; one network has none.",
        formats=dict.fromkeys(columns[1:], ".3f"),
    )


def _bands(predictions: Mapping[str, Prediction], x: Tensor, data: Split) -> Figure:
    """Mean, 50 % and 90 % of y for every method."""
    truth = plots.Series("truth", toys.sine_truth(x)[0].numpy(), x.numpy())
    every = max(1, len(data.x) // 400)
    points = plots.Series("data", data.y[::every].numpy(), data.x[::every, 0].numpy() * UNIT)
    pictures = {}
    for name, prediction in predictions.items():
        bands = []
        for level in (0.9, 0.5):
            low, high = (np.asarray(end.cpu())[:, 0] for end in prediction.interval(level))
            bands.append(plots.Band(f"{level:.0%} of y", low, high))
        mean = np.asarray(prediction.mean.cpu())[:, 0]
        pictures[name] = plots.bands("band", name, x.numpy(), mean, bands, points=points, truth=truth)
    return plots.panels("bands", "Sine regression, asked beyond the data", pictures)


def _doubt(predictions: Mapping[str, Prediction], x: Tensor) -> Figure:
    """The epistemic standard deviation of every method along x."""
    series = [
        plots.Series(name, values, x.numpy())
        for name, prediction in predictions.items()
        if (values := epistemic(prediction)) is not None
    ]
    title = "Doubt about the mean: small on the data, growing outside"
    return plots.lines("doubt", title, series, x_label="x", y_label="epistemic std", log_y=True)


SUMMARY = ""

STUDY = Study(
    "sine-regression",
    "Sine regression and extrapolation",
    "Dürr, Sick and Murina, Probabilistic Deep Learning (Manning, 2020), chapter 8, where the results are "
    "figures without numbers.",
    "error bars of an ensemble, dropout and SGHMC inside the data and beyond their edge",
    run,
)
