"""Figures as data: one function per kind, drawn later by `dubito.report`; `panels` sets several side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dubito.results import Figure, Panel

if TYPE_CHECKING:
    import numpy as np

Numbers: TypeAlias = "Sequence[float] | np.ndarray[Any, Any]"
Style = Literal["line", "dashed", "points"]


@dataclass(frozen=True, eq=False)
class Series:
    """One named curve, group of bars or cloud of points; its label fixes its colour in every figure of a report."""

    label: str
    y: Numbers
    x: Numbers = ()
    low: Numbers = ()
    """With `high`, a band around a line or error bars on a bar."""
    high: Numbers = ()
    weight: Numbers = ()
    """Reliability: how many predictions are in each bin."""
    note: str = ""
    """Stands after the label in the legend."""
    style: Style = "line"


@dataclass(frozen=True, eq=False)
class Band:
    """Lower and upper end of an interval along x, such as the central 90 %."""

    label: str
    low: Numbers
    high: Numbers


@dataclass(frozen=True, eq=False)
class Ballot:
    """How one method's draws voted on each of N images, (N, C), and what to write above each."""

    label: str
    votes: "np.ndarray[Any, Any]"
    captions: Sequence[str]


def lines(
    name: str,
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    caption: str = "",
    log_x: bool = False,
    log_y: bool = False,
) -> Figure:
    """Curves of y over x, with a band where a series has `low` and `high`; style "points" draws markers alone."""
    data = {"series": [_curve(name, one) for one in series]}
    return Figure(name, "lines", title, (Panel(data),), caption, x_label, y_label, {"log_x": log_x, "log_y": log_y})


def scatter(
    name: str,
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    caption: str = "",
    diagonal: bool = False,
    log_x: bool = False,
    log_y: bool = False,
) -> Figure:
    """Points (x, y); `diagonal` draws y = x, for estimates against a reference."""
    options = {"diagonal": diagonal, "log_x": log_x, "log_y": log_y}
    data = {"series": [_curve(name, one) for one in series]}
    return Figure(name, "scatter", title, (Panel(data),), caption, x_label, y_label, options)


def bars(
    name: str, title: str, categories: Sequence[str], series: Sequence[Series], *, y_label: str, caption: str = ""
) -> Figure:
    """Bars in groups: one group per category, one bar per series in it."""
    data = {"categories": list(categories), "series": [_record(name, one, len(categories)) for one in series]}
    return Figure(name, "bars", title, (Panel(data),), caption, "", y_label)


def histogram(
    name: str,
    title: str,
    edges: Numbers,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    caption: str = "",
    marks: Mapping[str, float] | None = None,
) -> Figure:
    """Counts or densities already binned: y of every series has one entry fewer than `edges`.

    `marks` are upright lines at {label: x}, such as a threshold.
    """
    data = {"edges": edges, "series": [_record(name, one, len(edges) - 1) for one in series]}
    return Figure(name, "histogram", title, (Panel(data),), caption, x_label, y_label, {"marks": dict(marks or {})})


def reliability(name: str, title: str, series: Sequence[Series], *, caption: str = "") -> Figure:
    """Accuracy (y) over confidence (x) per bin, the bin's count as `weight`; the diagonal is perfect calibration."""
    for one in series:
        if len(one.weight) != len(one.y):
            raise ValueError(f"figure {name!r}: series {one.label!r} needs a weight (count) for each of its bins.")
    data = {"series": [_curve(name, one) for one in series]}
    return Figure(name, "reliability", title, (Panel(data),), caption, "confidence", "accuracy")


def images(
    name: str,
    title: str,
    pixels: "np.ndarray[Any, Any]",
    captions: Sequence[str],
    *,
    votes: "np.ndarray[Any, Any] | None" = None,
    labels: Sequence[str] = (),
    truth: Sequence[int] = (),
    columns: int | None = None,
    caption: str = "",
) -> Figure:
    """A grid of images (N, H, W) or (N, H, W, 3); `votes` (N, C) adds bars per class, the true class marked."""
    count = len(pixels)
    if len(captions) != count or pixels.ndim not in (3, 4):
        raise ValueError(f"figure {name!r}: {len(captions)} captions do not fit pixels of shape {pixels.shape}.")
    data: dict[str, Any] = {"pixels": pixels, "captions": list(captions)}
    if votes is not None:
        names = list(labels) or [str(i) for i in range(votes.shape[1])]
        if votes.shape != (count, len(names)) or len(truth) not in (0, count):
            raise ValueError(
                f"figure {name!r}: votes {votes.shape}, {len(names)} labels, {len(truth)} truths do not fit."
            )
        data |= {"votes": votes, "labels": names, "truth": list(truth)}
    return Figure(name, "images", title, (Panel(data),), caption, "", "", {"columns": columns})


