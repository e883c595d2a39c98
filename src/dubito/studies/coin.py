"""The coin: a posterior on a grid, in closed form, and by HMC, for a few tosses.

theta is the probability of heads, uniform a priori. After h heads and t tails the posterior is Beta(h + 1, t + 1) and
the next toss shows heads with probability (h + 1) / (h + t + 2), Laplace's rule of succession.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import dubito
from dubito import plots
from dubito.results import Figure, Result
from dubito.studies.base import Plan, Settings, Study, against_published, built

Floats = NDArray[np.float64]

GRID = np.linspace(0.05, 0.95, 19)


@dataclass(frozen=True)
class Tosses:
    """Heads and tails, and what is published about the next toss."""

    heads: int
    tails: int
    grid: float
    exact: float
    origin: str

    @property
    def label(self) -> str:
        tails = f" and {self.tails} tails" if self.tails else ""
        return f"{self.heads} heads{tails}"


CASES = (
    Tosses(3, 0, 0.7793, 0.8, "as published"),
    Tosses(11, 9, 0.5455, 12 / 22, "12/22, the rule of succession"),
    Tosses(40, 0, 0.9437, 41 / 42, "41/42, the rule of succession"),
)


@dataclass(frozen=True)
class UniformChance(dubito.Prior):
    """The logistic density on a logit, under which its sigmoid is uniform on (0, 1)."""

    def log_prob(self, value: Tensor) -> Tensor:
        return F.logsigmoid(value) + F.logsigmoid(-value)


def grid_posterior(heads: int, tails: int) -> Floats:
    """p(theta | D) at the points of the grid: likelihood times a constant, normalised to sum 1."""
    weight = GRID**heads * (1 - GRID) ** tails
    return np.asarray(weight / weight.sum())


def exact_density(theta: Floats, heads: int, tails: int) -> Floats:
    """The density of Beta(heads + 1, tails + 1)."""
    log_norm = math.lgamma(heads + tails + 2) - math.lgamma(heads + 1) - math.lgamma(tails + 1)
    return np.asarray(math.exp(log_norm) * theta**heads * (1 - theta) ** tails)


def exact_chance(heads: int, tails: int) -> float:
    """The probability of heads at the next toss."""
    return (heads + 1) / (heads + tails + 2)


def size(settings: Settings) -> tuple[int, int, int]:
    """Chains of HMC, updates of each before the first draw, and draws kept of each."""
    return (8, 30, 30) if settings.quick else (64, 100, 250)


def sampled(case: Tosses, settings: Settings) -> tuple[Floats, float]:
    """Draws of theta by HMC on its logit, the one weight of a net that sees a constant, and the error of their mean."""
    chains, burn_in, kept = size(settings)
    y = torch.tensor([1.0] * case.heads + [0.0] * case.tails)
    net = built(lambda: nn.Linear(1, 1, bias=False), settings)
    plan = Plan(dubito.HMC(leapfrog=5, burn_in=burn_in), net, burn_in + kept, chains)
    posterior = plan.fit((torch.ones(len(y), 1), y), settings, dubito.Bernoulli(), UniformChance())
    theta = posterior.predict(torch.ones(1, 1), draws=len(posterior)).draws[:, 0, 1]
    ess = float(posterior.diagnose().weights.ess_bulk[0])
    return theta.double().cpu().numpy(), float(theta.double().std()) / math.sqrt(ess)


def run(settings: Settings) -> Result:
    """Every case on the grid, in closed form and by HMC."""
    rows: list[tuple[str, float | None, float | None, str]] = []
    numbers, pictures = {}, {}
    for case in CASES:
        theta, error = sampled(case, settings)
        grid = float(grid_posterior(case.heads, case.tails) @ GRID)
        exact = exact_chance(case.heads, case.tails)
        rows += [
            (f"{case.label}: grid", case.grid, grid, "19 points, 0.05 to 0.95"),
            (f"{case.label}: exact", case.exact, exact, case.origin),
            (f"{case.label}: HMC", case.exact, float(theta.mean()), f"standard error {error:.1g}"),
        ]
        numbers[case.label] = {"grid": grid, "exact": exact, "hmc": float(theta.mean()), "hmc error": error}
        pictures[case.label] = picture(case, theta)
    return Result(
        STUDY.name,
        STUDY.title,
        summary=SUMMARY,
        numbers=numbers,
        tables=[against_published("Probability of heads at the next toss", rows)],
        figures=[plots.panels("posteriors", "What the tosses say about the coin", pictures)],
        settings={"grid": GRID, "hmc": dict(zip(("chains", "burn_in", "kept"), size(settings), strict=True))},
    )


def picture(case: Tosses, theta: Floats) -> Figure:
    """Exact density, grid and draws of one case, as a share of the largest density."""
    fine = np.linspace(0, 1, 201)
    exact = exact_density(fine, case.heads, case.tails)
    top = exact.max()
    counts, edges = np.histogram(theta, bins=25, range=(0, 1), density=True)
    series = [
        plots.Series("exact", exact / top, fine),
        plots.Series("grid", grid_posterior(case.heads, case.tails) / (GRID[1] - GRID[0]) / top, GRID, style="points"),
        plots.Series("draws of HMC", counts / top, (edges[1:] + edges[:-1]) / 2, style="points"),
    ]
    return plots.lines("posterior", case.label, series, x_label="probability of heads", y_label="density / largest")


SUMMARY = (
    "Three heads in a row do not make a coin that only shows heads: with all chances equally likely before, the next "
    "toss shows heads with probability 0.8. A grid of 19 chances comes close. Where the posterior crowds against 1, as "
    "after 40 heads, a grid that ends at 0.95 cannot follow; the closed form and HMC can."
)

STUDY = Study(
    "coin",
    "The coin",
    "Sick, Brändli and Dürr, lecture on Bayesian deep learning; Dürr, Sick and Murina, Probabilistic Deep Learning "
    "(Manning, 2020), chapter 7.",
    "a posterior by hand: grid, closed form and HMC agree about the next toss of a coin",
    run,
)
