"""Quick runs of the studies whose answers are not exact: every line runs, and what must hold at any size holds."""

import math

import numpy as np
import pytest

from dubito import studies
from dubito.priors import FanIn
from dubito.studies import default_prior
from dubito.studies.base import Settings


def test_toy_2d(tmp_path):
    result = studies.run("toy-2d", quick=True, device="cpu", folder=tmp_path, progress=False)
    rows = result.numbers["rows"]
    assert list(rows) == ["HMC", "SGLD", "Deep ensemble", "MC dropout", "MAP"]
    assert rows["MAP"][3:5] == [None, None] and rows["HMC"][5] is None
    assert all(0 <= row[5] <= 1 for name, row in rows.items() if name != "HMC")
    assert all(0 <= row[i] <= math.log(2) + 1e-6 for row in rows.values() for i in (1, 2))
    field = result.figures[0].panels[0].data
    assert field["values"].shape == (21, 21) and len(result.figures[0].panels) == 5
    low, high = field["points"]
    assert np.mean(low["x"]) < 0 and np.mean(low["y"]) < 0 < np.mean(high["y"])
    assert np.mean(field["values"][0, 0]) < field["values"][0, -1]  # less doubt behind a class than between the two


def test_sine_regression(tmp_path):
    result = studies.run("sine-regression", quick=True, device="cpu", folder=tmp_path, progress=False)
    assert list(result.numbers) == ["MAP", "Deep ensemble", "MC dropout", "VI", "SGHMC"]
    assert result.numbers["MAP"][3:] == [None] * 4
    assert all(value > 0 for name in ("Deep ensemble", "MC dropout", "SGHMC") for value in result.numbers[name][3:])
    assert [series["label"] for series in result.figures[1].panels[0].data["series"]] == list(result.numbers)[1:]
    assert result.settings["methods"]["SGHMC"]["weights"] == 2152


def test_default_prior(tmp_path):
    result = studies.run("default-prior", quick=True, device="cpu", folder=tmp_path, progress=False)
    assert f"fan-in, gain {FanIn().gain:.3g}" in result.numbers["digits"]
    assert len(result.tables) == 3 and "loses least" in result.summary


def test_losses_are_against_the_best_prior_of_each_network():
    outcomes = {"a": {"n": 1.0, "m": 5.0}, "b": {"n": 3.0, "m": 2.0}}
    grid = {p: {n: default_prior.Outcome(v, 0.5, 1.0) for n, v in row.items()} for p, row in outcomes.items()}
    assert default_prior.losses(grid) == {"a": [0.0, 3.0], "b": [2.0, 0.0]}
    assert default_prior.ranking({"x": grid, "y": grid}) == {"a": (1.5, 3.0), "b": (1.0, 2.0)}


def test_validation_rows_are_no_training_rows():
    problem = default_prior.problems(Settings())["digits"]
    assert len(problem.train.x) == 300 and len(problem.validation.x) == 1052
    trained = {tuple(row) for row in problem.train.x.tolist()}
    assert not any(tuple(row) in trained for row in problem.validation.x.tolist())


@pytest.mark.parametrize("quick", [True, False])
def test_the_default_is_always_among_the_candidates(quick):
    assert FanIn() in default_prior.candidates(Settings(quick=quick)).values()
