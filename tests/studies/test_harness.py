import json
from pathlib import Path

import pytest
import torch
from torch import nn

from dubito import plots, studies
from dubito.data import DataError, toys
from dubito.methods.map import MAP
from dubito.results import Result, Table
from dubito.studies import base


def measure(settings: base.Settings) -> Result:
    series = [plots.Series("measured", [1.0, 2.0], [0.0, 1.0])]
    figure = plots.lines("curve", "A curve", series, x_label="x", y_label="y")
    table = Table("Numbers", ("what", "value"), [("seed", settings.seed)])
    return Result("made", "Made", "Found.", {"seed": settings.seed}, [table], [figure], {"own": 1})


MADE = base.Study("made", "A made study", "nobody", "nothing at all", measure)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "_registry", lambda: {"made": MADE})


def test_the_package_is_scanned():
    assert {"coin", "default-prior", "linear-regression", "sine-regression", "toy-2d"} <= set(studies.names())
    for name in studies.names():
        study = studies.find(name)
        assert study.name == name and study.title and study.source and study.shows


def test_why_figures_differ_is_said_once_with_the_result(monkeypatch, tmp_path):
    told = base.Study("made", "A made study", "nobody", "nothing at all", measure, why="Ours is smaller.")
    monkeypatch.setattr(studies, "_registry", lambda: {"made": MADE})
    studies.run("made", folder=tmp_path, device="cpu")  # written before anybody had an explanation
    monkeypatch.setattr(studies, "_registry", lambda: {"made": told})
    for _ in range(2):
        assert studies.write_docs(tmp_path, tmp_path / "results.md").read_text().count("Ours is smaller.") == 1
        studies.run("made", folder=tmp_path, device="cpu")
    longer = base.Study("made", "A made study", "nobody", "nothing at all", measure, why="Ours is smaller. And slow.")
    monkeypatch.setattr(studies, "_registry", lambda: {"made": longer})
    page = studies.write_docs(tmp_path, tmp_path / "results.md").read_text()
    assert page.count("Ours is smaller.") == page.count("And slow.") == 1


def test_an_unknown_name_is_one_sentence_with_the_closest_one():
    with pytest.raises(ValueError, match=r"no study 'coins'; did you mean 'coin'\?"):
        studies.find("coins")


def test_a_run_writes_prints_and_returns_the_same(made, tmp_path, capsys):
    result = studies.run("made", folder=tmp_path, seed=3)
    stored = Result.load(tmp_path / "made.json")
    assert stored.numbers == result.numbers == {"seed": 3}
    assert stored.settings == {"quick": False, "device": "auto", "seed": 3, "own": 1}
    assert {"commit", "cpu", "torch", "device", "threads", "seconds"} <= set(stored.environment)
    assert stored.title == "A made study" and stored.summary.endswith("Source: nobody")
    assert (tmp_path / "figures" / "made-curve.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "A made study" in printed and "Numbers" in printed and str(tmp_path / "made.json") in printed


def test_a_quick_run_leaves_the_full_result_alone(made, tmp_path):
    studies.run("made", folder=tmp_path, seed=1)
    full = (tmp_path / "made.json").read_bytes()
    quick = studies.run("made", folder=tmp_path, seed=2, quick=True)
    assert (tmp_path / "made.json").read_bytes() == full
    assert Result.load(tmp_path / "quick" / "made.json").numbers == {"seed": 2}
    assert "quick run" in quick.summary


def test_a_folder_that_cannot_be_written_is_found_before_the_work(made, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setattr(studies, "_completed", lambda *_: pytest.fail("the study ran"))
    with pytest.raises(ValueError, match=r"cannot write to .*choose another folder"):
        studies.run("made", folder=tmp_path / "taken")


def test_the_page_holds_every_result_and_links_to_its_figures(made, tmp_path):
    studies.run("made", folder=tmp_path / "results")
    page = studies.write_docs(tmp_path / "results", tmp_path / "docs" / "results.md")
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Results\n") and "| `made` | nothing at all |" in text
    assert "## A made study" in text and "](../results/figures/made-curve.png)" in text
    assert not json.loads((tmp_path / "results" / "made.json").read_text())["settings"]["quick"]


def test_a_page_without_results_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no result; run a study first"):
        studies.write_docs(tmp_path, tmp_path / "results.md")


def test_missing_data_sets_are_named_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path))
    found = base.gather(["digits", "notmnist"])  # notmnist has no download
    assert list(found.sets) == ["digits"] and list(found.missing) == ["notmnist"]
    assert found.note == "Run without notmnist, not found here."
    assert base.gather(["digits"]).note == ""


def test_no_data_at_all_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path))
    with pytest.raises(DataError, match="notmnist"):
        base.gather(["notmnist"])


def test_a_built_network_depends_on_the_seed_alone():
    state = torch.get_rng_state()
    nets = [base.built(lambda: nn.Linear(2, 2), base.Settings(seed=seed)) for seed in (0, 0, 1)]
    assert torch.equal(nets[0].weight, nets[1].weight) and not torch.equal(nets[0].weight, nets[2].weight)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_plan_describes_what_it_fits():
    plan = base.Plan(MAP(learning_rate=0.1), nn.Linear(1, 1), steps=3, batch_size=2)
    described = plan.describe()
    assert described["name"] == "MAP" and described["weights"] == 2 and "members" not in described
    posterior = plan.fit(toys.line(), base.Settings(device="cpu", progress=False))
    assert posterior.about["steps"] == 3 and posterior.about["batch_size"] == described["batch_size"] == 2


def test_published_numbers_keep_their_digits():
    table = base.against_published("t", [("a", 0.02433, 0.0243302, "")])
    assert table.formats["measured"] == ".5g" and table.rows[0][3] == pytest.approx(2e-7, rel=1e-6)


def test_results_are_found_where_they_were_written(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    studies.run("made")
    assert Path("results/made.json").is_file()
    assert studies.write_docs() == Path("docs/results.md")
