"""One small figure of every kind."""

import numpy as np
import pytest

from dubito import plots
from dubito.plots import Band, Series
from dubito.results import Figure, Result, Table

X = np.linspace(0.1, 1.0, 10)


def _figures() -> list[Figure]:
    rng = np.random.default_rng(0)
    names = ["MAP", "deep ensemble", "SGLD"]
    curves = [Series(name, X * i, X, low=X * i - 0.1, high=X * i + 0.1) for i, name in enumerate(names)]
    binned = [Series("digits", rng.random(9), note="n = 9"), Series("letters", rng.random(9))]
    pixels, votes = rng.random((3, 8, 8)), rng.integers(0, 9, (3, 10))
    doubted = plots.images("images", "Doubted", pixels, ["a\n1", "b\n2", "c\n3"], votes=votes, truth=[1, 2, 3])
    plane = [Series("class 0", X, X), Series("class 1", -X, X)]
    grid = np.linspace(-1, 1, 20)
    values = np.hypot(*np.meshgrid(grid, grid))
    fields = {name: plots.field("f", "F", grid, grid, values, plane, value_label="entropy") for name in names}
    intervals = [Band("50 %", X - 0.2, X + 0.2), Band("90 %", X - 0.5, X + 0.5)]
    return [
        plots.lines("lines", "Lines", [*curves, Series("exact", X, X, style="dashed")], x_label="x", y_label="y"),
        plots.scatter(
            "scatter", "Scatter", curves[1:], x_label="x", y_label="y", diagonal=True, log_x=True, log_y=True
        ),
        plots.bars("bars", "Bars", ["one", "a much longer name"], [Series("SGLD", [0.4, 0.5])], y_label="AUROC"),
        plots.histogram("histogram", "Histogram", X, binned, x_label="entropy", y_label="density"),
        plots.reliability("reliability", "Reliability", [Series("SGLD", X, X, weight=np.arange(10))]),
        plots.panels("images", "Images", {"SGLD": doubted, "MAP": doubted}),
        plots.panels("field", "Field", fields),
        plots.bands("bands", "Bands", X, X, intervals, points=Series("data", X, X), truth=Series("truth", X, X)),
    ]


@pytest.fixture(scope="session")
def figures() -> dict[str, Figure]:
    return {figure.kind: figure for figure in _figures()}


@pytest.fixture(scope="session")
def result(figures) -> Result:
    table = Table("Scores <b>", ["method", "NLL", "BALD"], [["SGLD", 0.1, 0.25], ["MAP", 0.2, None]], "A note.")
    return Result(
        "demo",
        "A demonstration & more",
        "One.\n\nTwo.",
        numbers={"accuracy": {"SGLD": 0.5}},
        tables=[table],
        figures=list(figures.values()),
        settings={"seed": 0, "sizes": list(range(20))},
        environment={"python": "3.11"},
    )
