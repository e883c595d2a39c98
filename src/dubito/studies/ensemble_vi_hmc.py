"""Two clusters and a gap: a deep ensemble, VI, MC dropout and SGLD against multi-chain HMC, under one prior for all.

The distance of a method's predictive to HMC's is the 1-Wasserstein distance between the functions drawn at x,
W = mean_u |Q(u) - Q_hmc(u)| over quantiles u, averaged over x on the data, in the gap and outside. That between two
halves of HMC's chains is what chance alone makes.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import dubito
from dubito import plots
from dubito.data import Split, toys
from dubito.nn import mlp
from dubito.posteriors.base import Posterior
from dubito.results import Cell, Figure, Result, Table
from dubito.studies.base import Plan, Settings, Study, built, mixing
from dubito.studies.pieces import ahead

Floats = NDArray[np.float64]

NOISE = 0.1
LIKELIHOOD, PRIOR = dubito.Gaussian(std=NOISE), dubito.FanIn()
REFERENCE = "HMC"
DRAWS = 2000  # as many as HMC keeps
REGIONS = {"on the data": (1.0, 2.0), "in the gap": (0.0, 1.0), "outside": (2.0, 4.0)}  # by |x|
LEVELS = np.linspace(0.005, 0.995, 100)


def plans(n: int, settings: Settings) -> dict[str, Plan]:
    """Every method on the same network."""
    quick = settings.quick
    net = built(lambda: mlp([1, 8, 1] if quick else [1, 50, 50, 1], activation="tanh"), settings)
    rates = {"learning_rate": 1e-2, "schedule": "cosine"}
    steps, kept = (30, 6) if quick else (10_000, 250)
    burn_in, leapfrog = (10, 3) if quick else (500, 100)
    chains = 2 if quick else 8
    sgld_steps, sgld_burn, thin = (40, 20, 2) if quick else (200_000, 50_000, 600)
    return {
        REFERENCE: Plan(dubito.HMC(leapfrog=leapfrog, burn_in=burn_in), net, burn_in + kept, chains),
        "Deep ensemble": Plan(dubito.DeepEnsemble(**rates), net, steps, 3 if quick else 50, n),  # type: ignore[arg-type]
        "VI": Plan(dubito.Variational(**rates, draws=4), net, 2 * steps, None, n),  # type: ignore[arg-type]
        "MC dropout": Plan(dubito.MCDropout(rate=0.05, **rates), net, steps, None, n),  # type: ignore[arg-type]
        "SGLD": Plan(dubito.SGLD(step_size=1e-5, burn_in=sgld_burn, thin=thin), net, sgld_steps, 2 if quick else 4, n),
    }


def clusters(settings: Settings) -> Split:
    """Two clusters and a gap."""
    return toys.clusters(20 if settings.quick else 60, NOISE, settings.seed)


def posterior(name: str, settings: Settings) -> Posterior:
    """One method; kept."""
    data = clusters(settings)
    return plans(len(data.x), settings)[name].fit(data, settings, LIKELIHOOD, PRIOR, folder=settings.folder(name))


def functions(posterior: Posterior, x: Tensor, seed: int) -> Floats:
    """The functions drawn, (draws, N)."""
    return np.asarray(posterior.predict(x, draws=DRAWS, seed=seed, keep_draws=True).draws[..., 0].double().cpu())


def distance(first: Floats, second: Floats) -> Floats:
    """The 1-Wasserstein distance at every x, by quantiles."""
    gap = np.quantile(first, LEVELS, axis=0) - np.quantile(second, LEVELS, axis=0)
    return np.asarray(np.abs(gap).mean(0))


def run(settings: Settings) -> Result:
    """Fit all, and measure how far each predictive lies from HMC's."""
    data = clusters(settings)
    planned = plans(len(data.x), settings)
    ahead(posterior, {name: (name,) for name in planned}, settings)
    found = {name: posterior(name, settings) for name in planned}
    x = torch.linspace(-4, 4, 41 if settings.quick else 321)
    drawn = {name: functions(posterior, x[:, None], settings.seed) for name, posterior in found.items()}
    rows = _rows(drawn, x.numpy(), planned[REFERENCE].members or 1)
    rhat = {name: mixing(found[name], data.x[:20]) for name in (REFERENCE, "SGLD")}
    return Result(
        STUDY.name,
        STUDY.title,
        summary=_summary(rows),
        numbers={"rows": rows, "R-hat": rhat},
        tables=[_table(rows, rhat)],
        figures=[_bands(drawn, x, data), _widths(drawn, x)],
        settings={
            "prior": "FanIn", "noise": NOISE, "draws": DRAWS,
            "methods": {name: plan.describe() for name, plan in planned.items()},
        },
    )  # fmt: skip


