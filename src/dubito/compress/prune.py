"""Pruning by signal to noise: weights whose |mean| / std is least go first (Blundell et al. 2015, section 5.1.1).

https://arxiv.org/abs/1505.05424, after Graves (2011). A weight that goes takes its standard deviation with it: left in
place, the noise of the removed weights alone would ruin every draw.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dubito import metrics, plots
from dubito.compress.curve import check_rows, ignored
from dubito.compress.scores import as_shares, certainty, check_spread, count
from dubito.inputs import tensors
from dubito.plots import Series
from dubito.posteriors.base import check_named
from dubito.posteriors.gaussian import GaussianPosterior
from dubito.prediction import Prediction
from dubito.results import Figure, Result, Table, environment

SHARES = (0.0, 0.5, 0.75, 0.95, 0.98)  # of Blundell et al.'s table 2
BINS = 60
LEAST = 1e-4  # of the ratio in pictures: what lies below, means of exactly 0 among it, is shown at the edge


def signal_to_noise(posterior: GaussianPosterior) -> Tensor:
    """|mean| / std of every random weight of the network, (S, n)."""
    random = _random(posterior)
    return certainty(posterior.mean[:, random], posterior.std[:, random])


def pruned(posterior: GaussianPosterior, share: float) -> GaussianPosterior:
    """The posterior without a share of its random weights: the least certain have mean 0 and std 0."""
    random, ratio = _random(posterior), signal_to_noise(posterior)
    gone = random[ratio.argsort(dim=1, stable=True)[:, : count(share, ratio.shape[1])]]
    return replace(posterior, mean=posterior.mean.scatter(1, gone, 0.0), std=posterior.std.scatter(1, gone, 0.0))


def pruning(
    posteriors: Mapping[str, GaussianPosterior],
    data: tuple[Any, Any],
    shares: Sequence[float] = SHARES,
    draws: int = 100,
    seed: int = 0,
) -> Result:
    """How predictions on (x, y) fare as weights are removed, with the density and the CDF of the ratio they go by."""
    check_named(posteriors)
    shares = as_shares(shares)
    for posterior in posteriors.values():
        check_rows(posterior, data)
    x, y = tensors(data[0]), tensors(data[1])
    rows = [_row(name, held, share, x, y, draws, seed) for name, held in posteriors.items() for share in shares]
    what = "error" if _classifies(posteriors) else "RMSE"
    columns = ("posterior", "removed", "weights left", what, f"{what}, mean network", "NLL", "NLL, mean network")
    return Result(
        name="pruning",
        title="Pruning by signal to noise",
        summary=f"Weights with the least |mean| / std removed, mean and standard deviation both; {len(y):,} rows.",
        numbers={name: [list(row[1:]) for row in rows if row.posterior == name] for name in posteriors},
        tables=[Table("Predictions after pruning", columns, rows, formats={"removed": ".1%", "weights left": ",d"})],
        figures=[_curves(rows, what), *_spread(posteriors)],
        settings={"shares": shares, "draws": draws, "seed": seed},
        environment=environment(),
    )


class Row(NamedTuple):
    """One posterior after a share of its weights went: what is left, and scores of draws and of the mean network."""

    posterior: str
    removed: float
    left: int
    error: float
    error_of_mean: float
    nll: float
    nll_of_mean: float


def _row(name: str, posterior: GaussianPosterior, share: float, x: Any, y: Tensor, draws: int, seed: int) -> Row:
    held = pruned(posterior, share)
    still = replace(held, std=torch.zeros_like(held.std))
    several, one = held.predict(x, draws, seed), still.predict(x, len(still), seed)
    left = int((held.std[:, : held.net.layout.size] > 0).sum(1).max())
    errors, nlls = zip(*(_scores(p, y, ignored(posterior.likelihood)) for p in (several, one)), strict=True)
    return Row(name, share, left, *errors, *nlls)


def _scores(prediction: Prediction, y: Tensor, ignore_index: int) -> tuple[float, float]:
    """The error, and the NLL per label that counts or per row."""
    if prediction.kind == "classification":
        wrong = 1 - metrics.accuracy(prediction.probs, y, ignore_index=ignore_index)
        return wrong, metrics.nll(prediction.probs, y, ignore_index=ignore_index)
    return metrics.rmse(prediction.mean, y), -float(prediction.log_prob(y).double().mean())


def _random(posterior: GaussianPosterior) -> Tensor:
    """Where the network's random weights lie, (n,)."""
    if not isinstance(posterior, GaussianPosterior):
        raise ValueError(
            f"{posterior!r} holds no spread of each weight, so there is no signal to noise; give the posterior of a "
            "Variational fit, or remove weights by magnitude with compress.curve and compress.write"
        )
    found = posterior.random[: posterior.net.layout.size].nonzero().squeeze(1)
    check_spread(found)
    return found


def _classifies(posteriors: Mapping[str, GaussianPosterior]) -> bool:
    return next(iter(posteriors.values())).likelihood.kind == "classification"


def _curves(rows: Sequence[Row], what: str) -> Figure:
    series = []
    for name in dict.fromkeys(row.posterior for row in rows):
        mine = [row for row in rows if row.posterior == name]
        removed = [row.removed for row in mine]
        series.append(Series(f"{name}, draws", [row.error for row in mine], removed))
        series.append(Series(f"{name}, mean network", [row.error_of_mean for row in mine], removed))
    title = f"{what[0].upper()}{what[1:]} over pruning"
    return plots.lines("curve", title, series, x_label="share of weights removed", y_label=what)


def _spread(posteriors: Mapping[str, GaussianPosterior]) -> Iterator[Figure]:
    """Density and CDF of log10 |mean| / std."""
    logs = {name: _logs(posterior) for name, posterior in posteriors.items()}
    everything = np.concatenate(list(logs.values()))
    edges = np.linspace(everything.min(), everything.max() + 1e-6, BINS + 1)
    density = [Series(name, np.histogram(log, edges, density=True)[0]) for name, log in logs.items()]
    cdf = [Series(name, np.searchsorted(np.sort(log), edges) / len(log), edges) for name, log in logs.items()]
    label, title = "log10 |mean| / std", "Signal to noise of the weights"
    caption = f"What lies below {math.log10(LEAST):g} is drawn there."
    yield plots.histogram("density", title, edges, density, x_label=label, y_label="density", caption=caption)
    yield plots.lines("cdf", title, cdf, x_label=label, y_label="share of weights below", caption=caption)


def _logs(posterior: GaussianPosterior) -> "np.ndarray[Any, np.dtype[np.float64]]":
    ratio = signal_to_noise(posterior).flatten().double().clamp_min(LEAST)
    return ratio.log10().cpu().numpy()
