import csv
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from dubito.cli import app

Invoke = Callable[..., Result]


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    """Every test works in a folder of its own, and leaves the import path as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.fixture
def dubito() -> Invoke:
    """Run a command in this process: it must succeed."""

    def invoke(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result

    return invoke


@pytest.fixture
def refused() -> Callable[..., str]:
    """Run a command that must fail as a user's mistake does: exit status 2 and one line, which is returned."""

    def invoke(*arguments: object) -> str:
        quiet = ["-q"] if arguments[0] == "fit" else []
        result = CliRunner().invoke(app, [*(str(argument) for argument in arguments), *quiet])
        assert result.exit_code == 2, result.output
        assert result.stderr.startswith("dubito: ")
        assert result.stderr.count("\n") == 1
        assert "Traceback" not in result.output
        return result.stderr

    return invoke


@pytest.fixture
def table(in_folder) -> Callable[..., Path]:
    """Write a CSV file."""

    def write(name: str, header: list[str], rows: list[list[object]]) -> Path:
        with (in_folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        return in_folder / name

    return write


@pytest.fixture
def pets(table) -> Path:
    """Cats and dogs, told apart by two columns of very different units."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(60):
        dog = i % 2
        rows.append([4 + 20 * dog + rng.normal(), 0.01 * (1 + dog) + 0.001 * rng.normal(), "dog" if dog else "cat"])
    return table("pets.csv", ["weight", "ear", "kind"], rows)


@pytest.fixture
def prices(table) -> Path:
    """A target far from 0 and 1: 5000 + 300 z + noise of 30."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=80)
    rows = [[100 + 10 * value, 5000 + 300 * value + 30 * rng.normal()] for value in z]
    return table("prices.csv", ["area", "price"], rows)


@pytest.fixture
def pet_flags(pets) -> list[str]:
    """A fit of `pets` that takes a moment."""
    net = ["--net", "mlp", "--net-args", '{"sizes": [2, 8, 2]}']
    return ["fit", "--data", "pets.csv", *net, "--method", "map", "--steps", "60", "--folder", "run"]
