"""Shaded fields and reliability diagrams."""

from typing import TYPE_CHECKING, Any

import numpy as np

from dubito.report.charts import DASHES, legend_label
from dubito.report.style import DOUBT, MUTED, RIM, Palette, shades
from dubito.results import Figure, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable


_FLATTEST = 0.6  # height over width at which the cells of a long matrix are drawn


def draw_field(axes: "Axes", panel: Panel, figure: Figure, palette: Palette) -> None:
    """The field as shades of doubt with faint contours, and the points on top of it; or the cells of a matrix."""
    x, y, values = (np.asarray(panel.data[key], dtype=float) for key in ("x", "y", "values"))
    scale = field_scale(figure)
    low, high = scale.get_clim()
    look: dict[str, Any] = {"cmap": scale.cmap, "vmin": low, "vmax": high, "aspect": "auto"}
    axes.grid(False)
    if figure.options.get("cells"):
        edges = (x[0] - 0.5, x[-1] + 0.5, y[-1] + 0.5, y[0] - 0.5)
        axes.locator_params(integer=True, min_n_ticks=1)
        axes.imshow(values, origin="upper", extent=edges, interpolation="nearest", **look)
        axes.set_box_aspect(min(1.0, max(_FLATTEST, len(y) / len(x))))
        return
    extent = (x[0], x[-1], y[0], y[-1])
    axes.imshow(values, origin="lower", extent=extent, interpolation="bilinear", **look)
    levels = np.linspace(float(low), float(high), 6)[1:-1]
    if values.min() < levels[-1] and values.max() > levels[0]:
        axes.contour(x, y, values, levels=levels, colors="white", linewidths=0.7, alpha=0.6)
    for series in panel.data["points"]:
        rim: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.8, "zorder": 3}
        colour, label = palette[series["label"]], legend_label(series)
        axes.scatter(series["x"], series["y"], 22, color=colour, label=label, **rim)
    axes.set(xlim=extent[:2], ylim=extent[2:])
    axes.set_box_aspect(min(1.0, (y[-1] - y[0]) / (x[-1] - x[0])))


def field_scale(figure: Figure) -> "ScalarMappable":
    """One scale of shades for all panels, from the figure's own `low` and `high` or from the values."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    values = [np.asarray(panel.data["values"], dtype=float) for panel in figure.panels]
    low, high = figure.options.get("low"), figure.options.get("high")
    low = min(float(np.nanmin(v)) for v in values) if low is None else float(low)
    high = max(float(np.nanmax(v)) for v in values) if high is None else float(high)
    return ScalarMappable(Normalize(low, high), shades(*DOUBT))


def draw_reliability(axes: "Axes", panel: Panel, figure: Figure, palette: Palette) -> None:
    """Accuracy over confidence, larger dots for fuller bins, and below it each bin's share of the predictions."""
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=DASHES, zorder=1)
    strip = axes.inset_axes((0, -0.2, 1, 0.15), sharex=axes)
    groups = panel.data["series"]
    for i, series in enumerate(groups):
        colour = palette[series["label"]]
        share = np.asarray(series["weight"], dtype=float)
        share = share / max(float(share.sum()), 1.0)
        x, y = np.asarray(series["x"], dtype=float), np.asarray(series["y"], dtype=float)
        filled = share > 0
        axes.plot(x[filled], y[filled], color=colour, linewidth=1.6, label=legend_label(series), zorder=2)
        sizes = 10 + 60 * np.sqrt(share[filled])
        axes.scatter(x[filled], y[filled], sizes, color=colour, edgecolors=RIM, linewidths=0.8, zorder=3, clip_on=False)
        beside = 0.009 * (i - (len(groups) - 1) / 2)  # so that methods of equal confidence do not hide each other
        strip.vlines(x[filled] + beside, 0, share[filled], color=colour, linewidth=3)
    _finish_reliability(axes, strip)


def _finish_reliability(axes: "Axes", strip: "Axes") -> None:
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.grid(True, axis="both")
    axes.tick_params(labelbottom=False)
    strip.set_ylabel("share", labelpad=4, rotation=0, ha="right", va="center", fontsize=8)
    strip.set_ylim(bottom=0)
    strip.set_yticks([])
    strip.grid(False)
    strip.set_xlabel("confidence")
