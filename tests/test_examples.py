"""The examples run as they are, and show what they say they show."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run an example in an empty folder; returns the names it leaves."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)

    def run_example(name: str) -> dict[str, Any]:
        return runpy.run_path(str(next(path for path in EXAMPLES if path.stem == name)), run_name="__main__")

    return run_example


def test_there_is_a_test_for_every_example():
    assert {f"test_{path.stem}" for path in EXAMPLES} <= set(globals())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_on_a_screen_and_says_what_it_is(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert text.startswith('"""')


def test_quickstart(run):
    names = run("quickstart")
    right, entropy = names["right"], names["prediction"].entropy
    assert right.float().mean() > 0.9
    assert entropy[~right].mean() > 2 * entropy[right].mean()


def test_regression_bands(run, tmp_path):
    names = run("regression_bands")
    ignorance = names["prediction"].epistemic[:, 0].sqrt()
    at_data = (names["x"] - names["data"].x.T).abs().amin(1) < 0.1
    assert ignorance[0] > 2 * ignorance[at_data].mean()
    assert ignorance[-1] > 2 * ignorance[at_data].mean()
    assert (tmp_path / "bands.html").stat().st_size > 1000


def test_chain_on_disk(run, tmp_path):
    names = run("chain_on_disk")
    assert len(names["reopened"]) == 2 * 80  # two chains, (1000 - 200) / 10 samples each
    assert torch.equal(names["reopened"].thetas(160), names["posterior"].thetas(160))
    steps = (tmp_path / "runs/chain/history.jsonl").read_text().count('"step": 600,')
    assert steps == 1  # the second call went on where the first had stopped


def test_own_likelihood(run, capsys):
    run("own_likelihood")
    gaussian, laplace = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines())
    assert laplace < gaussian / 2


def test_own_loop(run):
    names = run("own_loop")
    posterior = names["posterior"]
    assert len(posterior) == 3 * 70  # three chains, (1000 - 300) / 10 samples each
    near, far = posterior.predict(torch.tensor([[2.0, 2.0], [5.0, -5.0]])).bald
    assert far > 10 * near


def test_distil_a_chain(run, capsys):
    found = run("distil_a_chain")["result"].numbers
    assert all(one["bytes"] < found["chain"]["bytes"] / 3 for name, one in found.items() if name != "chain")
    assert all(one["scores"]["accuracy"] > 0.95 for one in found.values())
    assert all(found[name]["nearness"]["total variation"] < 0.1 for name in ("mixture", "generator"))
    assert all(one["detection"]["bald"] > 0.7 for name, one in found.items() if name != "student")
    assert "a student is one network that has learnt its teacher's average" in capsys.readouterr().out
