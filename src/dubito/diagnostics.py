"""Did the chains mix? R-hat and effective sample size of weights and of predictions, as numbers, table and plot.

R-hat is the rank-normalised split version, ESS comes for the bulk and for the tails, and the limits are those of
Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), "Rank-normalization, folding, and localization: an improved
R-hat for assessing convergence of MCMC", Bayesian Analysis 16(2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

RHAT_LIMIT = 1.01
ESS_PER_CHAIN = 100
_TAILS = (0.05, 0.95)
_CHUNK = 1 << 21


class Coordinate(NamedTuple):
    """One quantity and its diagnostics."""

    name: str
    rhat: float
    ess_bulk: float
    ess_tail: float


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """R-hat and effective sample sizes of K quantities; NaN for those that never moved."""

    rhat: Floats
    ess_bulk: Floats
    ess_tail: Floats
    names: tuple[str, ...]
    n_chains: int
    n_draws: int

    @property
    def constant(self) -> tuple[str, ...]:
        """Names of the quantities that had one value in all draws of all chains."""
        return tuple(self.names[i] for i in np.flatnonzero(np.isnan(self.rhat)))

    @property
    def ok(self) -> bool:
        """R-hat at most 1.01 and both ESS at least 100 per chain wherever anything moved, and something did."""
        moved = ~np.isnan(self.rhat)
        least = ESS_PER_CHAIN * self.n_chains
        good = (self.rhat <= RHAT_LIMIT) & (self.ess_bulk >= least) & (self.ess_tail >= least)
        return bool(moved.any() and good[moved].all())

    def worst(self, n: int = 5) -> tuple[Coordinate, ...]:
        """The n quantities of largest R-hat, then of smallest bulk ESS; constant ones left out."""
        order = [i for i in np.lexsort((self.ess_bulk, -self.rhat)) if not np.isnan(self.rhat[i])]
        columns = (self.rhat, self.ess_bulk, self.ess_tail)
        return tuple(Coordinate(self.names[i], *(float(column[i]) for column in columns)) for i in order[:n])

    def table(self) -> list[dict[str, str | float | None]]:
        """Rows of measure, min, median, max and limit; None where nothing moved."""
        least = float(ESS_PER_CHAIN * self.n_chains)
        rows = (
            ("R-hat", self.rhat, RHAT_LIMIT),
            ("bulk ESS", self.ess_bulk, least),
            ("tail ESS", self.ess_tail, least),
        )
        return [{"measure": name, **_spread(values), "limit": limit} for name, values, limit in rows]

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Histograms of R-hat and of both ESS with their limits; written to `path` if there is one."""
        return _figure({"": self}, path)

    def __str__(self) -> str:
        k, still = len(self.names), len(self.constant)
        head = f"{k} quantities, {self.n_chains} chain{'s'[: self.n_chains > 1]} of {self.n_draws} draws"
        lines = [f"{head}: {'ok' if self.ok else 'not converged'}" + (f" ({still} constant)" if still else "")]
        lines.append(f"{'':10}{'min':>10}{'median':>10}{'max':>10}{'limit':>10}")
        for row in self.table():
            cells = "".join(f"{_cell(row[key]):>10}" for key in ("min", "median", "max", "limit"))
            lines.append(f"{row['measure']:10}{cells}")
        lines += [
            f"  {one.name}: R-hat {_cell(one.rhat)}, bulk ESS {_cell(one.ess_bulk)}, tail ESS {_cell(one.ess_tail)}"
            for one in self.worst(3)
        ]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """Diagnoses of the weights and, where inputs were given, of the predictions on them."""

    weights: Diagnosis
    predictions: Diagnosis | None = None

    @property
    def parts(self) -> dict[str, Diagnosis]:
        """The diagnoses there are, by name."""
        named = {"weights": self.weights, "predictions": self.predictions}
        return {name: part for name, part in named.items() if part is not None}

    @property
    def ok(self) -> bool:
        """Whether every part is."""
        return all(part.ok for part in self.parts.values())

    def table(self) -> list[dict[str, str | float | None]]:
        """The rows of every part, with a column `of` that names it."""
        return [{"of": name, **row} for name, part in self.parts.items() for row in part.table()]

    def plot(self, path: str | Path | None = None) -> "Figure":
        """One row of histograms per part; written to `path` if there is one."""
        return _figure(self.parts, path)

    def __str__(self) -> str:
        return "\n\n".join(f"{name}: {part}" for name, part in self.parts.items())


def choose(n_coordinates: int, limit: int = 1000) -> NDArray[np.int64]:
    """At most `limit` indices spread evenly over range(n_coordinates), first and last among them; always the same."""
    if n_coordinates < 1 or limit < 1:
        raise ValueError(f"Cannot choose {limit} of {n_coordinates} coordinates; both must be 1 or more.")
    size = min(n_coordinates, limit)
    return np.linspace(0, n_coordinates - 1, size).round().astype(np.int64)


