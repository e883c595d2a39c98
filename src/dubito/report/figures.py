"""From a Figure to a picture: layout, title, legend, and the bytes of an SVG or a PNG."""

import io
import math
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dubito.report import charts, images, pictures
from dubito.report.style import DARK, RC, Palette
from dubito.results import Figure, Panel, Result, made_folder, write_whole

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Draw = Callable[["Axes", Panel, Figure, Palette], None]

_DRAW: dict[str, Draw] = {
    "lines": charts.draw_lines,
    "scatter": charts.draw_scatter,
    "bars": charts.draw_bars,
    "histogram": charts.draw_histogram,
    "bands": charts.draw_bands,
    "field": pictures.draw_field,
    "reliability": pictures.draw_reliability,
}

# inches of one panel: alone, and beside others
_SIZES = {"field": ((4.7, 3.7), (2.9, 2.7)), "reliability": ((4.6, 4.3), (3.0, 3.2))}
_USUAL = ((6.6, 3.4), (3.3, 2.3))
_WIDEST, _LEAST = 9.3, 0.85  # inches of panels side by side, and how much charts may lose of their height for it
_TITLE, _KEY = 0.2, 0.2  # inches of one line of the title and of the legend
_DPI = {"svg": 120, "png": 160}  # of pixels; in an SVG those are smooth fields and clouds of points
_SCREEN = 1.45  # pixels on the page for a point on paper: small print becomes as large as the page's own


def render(figure: Figure, palette: Palette, kind: Literal["svg", "png"], titled: bool) -> bytes:
    """The drawn figure as a file's content; the title is left out where the page has it already."""
    import matplotlib

    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with matplotlib.rc_context(RC):
        canvas = draw(figure, palette, titled)
        canvas.savefig(buffer, format=kind, dpi=_DPI[kind], metadata=metadata, transparent=kind == "svg")
    return buffer.getvalue()


def inline_svg(figure: Figure, palette: Palette, prefix: str) -> str:
    """An SVG to stand inside a page: the page's font, its colours in light and dark, ids that begin with `prefix`."""
    text = render(figure, palette, "svg", titled=False).decode()
    text = text[text.index("<svg") :]
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'(url\(|href=")#', rf"\g<1>#{prefix}-", text)
    for colour in DARK:
        text = text.replace(colour, f"var({css_variable(colour)})")
    text = text.replace("'DejaVu Sans'", "var(--font)")
    return re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', _opening(figure.title), text, count=1)


def css_variable(colour: str) -> str:
    """The page's name for a colour of the house style."""
    return f"--c-{colour.removeprefix('#')}"


def write_figures(result: Result, folder: str | Path) -> list[Path]:
    """Write each figure of the result as RESULT-FIGURE.png into `folder`; returns the paths in order."""
    folder = made_folder(folder)
    palette = Palette(result.figures)
    paths = [folder / f"{result.name}-{figure.name}.png" for figure in result.figures]
    for path, figure in zip(paths, result.figures, strict=True):
        write_whole(path, render(figure, palette, "png", titled=True))
    return paths


def draw(figure: Figure, palette: Palette, titled: bool) -> "Canvas":
    """The figure on a matplotlib canvas of its own; no global state."""
    return _draw_images(figure, palette, titled) if figure.kind == "images" else _draw_grid(figure, palette, titled)


def _draw_grid(figure: Figure, palette: Palette, titled: bool) -> "Canvas":
    from matplotlib.figure import Figure as Canvas

    rows, columns = _grid(len(figure.panels), figure.options.get("columns"))
    canvas = Canvas(figsize=_size(figure.kind, rows, columns), layout="constrained")
    axes = list(canvas.subplots(rows, columns, sharex=figure.kind != "bars", sharey=True, squeeze=False).flat)
    for spare in axes[len(figure.panels) :]:
        spare.remove()
    axes = axes[: len(figure.panels)]
    for one, panel in zip(axes, figure.panels, strict=True):
        _DRAW[figure.kind](one, panel, figure, palette)
        one.set_title(panel.title)
    _label_axes(axes, columns, figure)
    if figure.kind == "field":
        scale, words = pictures.field_scale(figure), figure.options["value_label"]
        canvas.colorbar(scale, ax=axes, label=words, aspect=18 * rows, pad=0.02).outline.set_visible(False)
    _add_header(canvas, figure.title if titled else "", _legend(figure, axes, palette))
    return canvas


