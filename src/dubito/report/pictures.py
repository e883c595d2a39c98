"""Shaded fields, reliability diagrams and grids of images."""

from typing import TYPE_CHECKING, Any

import numpy as np

from dubito.report.charts import DASHES, legend_label
from dubito.report.style import BLUE, DOUBT, INK, MUTED, ORANGE, RIM, Palette
from dubito.results import Figure, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure as Canvas

# inches: one image with its caption above and its votes below
_CELL, _IMAGE, _CAPTION, _VOTES, _GAP, _HEADER = 1.12, 0.94, 0.34, 0.38, 0.3, 0.26
_ROW, _MARGIN = 0.72, 1.0  # one method's votes with their caption, and the space left of them for its name


def draw_field(axes: "Axes", panel: Panel, figure: Figure, palette: Palette) -> None:
    """The field as shades of doubt with faint contours, and the points on top of it."""
    x, y, values = (np.asarray(panel.data[key], dtype=float) for key in ("x", "y", "values"))
    scale = field_scale(figure)
    low, high = scale.get_clim()
    extent = (x[0], x[-1], y[0], y[-1])
    look: dict[str, Any] = {
        "cmap": scale.cmap,
        "vmin": low,
        "vmax": high,
        "interpolation": "bilinear",
        "aspect": "auto",
    }
    axes.imshow(values, origin="lower", extent=extent, **look)
    levels = np.linspace(float(low), float(high), 6)[1:-1]
    if values.min() < levels[-1] and values.max() > levels[0]:
        axes.contour(x, y, values, levels=levels, colors="white", linewidths=0.7, alpha=0.6)
    for series in panel.data["points"]:
        rim: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.8, "zorder": 3}
        colour, label = palette[series["label"]], legend_label(series)
        axes.scatter(series["x"], series["y"], 22, color=colour, label=label, **rim)
    axes.set(xlim=extent[:2], ylim=extent[2:])
    axes.grid(False)
    axes.set_box_aspect(min(1.0, (y[-1] - y[0]) / (x[-1] - x[0])))


def field_scale(figure: Figure) -> "ScalarMappable":
    """One scale of shades for all panels, from the figure's own `low` and `high` or from the values."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    values = [np.asarray(panel.data["values"], dtype=float) for panel in figure.panels]
    low, high = figure.options.get("low"), figure.options.get("high")
    low = min(float(np.nanmin(v)) for v in values) if low is None else float(low)
    high = max(float(np.nanmax(v)) for v in values) if high is None else float(high)
    return ScalarMappable(Normalize(low, high), _shades(*DOUBT))


def _shades(*colours: str) -> "Colormap":
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shades", colours)


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


def draw_images(canvas: "Canvas", figure: Figure, palette: Palette, top: float) -> None:
    """Place every panel's images below each other on a canvas of `images_size`; `top` inches are left for the title."""
    height = canvas.get_figheight()
    for panel in figure.panels:
        if panel.title:
            canvas.text(_left(canvas), 1 - (top + 0.2) / height, panel.title, weight="bold", fontsize=9.5, va="center")
            top += _HEADER
        for i in range(len(panel.data["captions"])):
            row, column = divmod(i, _columns(figure))
            left, above = _margin(figure) + column * _CELL - 0.01, top + row * _row_height(panel)
            _draw_cell(canvas, panel, palette, i, left, above, first=column == 0)
        top += _panel_height(figure, panel)


def images_size(figure: Figure) -> tuple[float, float]:
    """Width and height in inches of all panels of an images figure, without a title."""
    return 0.02 + _margin(figure) + _columns(figure) * _CELL, sum(
        _panel_height(figure, panel) + (_HEADER if panel.title else 0.0) for panel in figure.panels
    )


def _draw_cell(canvas: "Canvas", panel: Panel, palette: Palette, i: int, left: float, top: float, first: bool) -> None:
    width, height = canvas.get_size_inches()
    pad = (_CELL - _IMAGE) / 2

    def place(offset: float, tall: float) -> "Axes":
        return canvas.add_axes(
            ((left + pad) / width, 1 - (top + offset + tall) / height, _IMAGE / width, tall / height)
        )

    _draw_pixels(place(_CAPTION, _IMAGE), panel, i)
    if "votes" in panel.data:
        truth = panel.data["truth"]
        colours = [BLUE if not truth or k == truth[i] else ORANGE for k in range(len(panel.data["labels"]))]
        _draw_votes(place(_CAPTION + _IMAGE + 0.06, _VOTES), panel, panel.data["votes"], i, colours)
    for k, row in enumerate(panel.data.get("rows", ())):
        axes = place(_CAPTION + _IMAGE + (k + 1) * _ROW - _VOTES, _VOTES)
        _draw_votes(axes, panel, row["votes"], i, palette[row["label"]])
        axes.set_title(row["captions"][i], fontsize=7, weight="normal", pad=3)
        if first:
            axes.set_ylabel(row["label"], rotation=0, ha="right", va="center", labelpad=8, weight="bold", color=INK)


def _draw_pixels(axes: "Axes", panel: Panel, i: int) -> None:
    pixels = np.asarray(panel.data["pixels"])
    axes.imshow(pixels[i], cmap=_shades("white", INK), vmin=pixels.min(), vmax=pixels.max(), interpolation="none")
    axes.set(xticks=[], yticks=[])
    axes.set_title(panel.data["captions"][i], fontsize=7, weight="normal", pad=3, linespacing=1.15)
    axes.spines[:].set(visible=True, color=MUTED, linewidth=0.5)
    axes.grid(False)


def _draw_votes(axes: "Axes", panel: Panel, votes: Any, i: int, colours: str | list[str]) -> None:
    shares = np.asarray(votes, dtype=float)
    classes = np.arange(shares.shape[1])
    axes.bar(classes, shares[i], 0.8, color=colours)
    axes.set_xticks(classes, panel.data["labels"])
    axes.set(ylim=(0, max(float(shares.max()), 1e-12)), yticks=[], xlim=(-0.6, len(classes) - 0.4))
    axes.tick_params(axis="x", labelsize=5.5, pad=1.5)
    axes.spines["bottom"].set(color=MUTED, linewidth=0.5)
    axes.grid(False)


def vote_colours(figure: Figure) -> dict[str, str]:
    """What the colours of the vote bars mean; empty where no truth is known."""
    told = any(panel.data.get("truth") for panel in figure.panels)
    return {"draws that vote for the true class": BLUE, "for another": ORANGE} if told else {}


def _columns(figure: Figure) -> int:
    most = max(len(panel.data["captions"]) for panel in figure.panels)
    return max(1, int(figure.options.get("columns") or min(most, 8)))


def _row_height(panel: Panel) -> float:
    votes = _VOTES + 0.06 if "votes" in panel.data else _ROW * len(panel.data.get("rows", ()))
    return _CAPTION + _IMAGE + votes + _GAP


def _panel_height(figure: Figure, panel: Panel) -> float:
    rows = -(-len(panel.data["captions"]) // _columns(figure))
    return rows * _row_height(panel)


def _margin(figure: Figure) -> float:
    return _MARGIN if any(panel.data.get("rows") for panel in figure.panels) else 0.0


def _left(canvas: "Canvas") -> float:
    return 0.08 / canvas.get_figwidth()