def ballots(
    name: str,
    title: str,
    pixels: "np.ndarray[Any, Any]",
    captions: Sequence[str],
    rows: Sequence[Ballot],
    *,
    labels: Sequence[str] = (),
    caption: str = "",
) -> Figure:
    """Images (N, H, W) side by side, and under each how the draws of several methods voted on it."""
    count, classes = rows[0].votes.shape
    if not all(len(row.captions) == count and row.votes.shape == (count, classes) for row in rows):
        raise ValueError(f"figure {name!r}: every row needs votes {count, classes} and {count} captions.")
    names = list(labels) or [str(i) for i in range(classes)]
    records = [{"label": row.label, "votes": row.votes, "captions": list(row.captions)} for row in rows]
    figure = images(name, title, pixels, captions, columns=count, caption=caption)
    data = {**figure.panels[0].data, "rows": records, "labels": names}
    return replace(figure, panels=(Panel(data),))


def field(
    name: str,
    title: str,
    x: Numbers,
    y: Numbers,
    values: "np.ndarray[Any, Any]",
    points: Sequence[Series] = (),
    *,
    value_label: str,
    x_label: str = "",
    y_label: str = "",
    caption: str = "",
    low: float | None = None,
    high: float | None = None,
    cells: bool = False,
) -> Figure:
    """A number at every point of a plane, values[i, j] at (x[j], y[i]), shaded; labelled points on top of it.

    `cells` shows a matrix in place of a smooth field: each number by itself, the first row on top.
    """
    if tuple(values.shape) != (len(y), len(x)):
        raise ValueError(f"figure {name!r}: values {values.shape} must have shape (len(y), len(x)) = {len(y), len(x)}.")
    options = {"value_label": value_label, "low": low, "high": high, "cells": cells}
    data = {"x": x, "y": y, "values": values, "points": [_curve(name, one) for one in points]}
    return Figure(name, "field", title, (Panel(data),), caption, x_label, y_label, options)


def bands(
    name: str,
    title: str,
    x: Numbers,
    mean: Numbers,
    intervals: Sequence[Band],
    *,
    points: Series | None = None,
    truth: Series | None = None,
    line: str = "mean",
    x_label: str = "x",
    y_label: str = "y",
    caption: str = "",
) -> Figure:
    """Regression in one dimension: data, predicted mean, nested intervals around it, the true function if known.

    `line` is what the legend calls the middle, where it is not a mean.
    """
    for band in intervals:
        if not len(band.low) == len(band.high) == len(x):
            raise ValueError(f"figure {name!r}: interval {band.label!r} must have one low and one high for each x.")
    extras = {"points": points, "truth": truth}
    data: dict[str, Any] = {key: _curve(name, one) for key, one in extras.items() if one is not None}
    shown = [{"label": b.label, "low": b.low, "high": b.high} for b in intervals]
    data |= {"x": x, "mean": mean, "line": line, "bands": shown}
    return Figure(name, "bands", title, (Panel(data),), caption, x_label, y_label)


def panels(
    name: str, title: str, figures: Mapping[str, Figure], *, caption: str = "", columns: int | None = None
) -> Figure:
    """Figures of one kind side by side on common axes, each under its key; labels and options are the first one's."""
    kinds = {figure.kind for figure in figures.values()}
    if len(kinds) != 1:
        raise ValueError(f"figure {name!r}: panels must be figures of one kind, not {sorted(kinds)!r}.")
    parts = [Panel(panel.data, key) for key, figure in figures.items() for panel in figure.panels]
    first = next(iter(figures.values()))
    options = first.options if columns is None else {**first.options, "columns": columns}
    return replace(first, name=name, title=title, panels=parts, caption=caption, options=options)


def _curve(name: str, series: Series) -> dict[str, Any]:
    if len(series.x) != len(series.y):
        pair = f"{len(series.x)} x and {len(series.y)} y"
        raise ValueError(f"figure {name!r}: series {series.label!r} has {pair} values; give as many of each.")
    return _record(name, series, len(series.y))


def _record(name: str, series: Series, length: int) -> dict[str, Any]:
    """The series as a mapping without the fields left empty; every other field must have `length` values."""
    for key in ("y", "low", "high", "weight"):
        count = len(getattr(series, key))
        if count != length and (key == "y" or count > 0):
            got = f"{count} values for {key} instead of {length}"
            raise ValueError(f"figure {name!r}: series {series.label!r} has {got}.")
    return {f.name: value for f in fields(series) if len(value := getattr(series, f.name)) > 0 or f.name in "xy"}
