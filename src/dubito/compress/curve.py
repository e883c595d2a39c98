"""Error over the cut, and the cut chosen on validation data."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dubito import plots
from dubito.compress.scores import By, Scored, as_shares, counts, scored
from dubito.config import is_real
from dubito.held import check_held
from dubito.inputs import Inputs, arguments, move, n_rows, rows, tensors
from dubito.likelihoods import Likelihood
from dubito.metrics import IGNORE_INDEX
from dubito.plots import Series
from dubito.posteriors.base import Posterior, check_named, check_posterior
from dubito.results import Cell, Figure, Result, Table, environment

SHARES = (0.0, 0.5, 0.75, 0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.995)
BATCH = 1024


class Point(NamedTuple):
    """A cut: what it leaves, the error of the network there, and its loss on every row, 0 or 1, or squared."""

    cut: float
    removed: float
    left: int
    error: float
    losses: Tensor


def losses(network: nn.Module, likelihood: Likelihood, data: tuple[Any, Any]) -> Tensor:
    """Of each row: its share of wrong labels, or its mean squared error.

    Where some labels do not count, rows weigh as many as they have, so that the mean is that of all labels.
    """
    x, y = tensors(data[0]), tensors(data[1])
    parts, counted = [], []
    with torch.no_grad():
        for start in range(0, n_rows(x), BATCH):
            batch = slice(start, start + BATCH)
            each, counts = _loss(likelihood.mean(_outputs(network, rows(x, batch))).cpu(), y[batch].cpu(), likelihood)
            parts.append(_per_row(each))
            counted.append(_per_row(counts))
    labels = torch.cat(counted).mean()
    if not labels:
        raise ValueError("every label is one to ignore, so there is no error to go by; give at least one that counts")
    return torch.cat(parts) / labels


def error(losses: Tensor, likelihood: Likelihood) -> float:
    """The share of wrong answers, or the root mean squared error."""
    mean = float(losses.mean())
    return mean if likelihood.kind == "classification" else math.sqrt(mean)


def points(
    held: Scored, likelihood: Likelihood, data: tuple[Any, Any], shares: Sequence[float] = SHARES
) -> list[Point]:
    """The curve: a point for every share removed, and one for the score's own cut where it has one."""
    cuts = {held.at_share(share) for share in shares} | ({held.cut} if held.cut is not None else set())
    total = sum(score.numel() for score in held.scores.values())
    found = []
    for cut in sorted(cuts):
        network = held.masked(cut)
        left = sum(counts(network)[name][0] for name in held.scores)
        each = losses(network, likelihood, data)
        found.append(Point(cut, 1 - left / total, left, error(each, likelihood), each))
    return found


def check_rows(posterior: Posterior, data: Any) -> None:
    """Refuse what is not (x, y) with as many rows of each, finite and in the network's shapes."""
    check_posterior(posterior)
    if not isinstance(data, Sequence) or len(data) != 2:
        raise ValueError(
            f"validation rows are a pair (x, y), got {_what(data)}; give the inputs and what they should give"
        )
    check_held(posterior.net, posterior.likelihood, *data)


def _what(data: object) -> str:
    kind = type(data).__name__
    return f"{kind} of {len(data)}" if isinstance(data, Sequence) else kind


def choose(curve: Sequence[Point], tolerance: float = 1.0) -> Point:
    """The sparsest point whose loss lies within `tolerance` standard errors (of the paired difference) of the least."""
    if not (is_real(tolerance) and tolerance >= 0):
        raise ValueError(f"tolerance is {tolerance!r} standard errors; it must be 0 or more")
    best = min(curve, key=lambda point: float(point.losses.mean()))

    def near(point: Point) -> bool:
        more = point.losses - best.losses
        error = float(more.std()) / math.sqrt(len(more)) if len(more) > 1 else 0.0
        return float(more.mean()) <= tolerance * error

    return max((point for point in curve if near(point)), key=lambda point: point.removed)


def curve(
    posteriors: Mapping[str, Posterior],
    validation: tuple[Any, Any],
    by: By | None = None,
    shares: Sequence[float] = SHARES,
    tolerance: float = 1.0,
) -> Result:
    """The mean network's error on (x, y) as weights go, for several posteriors, and the cut each would be given."""
    check_named(posteriors)
    shares = as_shares(shares)
    for posterior in posteriors.values():
        check_rows(posterior, validation)
    kinds = {p.likelihood.kind for p in posteriors.values()}
    what = "error" if kinds == {"classification"} else "RMSE"
    table: list[tuple[Cell, ...]] = []
    series, chosen = [], {}
    for name, posterior in posteriors.items():
        held = scored(posterior, by)
        found = points(held, posterior.likelihood, validation, shares)
        pick = choose(found, tolerance)
        chosen[name] = {"by": held.by, "cut": pick.cut, "removed": pick.removed, "error": pick.error}
        table += [(name, held.by, p.cut, p.removed, p.left, p.error, "chosen" if p is pick else "") for p in found]
        series.append(Series(name, [p.error for p in found], [p.removed for p in found]))
    columns = ("posterior", "score", "cut", "removed", "weights left", what, "")
    formats = {"cut": ".3g", "removed": ".2%", "weights left": ",d", what: ".4g"}
    return Result(
        name="compression",
        title="Error over the share of weights removed",
        summary="Weights with the lowest scores set to 0 in the mean network; chosen is the sparsest within "
        f"{tolerance:g} standard error(s) of the best.",
        numbers=chosen,
        tables=[Table("Mean network on validation rows", columns, table, formats=formats)],
        figures=[_figure(series, what)],
        settings={"shares": shares, "tolerance": tolerance},
        environment=environment(),
    )


def _figure(series: Sequence[Series], what: str) -> Figure:
    title = f"{what[0].upper()}{what[1:]} over sparsity"
    return plots.lines("curve", title, series, x_label="share of weights removed", y_label=what)


def _outputs(network: nn.Module, x: Inputs) -> Tensor:
    first = next(network.parameters())
    args, kwargs = arguments(move(x, first.device, first.dtype))
    outputs: Tensor = network(*args, **kwargs)
    return outputs


def _loss(mean: Tensor, y: Tensor, likelihood: Likelihood) -> tuple[Tensor, Tensor]:
    """Of each label or number: whether it is wrong, or its squared error, and whether it counts, (rows, ...).

    Probabilities that are no numbers are wrong, as of a normalised weight of which nothing is left.
    """
    if likelihood.kind != "classification":
        each = (mean - y.view(mean.shape)).square()
        return each, torch.ones_like(each)
    labels = y.view(mean.shape[:-1]).long()
    counts = labels != ignored(likelihood)
    return counts & ((mean.argmax(-1) != labels) | mean.isnan().any(-1)), counts


def _per_row(values: Tensor) -> Tensor:
    """(rows,) sums in double precision."""
    return values.double().reshape(len(values), -1).sum(1)


def ignored(likelihood: Likelihood) -> int:
    """The label that does not count, also for a likelihood that has none."""
    return int(getattr(likelihood, "ignore_index", IGNORE_INDEX))
