"""The two toys, where doubt can be seen whole: classes in the plane and a curve with a gap."""

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubito import metrics, plots
from dubito.data import Split
from dubito.demo import words
from dubito.demo.problems import NOISE, REFERENCE, Fit
from dubito.results import Figure
from dubito.studies.base import Settings

DRAWS = 400
COLUMNS = 3
FAR = 3.0  # distance to the nearest training point
_REACH = 6.0  # the plane is shown up to here
_EDGE = 4.0  # the line
_NORMAL_90 = NormalDist().inv_cdf(0.95)
_GROWS = 1.25  # a band this much wider than at the data is called growing


def plane(
    fits: Mapping[str, Fit], train: Split, settings: Settings, columns: int = COLUMNS
) -> tuple[Figure, dict[str, Any]]:
    """The entropy of every method over the plane, and its numbers."""
    axis = np.linspace(-_REACH, _REACH, 13 if settings.quick else 61)
    grid = torch.cartesian_prod(*[torch.tensor(axis, dtype=torch.float32)] * 2).flip(1)  # rows of constant y, as drawn
    predictions = {name: fit.posterior.predict(grid, draws=DRAWS, seed=settings.seed) for name, fit in fits.items()}
    far = torch.cdist(grid, train.x).amin(1) > FAR
    doubt = {name: float(p.entropy[far].double().mean()) for name, p in predictions.items()}
    reference = predictions[REFERENCE].probs
    distance = {
        name: metrics.total_variation(p.probs, reference) for name, p in predictions.items() if name != REFERENCE
    }
    points = [
        plots.Series(f"class {k}", train.x[train.y == k, 1].numpy(), train.x[train.y == k, 0].numpy()) for k in (0, 1)
    ]
    fields = {
        name: plots.field(
            "plane", name, axis, axis, p.entropy.numpy().reshape(len(axis), -1), points,
            value_label="entropy (nats)", low=0.0, high=math.log(2),
        )
        for name, p in predictions.items()
    }  # fmt: skip
    figure = plots.panels("plane", "Doubt on a map", fields, caption=_plane_words(doubt, distance), columns=columns)
    return figure, {"mean entropy far from the data": doubt, "total variation to HMC": distance}


def _plane_words(doubt: Mapping[str, float], distance: Mapping[str, float]) -> str:
    nearest, farthest = (pick(distance, key=lambda name: distance[name]) for pick in (min, max))
    return (
        "Twenty points in two classes; the darker the shade, the less a method claims to know there, from 0 to ln 2 "
        "= 0.69 nats. Each puts a border between the classes. The question is what it says far from all points, "
        f"where the border could run anywhere: more than {FAR:g} away from the data the mean entropy is "
        f"{words.each(doubt, '.2f')}. HMC is the reference, exact but for the finite length of its chains; by total "
        f"variation the nearest to it is {words.named(nearest)} ({distance[nearest]:.2f}), the farthest "
        f"{words.named(farthest)} ({distance[farthest]:.2f})."
    )


def line(fits: Mapping[str, Fit], train: Split, settings: Settings) -> tuple[Figure, dict[str, Any]]:
    """Predictive bands of every method along the line, and their widths."""
    x = torch.linspace(-_EDGE, _EDGE, 33 if settings.quick else 161)[:, None]
    bands = {name: _Bands(fit, x, settings) for name, fit in fits.items()}
    data = plots.Series("data", train.y.numpy(), train.x[:, 0].numpy())
    shown = {
        name: plots.bands("line", name, x[:, 0].numpy(), band.mean, band.intervals, points=data)
        for name, band in bands.items()
    }
    at_data = ((x - train.x.T).abs().amin(1) < _EDGE / 50).numpy()
    places = {"data": np.flatnonzero(at_data), "gap": np.array([len(x) // 2]), "edges": np.array([0, -1])}
    widths = {
        where: {name: float(band.half_width[at].mean()) for name, band in bands.items()} for where, at in places.items()
    }
    figure = plots.panels(
        "line", "Error bars that know where the data are", shown, caption=_line_words(widths), columns=COLUMNS
    )
    return figure, {"half width of the 90% interval": widths}


class _Bands:
    """Mean and nested intervals of one posterior along x."""

    def __init__(self, fit: Fit, x: Tensor, settings: Settings) -> None:
        prediction = fit.posterior.predict(x, draws=DRAWS, seed=settings.seed)
        self.mean = prediction.mean[:, 0].numpy()
        ends = {level: [end[:, 0].numpy() for end in prediction.interval(level)] for level in (0.5, 0.9)}
        self.intervals = [plots.Band(f"{level:.0%}", *pair) for level, pair in ends.items()]
        self.half_width: NDArray[Any] = (ends[0.9][1] - ends[0.9][0]) / 2


def _line_words(widths: Mapping[str, Mapping[str, float]]) -> str:
    data, gap, edges = widths["data"], widths["gap"], widths["edges"]
    told = [f"{data[name]:.2f}, {gap[name]:.2f} and {edges[name]:.2f} for {words.named(name)}" for name in data]
    flat = [words.named(name) for name in data if max(gap[name], edges[name]) < _GROWS * data[name]]
    warning = "Hardly wider away from the data is the band of {}: sure of what nobody has measured."
    return (
        "Twenty noisy measurements of a curve, in two groups with a gap between them. At the data a 90% band can be "
        f"no narrower than the noise, ±{_NORMAL_90 * NOISE:.2f}; elsewhere it should say how little is known. At the "
        f"data, in the middle of the gap and at the edges its half width is {'; '.join(told)}. HMC is the reference. "
        f"{warning.format(words.listed(flat)) if flat else ''}"
    )
