"""Grids of images with votes under them, on one pair of axes in inches: many small axes would take seconds to draw."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dubito.report.style import BLUE, INK, MUTED, ORANGE, Palette, shades
from dubito.results import Figure, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# inches: one image with its caption above and its votes below
_CELL, _IMAGE, _CAPTION, _VOTES, _GAP, _HEADER = 1.12, 0.94, 0.34, 0.38, 0.3, 0.26
_ROW = 0.72  # one method's votes with their caption
_SEEN = 0.01  # smaller shares of the votes get no label
_LINE = 0.115  # inches of a line of small print
_LETTER, _SMALL = 0.098, 0.052  # inches of a letter in a method's name, and in a vote's label
_SHORT = 2  # letters of a label that has room below its bar; longer ones stand upright


def draw_images(canvas: "Canvas", figure: Figure, palette: Palette, top: float) -> None:
    """Place every panel's images below each other on a canvas of `images_size`; `top` inches are left for the title."""
    axes = _sheet(canvas)
    for panel in figure.panels:
        if panel.title:
            axes.text(0.08, top + 0.2, panel.title, weight="bold", fontsize=9.5, va="center")
            top += _HEADER
        for i in range(len(panel.data["captions"])):
            row, column = divmod(i, _columns(figure))
            left = _margin(figure) + column * _CELL + (_CELL - _IMAGE) / 2 - 0.01
            _draw_cell(axes, panel, palette, i, left, top + row * _row_height(panel))
        top += _panel_height(figure, panel)


def images_size(figure: Figure) -> tuple[float, float]:
    """Width and height in inches of all panels of an images figure, without a title."""
    return 0.02 + _margin(figure) + _columns(figure) * _CELL, sum(
        _panel_height(figure, panel) + (_HEADER if panel.title else 0.0) for panel in figure.panels
    )


def vote_colours(figure: Figure) -> dict[str, str]:
    """What the colours of the vote bars mean; empty where no truth is known."""
    told = any(panel.data.get("truth") for panel in figure.panels)
    return {"draws that vote for the true class": BLUE, "for another": ORANGE} if told else {}


def _sheet(canvas: "Canvas") -> "Axes":
    """Axes over the whole canvas, in inches from its upper left corner."""
    axes = canvas.add_axes((0, 0, 1, 1))
    width, height = canvas.get_size_inches()
    axes.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)
    axes.axis("off")
    return axes


def _draw_cell(axes: "Axes", panel: Panel, palette: Palette, i: int, left: float, top: float) -> None:
    labels, bottom = panel.data.get("labels", ()), top + _CAPTION + _IMAGE
    _draw_pixels(axes, panel, i, left, top)
    if "votes" in panel.data:
        truth = panel.data["truth"]
        colours = [BLUE if not truth or k == truth[i] else ORANGE for k in range(len(labels))]
        _draw_votes(axes, panel.data["votes"], i, labels, colours, left, bottom + 0.06 + _VOTES)
    for k, row in enumerate(panel.data.get("rows", ())):
        base = bottom + _ROW + k * (_ROW + _upright(panel))
        _draw_votes(axes, row["votes"], i, labels, [palette[row["label"]]] * len(labels), left, base)
        _write(axes, row["captions"][i], left, base - _VOTES)
        if i == 0:
            axes.text(left - 0.1, base - _VOTES / 2, row["label"], ha="right", va="center", weight="bold")


def _draw_pixels(axes: "Axes", panel: Panel, i: int, left: float, top: float) -> None:
    from matplotlib.patches import Rectangle

    pixels = np.asarray(panel.data["pixels"])
    upper, lower = top + _CAPTION, top + _CAPTION + _IMAGE
    extent = (left, left + _IMAGE, lower, upper)
    look: dict[str, Any] = {"vmin": pixels.min(), "vmax": pixels.max(), "interpolation": "none", "aspect": "auto"}
    axes.imshow(pixels[i], cmap=shades("white", INK), extent=extent, **look)
    axes.add_patch(Rectangle((left, upper), _IMAGE, _IMAGE, fill=False, edgecolor=MUTED, linewidth=0.5))
    _write(axes, panel.data["captions"][i], left, upper)


def _write(axes: "Axes", text: str, left: float, bottom: float) -> None:
    """Small print that ends above `bottom`."""
    for k, line in enumerate(reversed(text.split("\n"))):
        axes.text(left, bottom - 0.035 - k * _LINE, line, fontsize=7, va="baseline")


def _draw_votes(
    axes: "Axes", votes: Any, i: int, labels: Sequence[str], colours: Sequence[str], left: float, base: float
) -> None:
    """Bars that stand on `base`, each with a vote worth seeing labelled below."""
    shares = np.asarray(votes, dtype=float)
    step = _IMAGE / shares.shape[1]
    heights = shares[i] * (_VOTES / max(float(shares.max()), 1e-12))
    centres = left + step * (np.arange(len(heights)) + 0.5)
    axes.bar(centres, -heights, 0.8 * step, bottom=base, color=list(colours))
    axes.plot([left, left + _IMAGE], [base, base], color=MUTED, linewidth=0.5, solid_capstyle="butt")
    for k in np.flatnonzero(shares[i] > _SEEN * shares[i].sum()).tolist():
        turned = 90 if _longest(labels) > _SHORT else 0
        axes.text(centres[k], base + 0.03, labels[k], fontsize=6, color=MUTED, ha="center", va="top", rotation=turned)


def _columns(figure: Figure) -> int:
    most = max(len(panel.data["captions"]) for panel in figure.panels)
    return max(1, int(figure.options.get("columns") or min(most, 8)))


def _row_height(panel: Panel) -> float:
    room, rows = _upright(panel), len(panel.data.get("rows", ()))
    votes = _VOTES + 0.06 + room if "votes" in panel.data else (_ROW + room) * rows
    return _CAPTION + _IMAGE + votes + _GAP


def _upright(panel: Panel) -> float:
    """Inches that labels below bars take more than digits do."""
    longest = _longest(panel.data.get("labels", ()))
    return _SMALL * longest if longest > _SHORT else 0.0


def _longest(labels: Sequence[str]) -> int:
    return max(map(len, labels), default=0)


def _panel_height(figure: Figure, panel: Panel) -> float:
    rows = -(-len(panel.data["captions"]) // _columns(figure))
    return rows * _row_height(panel)


def _margin(figure: Figure) -> float:
    """Inches left of the images, for the names of methods."""
    names = [row["label"] for panel in figure.panels for row in panel.data.get("rows", ())]
    return max(1.0, 0.2 + _LETTER * _longest(names)) if names else 0.0
