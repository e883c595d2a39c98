"""The demo: what a network that doubts can do and a plain one cannot, on data that come with the library."""

import io
from pathlib import Path

from dubito.demo import problems, toy_figures
from dubito.demo.reading import Reading
from dubito.report import print_result, write_figures, write_html
from dubito.report.figures import render
from dubito.report.style import Palette
from dubito.results import Cell, Result, Table, environment
from dubito.runtime import one_thread
from dubito.studies.base import Settings

TITLE = "Networks that doubt"


def run(folder: str | Path = "demo", quick: bool = False, progress: bool = True) -> Result:
    """Fit every method, print a table, and write report.html, demo.json and figures into `folder`.

    quick: the same page from runs of a few steps, whose numbers mean nothing. progress: say what is being fitted.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with one_thread():
        result = _measured(Settings(quick, "cpu", progress=progress))
    result.save(folder / "demo.json")
    write_figures(result, folder / "figures")
    page = write_html([result], folder / "report.html", TITLE)
    print_result(result)
    print(f"\nThe whole report, with pictures: {page}")
    return result


def draw_picture(path: str | Path, quick: bool = False, progress: bool = True) -> None:
    """Write the doubt of every method on the plane, side by side, as a PNG."""
    settings = Settings(quick, "cpu", progress=progress)
    problem = problems.plane(settings)
    with one_thread():
        fits = problem.fit(settings)
        figure, _ = toy_figures.plane(fits, problem.data, settings, columns=len(fits))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(_small(render(figure, Palette([figure]), "png", titled=False)))


def _small(png: bytes) -> bytes:
    """The same picture with a palette, in a third of the bytes."""
    from PIL import Image

    buffer = io.BytesIO()
    few = Image.open(io.BytesIO(png)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
    few.save(buffer, "png", optimize=True)
    return buffer.getvalue()


def _measured(settings: Settings) -> Result:
    digits, inputs = problems.digits(settings)
    plane, line = problems.plane(settings), problems.line(settings)
    fits = {problem.name: problem.fit(settings) for problem in (digits, plane, line)}
    reading = Reading(fits["digits"], inputs, settings)
    plane_figure, plane_numbers = toy_figures.plane(fits["plane"], plane.data, settings)
    line_figure, line_numbers = toy_figures.line(fits["line"], line.data, settings)
    weights = sum(p.numel() for p in digits.plans[problems.PLAIN].net.parameters())
    table = reading.table()
    return Result(
        "demo",
        TITLE,
        summary=reading.summary(weights, len(digits.data.y)),
        numbers={"digits": _records(table), "plane": plane_numbers, "line": line_numbers},
        tables=[table],
        figures=[
            reading.fooled(),
            reading.same_images(),
            reading.entropy(),
            reading.most_doubted(),
            reading.reliability(),
            plane_figure,
            line_figure,
        ],
        settings={problem.name: problem.describe() for problem in (digits, plane, line)},
        environment=environment(),
    )


def _records(table: Table) -> dict[str, dict[str, Cell]]:
    """A table as {row: {column: value}}."""
    return {str(row[0]): dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.rows}