def summarise(values: Tensor | NDArray[Any], names: Sequence[str] | None = None) -> Diagnosis:
    """Diagnose values (chains, draws, K); one chain is compared with itself, first half against second."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim != 3 or 0 in array.shape:
        raise ValueError(f"values has shape {array.shape}; give (chains, draws, K).")
    n_chains, n_draws, k = array.shape
    if n_draws < 4:
        raise ValueError(f"R-hat and ESS need at least 4 draws per chain and got {n_draws}; keep more samples.")
    labels = tuple(names) if names is not None else tuple(str(i) for i in range(k))
    if len(labels) != k:
        raise ValueError(f"{len(labels)} names for {k} coordinates; give one name each.")
    step = max(1, _CHUNK // (n_chains * n_draws))
    parts = [_measures(array[..., i : i + step], labels[i : i + step]) for i in range(0, k, step)]
    rhat, bulk, tail = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Diagnosis(rhat, bulk, tail, labels, n_chains, n_draws)


def _measures(block: NDArray[Any], names: Sequence[str]) -> tuple[Floats, Floats, Floats]:
    """R-hat, bulk and tail ESS of one block (chains, draws, k)."""
    stats = _arviz()
    x = np.ascontiguousarray(np.moveaxis(block, -1, 0), dtype=np.float64)
    finite = np.isfinite(x).all((1, 2))
    if not finite.all():
        name = names[int(np.argmin(finite))]
        raise ValueError(f"Coordinate {name} holds NaN or infinite draws, so its chain diverged; take smaller steps.")
    moved = (x != x[:, :1, :1]).any((1, 2))
    out = np.full((3, len(x)), np.nan)
    if moved.any():
        x = x[moved]
        out[:, moved] = _rhat(x), stats.ess(x, method="bulk"), stats.ess(x, method="tail", prob=_TAILS)
    return out[0], out[1], out[2]


def _rhat(x: Floats) -> Floats:
    """Rank-normalised split R-hat of (k, chains, draws), the larger of bulk and folded.

    Made here and not by arviz-stats, which refuses a single chain and halves of fewer than four draws.
    """
    half = x.shape[-1] // 2
    halves = np.concatenate((x[..., :half], x[..., -half:]), axis=1)
    folded = np.abs(halves - np.median(halves, axis=(1, 2), keepdims=True))
    # Folding may leave one value (0/1 draws in equal number): NaN, and the bulk decides.
    with np.errstate(invalid="ignore", divide="ignore"):
        bulk, tail = (_scale_reduction(_normal_scores(part)) for part in (halves, folded))
    stuck = (halves == halves[..., :1]).all((1, 2))
    return np.where(stuck, np.inf, np.fmax(bulk, tail))


def _scale_reduction(x: Floats) -> Floats:
    """sqrt((B + (n - 1) W) / (n W)) of (k, chains, n), with B / n the variance of the means and W the mean variance."""
    n = x.shape[-1]
    between, within = n * x.mean(-1).var(-1, ddof=1), x.var(-1, ddof=1).mean(-1)
    found: Floats = np.sqrt((between / within + n - 1) / n)
    return found


def _normal_scores(x: Floats) -> Floats:
    """Normal quantiles of the ranks over the last two axes (Blom, 1958)."""
    from scipy.special import ndtri
    from scipy.stats import rankdata

    flat = x.reshape(len(x), -1)
    scores: Floats = ndtri((rankdata(flat, axis=1) - 0.375) / (flat.shape[1] + 0.25))
    return scores.reshape(x.shape)


def _arviz() -> Any:
    """The functions of arviz-stats on plain arrays."""
    try:
        return import_module("arviz_stats.base").array_stats
    except ImportError as error:
        raise ImportError("R-hat and ESS need arviz-stats; install it with `pip install arviz-stats`.") from error


def _spread(values: Floats) -> dict[str, float | None]:
    moved = values[~np.isnan(values)]
    if moved.size == 0:
        return {"min": None, "median": None, "max": None}
    return {"min": float(moved.min()), "median": float(np.median(moved)), "max": float(moved.max())}


def _cell(value: str | float | None) -> str:
    """Three decimals below ten (R-hat), none above (ESS)."""
    if not isinstance(value, float):
        return "–"
    return f"{value:.3f}" if value < 10 else f"{value:.0f}"


def _figure(parts: dict[str, Diagnosis], path: str | Path | None) -> "Figure":
    """A row of two histograms for each diagnosis; no pyplot, so no window and no global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 2.8 * len(parts)), layout="constrained")
    for (name, part), (left, right) in zip(parts.items(), figure.subplots(len(parts), 2, squeeze=False), strict=True):
        title = f"{name}: " if name else ""
        _histogram(left, {"R-hat": part.rhat}, RHAT_LIMIT, title + "R-hat")
        ess = {"bulk": part.ess_bulk, "tail": part.ess_tail}
        _histogram(right, ess, ESS_PER_CHAIN * part.n_chains, title + "effective sample size")
    if path is not None:
        figure.savefig(path)
    return figure


def _histogram(axes: "Axes", series: dict[str, Floats], limit: float, title: str) -> None:
    finite = {name: values[np.isfinite(values)] for name, values in series.items()}
    infinite = sum(int(np.isinf(values).sum()) for values in series.values())
    axes.hist(list(finite.values()), bins=30, label=list(finite), histtype="stepfilled", alpha=0.6)
    axes.axvline(limit, color="black", linestyle="--", label=f"limit {limit:g}")
    axes.set(title=title + (f" ({infinite} infinite)" if infinite else ""), ylabel="quantities")
    axes.legend()
