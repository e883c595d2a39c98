"""Results as a page: one self-contained HTML file, or Markdown with PNG figures beside it."""

import base64
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dubito.report.cells import flat, is_numeric, table_text
from dubito.report.figures import css_variable, inline_svg, render, write_figures
from dubito.report.style import DARK, Palette
from dubito.results import Figure, Result, Table, made_folder, write_whole

_HEAVY = 300_000  # an SVG longer than this is shown as a PNG instead


def write_html(results: Sequence[Result], path: str | Path, title: str) -> Path:
    """Write one page that needs no other file and no network, readable by day and by night and on a small screen."""
    import jinja2

    source = Path(__file__).with_name("page.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    palette = Palette(figure for result in results for figure in result.figures)
    parts = [_part(result, palette, f"r{i}") for i, result in enumerate(results)]
    colours = [(css_variable(light), light, dark) for light, dark in DARK.items()]
    text = environment.from_string(source).render(title=title, parts=parts, colours=colours)
    return _write(path, text)


def write_markdown(results: Sequence[Result], path: str | Path, figures: str | Path | None = None) -> Path:
    """Write a Markdown page and its figures as PNG into `figures`, by default a folder named like the page."""
    path = Path(path)
    folder = path.with_suffix("") if figures is None else Path(figures)
    blocks = [block for result in results for block in _markdown(result, path, folder)]
    return _write(path, "\n\n".join(blocks) + "\n")


def _write(path: str | Path, text: str) -> Path:
    path = Path(path)
    made_folder(path.parent)
    write_whole(path, text.encode())
    return path


def _part(result: Result, palette: Palette, prefix: str) -> dict[str, Any]:
    """What the template needs of one result."""
    folds = {"Settings": result.settings, "Numbers": result.numbers, "Environment": result.environment}
    return {
        "id": prefix,
        "title": result.title,
        "summary": _paragraphs(result.summary),
        "tables": [_table(table) for table in result.tables],
        "figures": [_picture(figure, palette, f"{prefix}-{figure.name}") for figure in result.figures],
        "folds": [(name, list(flat(values))) for name, values in folds.items() if values],
    }


def _table(table: Table) -> dict[str, Any]:
    sides = ["number" if numeric else "text" for numeric in is_numeric(table)]
    rows = [list(zip(row, sides, strict=True)) for row in table_text(table)]
    heads = list(zip(table.columns, sides, strict=True))
    return {"title": table.title, "note": table.note, "heads": heads, "rows": rows}


def _picture(figure: Figure, palette: Palette, prefix: str) -> dict[str, str]:
    svg = inline_svg(figure, palette, prefix)
    words = {"title": figure.title, "caption": figure.caption}
    if len(svg) <= _HEAVY:
        return {**words, "svg": svg}
    png = base64.b64encode(render(figure, palette, "png", titled=False)).decode()
    return {**words, "png": f"data:image/png;base64,{png}"}


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def _markdown(result: Result, path: Path, folder: Path) -> list[str]:
    blocks = [f"## {_plain(result.title)}", *map(_plain, _paragraphs(result.summary))]
    for table in result.tables:
        blocks += [f"**{_plain(table.title)}**", _markdown_table(table), *map(_plain, _paragraphs(table.note))]
    for figure, image in zip(result.figures, write_figures(result, folder) if result.figures else (), strict=True):
        link = Path(os.path.relpath(image, path.parent)).as_posix()
        blocks += [f"![{_plain(figure.title)}]({link})", *map(_plain, _paragraphs(figure.caption))]
    made = [f"{name} {text}" for name, text in flat(result.environment)]
    return blocks + ([f"<sub>{' · '.join(made)}</sub>"] if made else [])


def _markdown_table(table: Table) -> str:
    rule = ["---:" if numeric else "---" for numeric in is_numeric(table)]
    rows = [list(table.columns), rule, *table_text(table)]
    return "\n".join("| " + " | ".join(_plain(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)


def _plain(text: str) -> str:
    """One line in which no word is taken for an HTML tag."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", " ".join(text.splitlines()))
