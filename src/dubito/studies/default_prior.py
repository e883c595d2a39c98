"""Which prior should be the default? Validation log-likelihood of HMC posteriors under priors of many scales.

Two families: N(0, gain^2 / fan-in) over weight matrices with N(0, 1) over biases, and one N(0, std^2) over everything.
The networks differ in width and depth, so that a scale that suits one of them only is found out.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

import dubito
from dubito import metrics, plots
from dubito.data import Split, toys
from dubito.nn import mlp
from dubito.priors import FanIn, Normal
from dubito.progress import track
from dubito.results import Cell, Figure, Result, Table
from dubito.studies.base import Plan, Settings, Study, built, gather, mixing

GAINS = (0.5, 1.0, math.sqrt(2), 2.0, 2 * math.sqrt(2), 4.0, 8.0)
STDS = (0.1, 0.3, 1.0, 3.0)
HIDDEN = {"1 x 16": [16], "1 x 128": [128], "3 x 16": [16] * 3, "3 x 128": [128] * 3}
ALL = 10_000  # draws, more than are kept


@dataclass(frozen=True, eq=False)
class Problem:
    """Training and validation rows, inputs from elsewhere, and the ends of the network."""

    train: Split
    validation: Split
    elsewhere: Tensor
    ends: tuple[int, int]
    likelihood: dubito.Likelihood


def problems(settings: Settings) -> dict[str, Problem]:
    """Images of digits, and one-dimensional regression with a gap."""
    return {"digits": _digits(settings), "clusters": _clusters(settings)}


def _digits(settings: Settings) -> Problem:
    """300 of the training images, the others for validation; the test images are left alone."""
    x, y = gather(["digits"]).sets["digits"].part("train")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(settings.seed))
    n, held = (60, 100) if settings.quick else (300, len(x))
    known, unseen = (Split(x[rows].flatten(1), y[rows]) for rows in (order[:n], order[n : n + held]))
    return Problem(known, unseen, toys.not_digits(seed=settings.seed).x.flatten(1), (64, 10), dubito.Categorical())


def _clusters(settings: Settings) -> Problem:
    n, held = (20, 50) if settings.quick else (60, 1000)
    parts = (toys.clusters(n, seed=settings.seed), toys.clusters(held, seed=settings.seed + 1))
    return Problem(*parts, torch.linspace(-0.8, 0.8, 50)[:, None], (1, 1), dubito.Gaussian(std=0.1))


def candidates(settings: Settings) -> dict[str, FanIn | Normal]:
    """The priors by name."""
    gains, stds = (GAINS[1:2], STDS[1:2]) if settings.quick else (GAINS, STDS)
    scaled = {_named(FanIn(gain)): FanIn(gain) for gain in sorted({*gains, FanIn().gain})}
    return {**scaled, **{f"normal, std {std:g}": Normal(std=std) for std in stds}}


def _named(prior: FanIn) -> str:
    return f"fan-in, gain {prior.gain:.3g}"


@dataclass(frozen=True)
class Outcome:
    """Of one posterior: validation nats per datum, how well its doubt tells inputs from elsewhere, and mixing."""

    nll: float
    detection: float
    rhat: float


def outcome(problem: Problem, hidden: list[int], prior: FanIn | Normal, settings: Settings) -> Outcome:
    """Sample the posterior under one prior by HMC and score it on the validation rows."""
    posterior = plan(problem, hidden, settings).fit(problem.train, settings, problem.likelihood, prior)
    known, other = (posterior.predict(x, draws=ALL) for x in (problem.validation.x, problem.elsewhere))
    doubts = [p.bald if p.kind == "classification" else p.epistemic[:, 0] for p in (known, other)]
    nll = -float(known.log_prob(problem.validation.y).double().mean())
    return Outcome(nll, metrics.auroc(*doubts), mixing(posterior, problem.validation.x[:20]))


def plan(problem: Problem, hidden: list[int], settings: Settings) -> Plan:
    """HMC on a ReLU network."""
    leapfrog, burn_in, kept = (3, 4, 4) if settings.quick else (20, 70, 50)
    net = built(lambda: mlp([problem.ends[0], *hidden, problem.ends[1]]), settings)
    return Plan(dubito.HMC(leapfrog=leapfrog, burn_in=burn_in), net, burn_in + kept, 2)


Grid = dict[str, dict[str, Outcome]]  # prior, network


def run(settings: Settings) -> Result:
    """Every prior on every network of every problem."""
    silent = replace(settings, progress=False)
    posed = problems(settings)
    nets = {"1 x 16": HIDDEN["1 x 16"]} if settings.quick else HIDDEN
    tried = candidates(settings)
    jobs = [(problem, prior, net) for problem in posed for prior in tried for net in nets]
    grids: dict[str, Grid] = {problem: {prior: {} for prior in tried} for problem in posed}
    for problem, prior, net in track(jobs, len(jobs), "posteriors", settings.progress):
        grids[problem][prior][net] = outcome(posed[problem], nets[net], tried[prior], silent)
    return Result(
        STUDY.name,
        STUDY.title,
        summary=_summary(grids),
        numbers={
            name: {p: {n: asdict(o) for n, o in row.items()} for p, row in grid.items()} for name, grid in grids.items()
        },
        tables=[_ranking(grids), *(_table(name, grid) for name, grid in grids.items())],
        figures=[_figure(grids)],
        settings={
            "networks": nets,
            "training rows": {name: len(p.train.x) for name, p in posed.items()},
            "hmc": plan(posed["digits"], [1], settings).describe(),
        },
    )


def losses(grid: Grid) -> dict[str, list[float]]:
    """For every prior and network, the nats per datum lost against the best prior for that network."""
    best = {net: min(row[net].nll for row in grid.values()) for net in next(iter(grid.values()))}
    return {prior: [row[net].nll - best[net] for net in best] for prior, row in grid.items()}


def ranking(grids: Mapping[str, Grid]) -> dict[str, tuple[float, float]]:
    """For every prior its mean and its largest loss over all problems and networks."""
    found = [losses(grid) for grid in grids.values()]
    every = {prior: [value for one in found for value in one[prior]] for prior in found[0]}
    return {prior: (float(np.mean(values)), float(np.max(values))) for prior, values in every.items()}


def _summary(grids: Mapping[str, Grid]) -> str:
    """Which priors lose least, and whether the default is the best of its kind."""
    ranked = ranking(grids)
    default = _named(FanIn())
    best, rival = (
        min((p for p in ranked if p.startswith(f)), key=lambda p: ranked[p][0]) for f in ("fan-in", "normal")
    )
    verdict = "This is the default." if best == default else f"The default, {default}, loses {_lost(ranked[default])}."
    return (
        f"Of the priors that scale with fan-in, {best} loses least: {_lost(ranked[best])}, against the best prior for "
        f"each network. {verdict} Of the fixed scales {rival} loses least: {_lost(ranked[rival])}."
    )


def _lost(loss: tuple[float, float]) -> str:
    return f"{loss[0]:.2f} nats per datum on average and {loss[1]:.2f} at worst"


def _ranking(grids: Mapping[str, Grid]) -> Table:
    per_problem = {name: losses(grid) for name, grid in grids.items()}
    rows: list[tuple[Cell, ...]] = [
        (prior, *(float(np.mean(loss[prior])) for loss in per_problem.values()), mean, worst)
        for prior, (mean, worst) in ranking(grids).items()
    ]
    columns = ("prior", *grids, "mean", "worst")
    return Table(
        "Nats per validation datum lost against the best prior for each network",
        columns,
        rows,
        formats=dict.fromkeys(columns[1:], ".3f"),
    )


def _table(name: str, grid: Grid) -> Table:
    nets = list(next(iter(grid.values())))
    rows: list[tuple[Cell, ...]] = [
        (
            prior,
            *(row[n].nll for n in nets),
            float(np.mean([row[n].detection for n in nets])),
            max(row[n].rhat for n in nets),
        )
        for prior, row in grid.items()
    ]
    columns = ("prior", *nets, "AUROC elsewhere", "R-hat")
    return Table(
        f"{name}: validation nats per datum by hidden layers x width",
        columns,
        rows,
        note="AUROC: how well BALD (digits against images that are none) or the epistemic variance (clusters against "
        "the gap) tells inputs from elsewhere, mean over networks. R-hat: of predictions, median over inputs, worst "
        "network.",
        formats=dict.fromkeys(nets, ".3f") | {"AUROC elsewhere": ".3f", "R-hat": ".2f"},
    )


def _figure(grids: Mapping[str, Grid]) -> Figure:
    """Loss against the scale, for each family and problem."""
    pictures = {}
    for name, grid in grids.items():
        lost = losses(grid)
        for family in ("fan-in", "normal"):
            scales = [float(prior.split()[-1]) for prior in lost if prior.startswith(family)]
            table = np.array([values for prior, values in lost.items() if prior.startswith(family)])
            series = [plots.Series(net, table[:, i], scales) for i, net in enumerate(next(iter(grid.values())))]
            words = "N(0, gain²/fan-in)" if family == "fan-in" else "N(0, std²)"
            pictures[f"{name}, {words}"] = plots.lines(
                "loss", "", series, x_label="gain or standard deviation", y_label="nats lost per datum", log_x=True
            )
    return plots.panels(
        "loss", "Validation nats lost to the best prior of each network (hidden layers x width)", pictures
    )


STUDY = Study(
    "default-prior",
    "The default prior",
    "our own measurement; priors that scale with fan-in are from Neal, Bayesian Learning for Neural Networks (1996).",
    "which scale of the prior predicts best, over widths and depths: the reason for the default",
    run,
)