def _rows(drawn: Mapping[str, Floats], x: Floats, chains: int) -> dict[str, list[float]]:
    """For every method distance and width of its band over HMC's, region by region."""
    reference = drawn[REFERENCE]
    inside = [(np.abs(x) >= low) & (np.abs(x) <= high) for low, high in REGIONS.values()]
    by_chain = np.arange(len(reference)) % chains
    halves = [reference[by_chain < chains / 2], reference[by_chain >= chains / 2]]
    rows = {}
    for name, functions in drawn.items():
        apart = distance(*halves) if name == REFERENCE else distance(functions, reference)
        wide = functions.std(0) / reference.std(0)
        rows[name] = [float(apart[at].mean()) for at in inside] + [float(wide[at].mean()) for at in inside]
    return rows


def _table(rows: Mapping[str, list[float]], rhat: Mapping[str, float]) -> Table:
    columns = ("method", *(f"distance {r}" for r in REGIONS), *(f"width {r}" for r in REGIONS), "R-hat")
    cells: list[tuple[Cell, ...]] = [(name, *values, rhat.get(name)) for name, values in rows.items()]
    note = (
        "Distance: 1-Wasserstein to HMC's functions, for HMC between two halves of its chains. Width: standard "
        "deviation of the functions over HMC's. R-hat of predictions, median over inputs."
    )
    formats = {**dict.fromkeys(columns[1:], ".3f"), "R-hat": ".2f"}
    return Table("How far each predictive lies from HMC's", columns, cells, note, formats)


def _bands(drawn: Mapping[str, Floats], x: Tensor, data: Split) -> Figure:
    points = plots.Series("data", data.y.numpy(), data.x[:, 0].numpy())
    truth = plots.Series("truth", (0.3 * x + (4 * x).sin() / 2).numpy(), x.numpy())
    pictures = {}
    for name, functions in drawn.items():
        bands = [
            plots.Band(f"{level:.0%} of functions", *np.quantile(functions, [0.5 - level / 2, 0.5 + level / 2], axis=0))
            for level in (0.9, 0.5)
        ]
        mean = functions.mean(0)
        pictures[name] = plots.bands("band", name, x.numpy(), mean, bands, points=points, truth=truth)
    return plots.panels("bands", "Functions drawn by every method, one prior for all", pictures)


def _widths(drawn: Mapping[str, Floats], x: Tensor) -> Figure:
    series = [plots.Series(name, functions.std(0), x.numpy()) for name, functions in drawn.items()]
    title = "Standard deviation between functions"
    return plots.lines("width", title, series, x_label="x", y_label="standard deviation", log_y=True)


def _summary(rows: Mapping[str, list[float]]) -> str:
    others = {name: values for name, values in rows.items() if name != REFERENCE}
    gap = list(REGIONS).index("in the gap")
    order = sorted(others, key=lambda name: others[name][gap])
    words = ", ".join(f"{n} {others[n][gap]:.3f} ({others[n][gap + len(REGIONS)]:.2f} of HMC's width)" for n in order)
    return (
        f"In the gap, from nearest to HMC to furthest: {words}; two halves of HMC's chains {rows[REFERENCE][gap]:.3f}."
    )


STUDY = Study(
    "ensemble-vi-hmc",
    "Ensemble, VI, dropout and SGLD against HMC",
    "after Wilson and Izmailov, Bayesian Deep Learning and a Probabilistic Perspective of Generalization (NeurIPS "
    "2020), where every method has a prior of its own and the result is a figure.",
    "bands over a gap in the data, and how far each predictive lies from that of multi-chain HMC",
    run,
)
