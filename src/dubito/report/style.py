"""The house style: few lines, quiet greys, and one colour per name in all figures, told apart by every eye."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dubito.results import Figure

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

INK = "#1f2933"
MUTED = "#6b7785"
GRID = "#e3e7ec"
PAPER = "#ffffff"

RIM = "#fefefe"  # the paper around a marker

# Ten colours (INK and GREY with them) at least 16 apart in CIELAB, also as protan, deutan and tritan eyes see them.
BLUE, ORANGE, TEAL, ROSE = "#2059b5", "#e9922a", "#238571", "#e8588a"
VIOLET, SKY, OLIVE, BRICK = "#68458b", "#76b5e6", "#817200", "#8c353c"
GREY = "#9ea7b4"
CYCLE = (BLUE, ORANGE, TEAL, ROSE, VIOLET, SKY, OLIVE, BRICK)

# What each colour becomes on a dark page.
DARK = {
    INK: "#e6eaf0",
    MUTED: "#95a1b0",
    GRID: "#2b333d",
    RIM: "#161b22",
    BLUE: "#6ea5ea",
    ORANGE: "#efa747",
    TEAL: "#4fc1b2",
    ROSE: "#ea7a92",
    VIOLET: "#a98bd6",
    SKY: "#a9d6f7",
    OLIVE: "#bdbe5a",
    BRICK: "#d98077",
    GREY: "#a3adb8",
}

# Light to dark, so that more doubt is more ink, in print and for every eye.
DOUBT = ("#fbfaf7", "#dbe5ee", "#a3bfd9", "#5f8fbf", "#2f5d94", "#17325c")

# Names that mean the same in every report keep their colour from one report to the next.
RESERVED = {
    "map": GREY,
    "plainnet": GREY,
    "deepensemble": ORANGE,
    "snapshotensemble": OLIVE,
    "mcdropout": TEAL,
    "sgld": BLUE,
    "psgld": SKY,
    "sghmc": VIOLET,
    "cyclicalsgld": ROSE,
    "cyclicalsghmc": BRICK,
    "hmc": INK,
    "exact": INK,
    "truth": INK,
    "data": INK,
    "published": GREY,
    "measured": BLUE,
}

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.facecolor": "none",
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.xmargin": 0.02,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "lines.dash_capstyle": "round",
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "dubito",
}


class Palette:
    """A colour for each series name: reserved names have theirs, others take what these leave of the cycle in turn."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self._colours: dict[str, str] = {}
        labels = [label for figure in figures for label in _labels(figure)]
        taken = {RESERVED.get(_key(label)) for label in labels}
        self._free = [colour for colour in CYCLE if colour not in taken] or list(CYCLE)
        for label in labels:
            self._assign(label)

    def __getitem__(self, label: str) -> str:
        return RESERVED.get(_key(label)) or self._colours.get(label) or self._assign(label)

    def _assign(self, label: str) -> str:
        if _key(label) in RESERVED:
            return RESERVED[_key(label)]
        return self._colours.setdefault(label, self._free[len(self._colours) % len(self._free)])


def shades(*colours: str) -> "Colormap":
    """A scale from the first colour to the last."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shades", colours)


def is_reserved(label: str) -> bool:
    """Whether the label has the same colour in every report."""
    return _key(label) in RESERVED


def _key(label: str) -> str:
    return re.sub(r"[^a-z0-9]", "", label.lower())


def _labels(figure: Figure) -> Iterator[str]:
    for panel in figure.panels:
        for series in (*panel.data.get("series", ()), *_points(figure, panel.data)):
            yield series["label"]


def _points(figure: Figure, data: Mapping[str, object]) -> list[dict[str, str]]:
    points = data.get("points", ())
    return list(points) if figure.kind == "field" and isinstance(points, list | tuple) else []
