"""Commands that only hand on: the work behind them has tests of its own."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dubito import demo, selfcheck, studies
from dubito.cli import app
from dubito.results import Result


def test_the_demo_is_run_as_asked(dubito, monkeypatch):
    asked = []
    monkeypatch.setattr(demo, "run", lambda folder, **settings: asked.append((folder, settings)))
    dubito("demo")
    dubito("demo", "--folder", "shown", "--quick", "-q")
    quick = {"quick": True, "progress": False}
    assert asked == [(Path("demo"), {"quick": False, "progress": True}), (Path("shown"), quick)]


def test_studies_are_listed(dubito):
    listed = dubito("study").stdout
    for name in studies.names():
        assert name in listed


def test_a_study_is_run_as_asked(dubito, monkeypatch):
    asked = []
    monkeypatch.setattr(studies, "run", lambda name, **settings: asked.append((name, settings)))
    dubito("study", "coin", "--quick", "--folder", "found", "--device", "cpu", "--seed", "3", "-q")
    settings = {"quick": True, "device": "cpu", "folder": Path("found"), "seed": 3, "progress": False, "workers": 1}
    assert asked == [("coin", settings)]


def test_a_study_that_was_stopped_says_how_to_go_on(in_folder, monkeypatch):
    def stopped(name, **settings):
        raise KeyboardInterrupt("stopped after 3 steps; its .posterior is what it reached")

    monkeypatch.setattr(studies, "run", stopped)
    found = CliRunner().invoke(app, ["study", "coin"])
    assert found.exit_code == 130 and found.stderr == "dubito: stopped by the user; run the same command again\n"
    (in_folder / "results" / "runs").mkdir(parents=True)
    assert "goes on from what is kept in results/runs" in CliRunner().invoke(app, ["study", "coin"]).stderr


def test_several_studies_are_run_one_after_another(dubito, monkeypatch):
    asked = []
    monkeypatch.setattr(studies, "run", lambda name, **settings: asked.append(name))
    dubito("study", "toy-2d", "coin", "--quick", "-q")
    assert asked == ["toy-2d", "coin"]
    asked.clear()
    dubito("study", "--all", "--quick", "-q")
    assert asked == list(studies.names())


def test_an_unknown_study_is_refused_before_any_is_run(refused, monkeypatch):
    monkeypatch.setattr(studies, "run", lambda name, **settings: pytest.fail("a study was run"))
    assert "there is no study 'coni'; did you mean 'coin'?" in refused("study", "toy-2d", "coni")


@pytest.mark.parametrize(("passed", "status"), [(True, 0), (False, 1)])
def test_selfcheck_says_by_its_exit_status_whether_all_is_right(monkeypatch, passed, status):
    asked = []

    def run(quick, progress, workers):
        asked.append((quick, progress, workers))
        return Result("selfcheck", "Every method", "10 methods", numbers={"passed": passed})

    monkeypatch.setattr(selfcheck, "run", run)
    result = CliRunner().invoke(app, ["selfcheck", "--quick", "-q"])
    assert result.exit_code == status
    assert "Every method" in result.stdout
    assert asked == [(True, False, os.cpu_count())]
