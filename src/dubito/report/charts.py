"""Charts on one pair of axes: lines, scatter, bars, histogram, bands; each takes a panel's data and draws it."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dubito.report.style import BLUE, INK, MUTED, RIM, Palette, is_reserved
from dubito.results import Figure, Panel

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

DASHES = (0, (3, 2))
_LETTERS = 80  # that fit side by side below a chart
_MANY = 2000  # more markers than this are drawn as pixels inside an SVG


def legend_label(series: Mapping[str, Any]) -> str:
    """The label, and after it the note."""
    return f"{series['label']}  {series['note']}" if series.get("note") else str(series["label"])


def draw_lines(axes: "Axes", panel: Panel, figure: Figure, palette: Palette) -> None:
    """Curves with optional bands; style "points" draws markers, "dashed" marks a reference."""
    for series in panel.data["series"]:
        colour, x, y = palette[series["label"]], np.asarray(series["x"]), np.asarray(series["y"])
        if "low" in series:
            axes.fill_between(x, series["low"], series["high"], color=colour, alpha=0.16, linewidth=0)
        style = series.get("style", "line")
        if style == "points":
            axes.plot(x, y, "o", color=colour, label=legend_label(series), rasterized=len(x) > _MANY)
        else:
            axes.plot(x, y, color=colour, label=legend_label(series), linestyle=DASHES if style == "dashed" else "-")
    _scales(axes, figure.options)


def draw_scatter(axes: "Axes", panel: Panel, figure: Figure, palette: Palette) -> None:
    """Clouds of points, thinner the more there are."""
    for series in panel.data["series"]:
        count = len(series["x"])
        look: dict[str, Any] = {
            "s": 22 if count < 200 else 9,
            "alpha": 0.85 if count < 200 else 0.45,
            "linewidths": 0.4,
        }
        axes.scatter(
            series["x"],
            series["y"],
            color=palette[series["label"]],
            edgecolors=RIM,
            label=legend_label(series),
            rasterized=count > _MANY,
            **look,
        )
    axes.grid(True, axis="both")
    _scales(axes, figure.options)
    if figure.options.get("diagonal"):
        values = np.concatenate([np.asarray(s[key], dtype=float) for s in panel.data["series"] for key in ("x", "y")])
        ends = [values.min(), values.max()]
        axes.plot(ends, ends, color=MUTED, linewidth=1, linestyle=DASHES, zorder=1)


def draw_bars(axes: "Axes", panel: Panel, figure: Figure, palette: Palette) -> None:
    """Grouped bars with thin error bars."""
    categories, groups = panel.data["categories"], panel.data["series"]
    width = 0.78 / len(groups)
    for i, series in enumerate(groups):
        x = np.arange(len(categories)) + (i - (len(groups) - 1) / 2) * width
        axes.bar(x, series["y"], width * 0.92, color=palette[series["label"]], label=legend_label(series))
        if "low" in series:
            axes.vlines(x, series["low"], series["high"], color=INK, linewidth=1)
    letters = max(8, min(14, _LETTERS // len(categories)))
    axes.set_xticks(np.arange(len(categories)), [textwrap.fill(str(name), letters) for name in categories])
    axes.tick_params(axis="x", colors=INK)
    axes.axhline(0, color=MUTED, linewidth=0.7)


def draw_histogram(axes: "Axes", panel: Panel, figure: Figure, palette: Palette) -> None:
    """Filled steps that let each other through."""
    edges = np.asarray(panel.data["edges"])
    for series in panel.data["series"]:
        colour = palette[series["label"]]
        axes.stairs(series["y"], edges, fill=True, color=colour, alpha=0.28, linewidth=0)
        axes.stairs(series["y"], edges, color=colour, linewidth=1.5, label=legend_label(series))
    for label, x in figure.options.get("marks", {}).items():
        axes.axvline(x, color=INK, linewidth=1, linestyle=DASHES, label=label)
    tallest = max(float(np.max(series["y"])) for each in figure.panels for series in each.data["series"])
    ends = [float(each.data["edges"][i]) for each in figure.panels for i in (0, -1)]  # panels share their axes
    axes.set(xlim=(min(ends), max(ends)), ylim=(0, 1.06 * tallest if tallest > 0 else 1))


def draw_bands(axes: "Axes", panel: Panel, figure: Figure, palette: Palette) -> None:
    """Regression: wide intervals pale, narrow ones darker, the data on top."""
    data = panel.data
    colour = _band_colour(panel, palette)
    for strength, band in _shaded(data["bands"]):
        axes.fill_between(data["x"], band["low"], band["high"], color=colour, alpha=strength, linewidth=0)
    axes.plot(data["x"], data["mean"], color=colour)
    if truth := data.get("truth"):
        axes.plot(truth["x"], truth["y"], color=INK, linewidth=1.2, linestyle=DASHES, label=legend_label(truth))
    if points := data.get("points"):
        many = len(points["x"]) > 200
        look: dict[str, Any] = (
            {"markersize": 1.6, "alpha": 0.45, "markeredgewidth": 0}
            if many
            else {"markersize": 3.8, "markeredgewidth": 0.5}
        )
        rasterized = len(points["x"]) > _MANY
        label = legend_label(points)
        axes.plot(
            points["x"], points["y"], "o", color=INK, markeredgecolor=RIM, label=label, rasterized=rasterized, **look
        )
    axes.set_xlim(float(np.min(data["x"])), float(np.max(data["x"])))


def band_key(figure: Figure, palette: Palette) -> "dict[str, Artist]":
    """The middle and the intervals for the legend, in grey where each panel has a colour of its own."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    colours = {_band_colour(panel, palette) for panel in figure.panels}
    colour = colours.pop() if len(colours) == 1 else MUTED
    fullest = max(figure.panels, key=lambda panel: len(panel.data["bands"])).data  # a point estimate has no intervals
    shades = {
        band["label"]: Patch(color=colour, alpha=strength, linewidth=0) for strength, band in _shaded(fullest["bands"])
    }
    return {fullest.get("line", "mean"): Line2D([], [], color=colour), **shades}


def _band_colour(panel: Panel, palette: Palette) -> str:
    return palette[panel.title] if is_reserved(panel.title) else BLUE


def _shaded(bands: Sequence[Mapping[str, Any]]) -> list[tuple[float, Mapping[str, Any]]]:
    widest_first = sorted(bands, key=lambda band: -float(np.mean(np.subtract(band["high"], band["low"]))))
    return [(0.16 + 0.17 * i, band) for i, band in enumerate(widest_first)]


def _scales(axes: "Axes", options: Mapping[str, Any]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if options.get(f"log_{name}"):
            axes.set(**{f"{name}scale": "log"})
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if _decades(axis) < 2.5 else (1,)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            axis.set_minor_locator(NullLocator())


def _decades(axis: "Axis") -> float:
    low, high = axis.get_view_interval()
    return math.log10(high / low)
