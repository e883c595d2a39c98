"""Four points and a straight line: every method against a posterior known in closed form.

y = a x + b + N(0, 3^2) with a, b ~ N(0, 1) makes the posterior normal:
covariance C = (X'X / 9 + I)^-1, mean C X'y / 9.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import dubito
from dubito import plots
from dubito.data import toys
from dubito.posteriors.gaussian import GaussianPosterior
from dubito.results import Figure, Result, Table
from dubito.studies.base import Plan, Settings, Study, against_published, built

Floats = NDArray[np.float64]

NOISE = 3.0
STEP = 0.04  # of SGLD
SLOPES, INTERCEPTS = np.linspace(-3, 8, 30), np.linspace(-10, 8, 30)
RANGE = np.linspace(-6, 6, 121)  # where predictions are drawn
PUBLISHED_VI = {
    "VI by hand (published)": (1.447, -0.531, 0.499, 0.693),
    "VI by TFP (published)": (1.469, -0.533, 0.474, 0.652),
}


@dataclass(frozen=True, eq=False)
class Line:
    """Mean and covariance of (a, b), and effective draws where it was sampled."""

    mean: Floats
    cov: Floats
    ess: float | None = None

    @property
    def row(self) -> tuple[float | None, ...]:
        spread = (None, None, None) if not self.cov.any() else (self.cov[0, 0], self.cov[1, 1], self.cov[0, 1])
        return (*self.mean, *spread, self.ess)


def points() -> tuple[Floats, Floats]:
    """The design matrix with columns x and 1, and y."""
    x, y = (t.double().numpy() for t in toys.line())
    return np.hstack([x, np.ones_like(x)]), y


def closed_form() -> Line:
    """The posterior."""
    design, y = points()
    cov = np.asarray(np.linalg.inv(design.T @ design / NOISE**2 + np.eye(2)), np.float64)
    return Line(cov @ design.T @ y / NOISE**2, cov)


def discretised(exact: Line, step: float) -> Line:
    """What SGLD with all data at every step converges to: theta' = theta - step / (2 v) (theta - mean) + N(0, step).

    In every direction in which the posterior has variance v, the chain has v / (1 - step / (4 v)).
    """
    values, directions = np.linalg.eigh(exact.cov)
    return Line(exact.mean, np.asarray(directions * (values / (1 - step / (4 * values))) @ directions.T, np.float64))


def least_squares() -> Floats:
    """The maximum-likelihood line (a, b)."""
    return np.asarray(np.linalg.lstsq(*points(), rcond=None)[0])


def grid_likelihood() -> Floats:
    """Likelihood at every (a, b) of the grid, normalised to sum 1."""
    design, y = points()
    fits = SLOPES[:, None, None] * design[:, 0] + INTERCEPTS[:, None] * design[:, 1]
    weight = np.exp(-0.5 * ((y - fits) / NOISE) ** 2).prod(-1)
    return np.asarray(weight / weight.sum())


def on_grid(weights: Floats, line: Floats) -> float:
    """The weight of the grid point closest to a line."""
    near = np.abs(SLOPES - line[0]).argmin(), np.abs(INTERCEPTS - line[1]).argmin()
    return float(weights[near])


def grid_posterior() -> Line:
    """Posterior moments on the grid: likelihood times the prior density, normalised."""
    prior = np.exp(-0.5 * (SLOPES[:, None] ** 2 + INTERCEPTS**2))
    weights = grid_likelihood() * prior
    weights /= weights.sum()
    lines = np.stack(np.meshgrid(SLOPES, INTERCEPTS, indexing="ij"), -1).reshape(-1, 2)
    return Line(weights.ravel() @ lines, np.cov(lines.T, aweights=weights.ravel(), ddof=0))


def plans(settings: Settings) -> dict[str, Plan]:
    """The methods compared with the closed form, on nn.Linear(1, 1): its weight is a, its bias b."""
    chains, kept = (4, 20) if settings.quick else (32, 400)
    net = built(lambda: nn.Linear(1, 1), settings)
    vi = dubito.Variational(learning_rate=0.03, schedule="cosine", draws=10, init_std=0.5)
    return {
        "MAP": Plan(dubito.MAP(learning_rate=0.1, schedule="cosine"), net, 300),
        "HMC": Plan(dubito.HMC(burn_in=100, leapfrog=6), net, 100 + kept, chains),
        "SGLD": Plan(dubito.SGLD(step_size=STEP, burn_in=200, thin=10), net, 200 + 10 * kept, chains),
        "VI": Plan(vi, net, 300 if settings.quick else 2000),
    }


def moments(posterior: dubito.Posterior) -> Line:
    """Mean and covariance: of a Gaussian its own, otherwise those of the draws."""
    if isinstance(posterior, GaussianPosterior):
        mean, std = (t.double().cpu().numpy() for t in posterior.moments())
        return Line(mean, np.diag(std**2))
    named = posterior.sample(len(posterior))
    draws = torch.stack([named["weight"].flatten(), named["bias"].flatten()]).double().cpu().numpy()
    if draws.shape[1] == 1:
        return Line(draws[:, 0], np.zeros((2, 2)))
    return Line(draws.mean(1), np.cov(draws), float(posterior.diagnose().weights.ess_bulk.min()))


def run(settings: Settings) -> Result:
    """Closed form, grid and methods side by side."""
    chosen = plans(settings)
    model = (dubito.Gaussian(std=NOISE), dubito.Normal(std=1.0))
    posteriors = {name: plan.fit(toys.line(), settings, *model) for name, plan in chosen.items()}
    lines = {"exact": closed_form(), "grid, 30 x 30": grid_posterior()}
    lines |= {name: moments(posterior) for name, posterior in posteriors.items()}
    lines["SGLD, as its step size implies"] = discretised(lines["exact"], STEP)
    return Result(
        STUDY.name,
        STUDY.title,
        summary=SUMMARY,
        numbers={name: {"mean": line.mean, "cov": line.cov} for name, line in lines.items()},
        tables=[known(lines["exact"]), compared(lines)],
        figures=[bands(posteriors, lines["exact"])],
        settings={
            "noise std": NOISE,
            "prior std": 1.0,
            "methods": {name: plan.describe() for name, plan in chosen.items()},
        },
    )


def known(exact: Line) -> Table:
    """What is published and has one right answer."""
    best = least_squares()
    weights = grid_likelihood()
    (a, b), cov = exact.mean, exact.cov
    rows = [
        ("maximum likelihood: a", 2.9205, best[0], ""),
        ("maximum likelihood: b", -1.7267, best[1], ""),
        ("likelihood on the grid at the maximum", 0.02433, on_grid(weights, best), "at the nearest grid point"),
        (
            "likelihood on the grid at (a / 1.8, b)",
            0.00975,
            on_grid(weights, best / (1.8, 1)),
            "at the nearest grid point",
        ),
        ("posterior mean of a", 1.4512, a, "closed form"),
        ("posterior mean of b", -0.5313, b, "closed form"),
        ("posterior variance of a", 0.5031, cov[0, 0], "closed form"),
        ("posterior variance of b", 0.6923, cov[1, 1], "closed form"),
        ("posterior covariance", 0.0, cov[0, 1], "closed form"),
    ]
    return against_published("Where the answer is exact", rows)


def compared(lines: dict[str, Line]) -> Table:
    """Posterior moments by method."""
    rows = [(name, *line.row) for name, line in lines.items()]
    rows += [(name, *values, None, None) for name, values in PUBLISHED_VI.items()]
    columns = ("posterior", "mean a", "mean b", "var a", "var b", "cov", "effective draws")
    formats = dict.fromkeys(columns[1:6], ".4f") | {"effective draws": ",.0f"}
    return Table("Every method against the closed form", columns, rows, formats=formats)


def bands(posteriors: dict[str, dubito.Posterior], exact: Line) -> Figure:
    """Where a new y is expected, 90 %, by method."""
    design = np.stack([RANGE, np.ones_like(RANGE)], 1)
    mean, std = design @ exact.mean, np.sqrt(NOISE**2 + ((design @ exact.cov) * design).sum(1))
    pictures = {"Exact": band(mean, mean - 1.6449 * std, mean + 1.6449 * std)}
    inputs = torch.tensor(RANGE, dtype=torch.float32)[:, None]
    for name, posterior in posteriors.items():
        prediction = posterior.predict(inputs, draws=500)
        pictures[name] = band(prediction.mean, *prediction.interval(0.9))
    return plots.panels("bands", "Where the next y is expected, after four points", pictures)


def band(mean: Floats | Tensor, low: Floats | Tensor, high: Floats | Tensor) -> Figure:
    """Mean and 90 % interval of y over the range, and the four points."""
    mean, low, high = (np.asarray(torch.as_tensor(v).cpu()).ravel() for v in (mean, low, high))
    x, y = toys.line()
    data = plots.Series("data", y.numpy(), x[:, 0].numpy())
    return plots.bands("band", "", RANGE, mean, [plots.Band("90 % of y", low, high)], points=data)


SUMMARY = (
    "Four points say little about a line, and the prior draws the slope from where the likelihood is largest halfway "
    "to 0. HMC, SGLD and VI recover mean, variances and independence of the closed form: SGLD with the slightly larger "
    "variances that steps of finite size imply, VI because here the posterior is a Gaussian without correlations. MAP "
    "finds the mean, and its band has no share for the doubt about the line."
)

STUDY = Study(
    "linear-regression",
    "Four points and a straight line",
    "Sick, Brändli and Dürr, lecture on Bayesian deep learning; Dürr, Sick and Murina, Probabilistic Deep Learning "
    "(Manning, 2020), chapters 7 and 8.",
    "grid, MAP, HMC, SGLD and VI against a posterior known in closed form",
    run,
)