def _size(kind: str, rows: int, columns: int) -> tuple[float, float]:
    """Inches of all panels together; many side by side are made smaller, so that the print keeps its size."""
    alone, (width, height) = _SIZES.get(kind, _USUAL)
    if rows == columns == 1:
        return alone
    shrink = min(1.0, _WIDEST / (width * columns))
    return width * columns * shrink, height * rows * (shrink if kind in _SIZES else max(shrink, _LEAST))


def _grid(panels: int, asked: int | None) -> tuple[int, int]:
    columns = asked or (panels if panels <= 3 else 2 if panels == 4 else min(4, math.ceil(math.sqrt(panels))))
    return math.ceil(panels / columns), columns


def _label_axes(axes: "list[Axes]", columns: int, figure: Figure) -> None:
    """Words on the outer edges only; an axis with nothing below it is an outer edge too."""
    for i, one in enumerate(axes):
        if i % columns == 0:
            one.set_ylabel(figure.y_label)
        if i + columns >= len(axes) and figure.kind != "reliability":
            one.set_xlabel(figure.x_label)
            one.tick_params(labelbottom=True)


def _legend(figure: Figure, axes: "list[Axes]", palette: Palette) -> "dict[str, Artist]":
    """What the legend shows, each label once; none where the panels' titles say it, or for one label without a note."""
    found = charts.band_key(figure, palette) if figure.kind == "bands" else {}
    found |= {label: handle for one in axes for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
    series = [(panel, one) for panel in figure.panels for one in panel.data.get("series", ())]
    if len(figure.panels) > 1 and all(panel.title.startswith(one["label"]) for panel, one in series) and series:
        return {}
    return found if len(found) > 1 or any(one.get("note") for _, one in series) else {}


def _add_header(canvas: "Canvas", title: str, key: "dict[str, Artist]") -> None:
    """Title and legend on top, left-aligned; the canvas grows by what they need and the axes keep their size."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    width, height = canvas.get_size_inches()
    lines = textwrap.wrap(title, int(width * 8.8))
    columns = max(1, min(len(key), int(width / (0.5 + 0.067 * max(map(len, key), default=0)))))
    above, below = (_TITLE * len(lines) + 0.14) * bool(lines), _KEY * math.ceil(len(key) / columns)
    total = height + above + below + 0.1 * bool(key)
    canvas.set_size_inches(width, total)
    if isinstance(engine := canvas.get_layout_engine(), ConstrainedLayoutEngine):
        engine.set(rect=(0, 0, 1, height / total), w_pad=0.07, h_pad=0.07)
    canvas.text(0.08 / width, 1 - 0.07 / total, "\n".join(lines), fontsize=11.5, weight="bold", va="top")
    if key:
        corner = (0.0, 1 - above / total)
        canvas.legend(key.values(), key.keys(), loc="upper left", bbox_to_anchor=corner, ncols=columns, borderpad=0.2)


def _draw_images(figure: Figure, palette: Palette, titled: bool) -> "Canvas":
    from matplotlib.figure import Figure as Canvas
    from matplotlib.patches import Patch

    canvas = Canvas(figsize=images.images_size(figure))
    key = {label: Patch(color=colour) for label, colour in images.vote_colours(figure).items()}
    before = canvas.get_figheight()
    _add_header(canvas, figure.title if titled else "", dict(key))
    images.draw_images(canvas, figure, palette, canvas.get_figheight() - before)
    return canvas


def _opening(title: str) -> Callable[[re.Match[str]], str]:
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")

    def opening(match: re.Match[str]) -> str:
        width = round(_SCREEN * float(match.group(1).split()[2]))
        links = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        return f'<svg {links} role="img" aria-label="{label}" style="max-width:{width}px" viewBox="{match.group(1)}">'

    return opening
