import importlib
import json
import math

import pytest
import torch
from benchmarks import __main__ as front
from benchmarks import growth, page
from benchmarks.common import Claim, Peak, Tally, Where, each_logged_step, each_step, report, write
from benchmarks.floors import recording

CLAIMS = [name for name in front.NAMES["cuda"] if name != "growth"]


@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_for_a_gpu_can_be_tried_without_one(name, tmp_path):
    where = Where("cpu", tmp_path, quick=True)
    importlib.import_module(front.NAMES["cuda"][name]).run(where)
    record = json.loads((tmp_path / f"{name.replace('_', '-')}-cpu.json").read_text())
    ours = [values for label, values in record["values"].items() if label.startswith("dubito")]
    floors = [values for label, values in record["values"].items() if label.startswith("floor")]
    assert ours and floors and all(v > 0 for values in ours + floors for v in values)
    assert record["claims"] and all(math.isfinite(claim["measured"]) for claim in record["claims"])
    assert (
        record["quick"] and record["environment"]["torch"] and not any("dubito" in f for f in record["notes"]["failed"])
    )


def test_a_benchmark_that_breaks_off_leaves_the_others_running(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(
        front.NAMES, "cpu", {"no_such": "benchmarks.no_such", "stored_chain": "benchmarks.stored_chain"}
    )
    assert front.main(["--quick", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "no_such broke off: ModuleNotFoundError" in said.partition("Claims on cpu")[2]
    assert "stored_chain: 1 s over the time to open" in said.partition("Claims on cpu")[2]
    assert "broke off" in json.loads((tmp_path / "quick/no-such-cpu.json").read_text())
    assert json.loads((tmp_path / "quick/stored-chain-cpu.json").read_text())["claims"]


def test_an_unknown_name_is_refused(capsys):
    assert front.main(["nonsense"]) == 2 and "sgld_steps" in capsys.readouterr().out


def test_limits_hold_on_their_own_side_and_what_failed_holds_nothing():
    assert Claim("a", 1.0, least=1.0).holds and not Claim("a", 0.9, least=1.0).holds
    assert Claim("a", 1.0, most=1.0).holds and not Claim("a", 1.1, most=1.0).holds
    assert Claim("a", math.nan).holds and not Claim("a", math.nan, most=1.0).holds
    assert str(Claim("a", 2.0, most=1.0)) == "a: 2 (at most 1 claimed: FAILS)"


def test_a_candidate_that_fails_is_noted(tmp_path):
    tally = Tally(Where("cpu", tmp_path, quick=True))
    tally.add("good", lambda: [2.0, 4.0, 3.0])
    tally.add("bad", lambda: [1 / 0])
    assert tally.median("good") == 3.0 and math.isnan(tally.ratio("good", "bad"))
    assert tally.failures["bad"].startswith("failed, ZeroDivisionError")
    assert not tally.report("name", "title", "s", [Claim("bad", tally.median("bad"), most=1.0)])


def test_steps_are_timed_by_records_without_the_first_and_the_last():
    def fit(callback):
        for step in range(0, 100, 2):
            callback({"step": step})

    found = each_logged_step(fit)
    assert len(found) >= 10 and all(s >= 0 for s in found)
    with pytest.raises(ValueError, match="too short"):
        each_logged_step(lambda callback: callback({"step": 1}))
    taken = []
    assert len(each_step(taken.append, 50, "cpu")) == 10 and set(taken) == {5}


def test_floors_of_stacked_networks_agree_with_the_networks():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    held = recording.stacked(net, 2)
    x = torch.randn(6, 5)
    for copy in range(2):
        w1, b1, w2, b2 = (p[copy] for p in held)
        expected = (x @ w1 + b1).relu() @ w2 + b2
        torch.testing.assert_close(recording.outputs(held, x)[copy], expected)


def test_a_feed_goes_round_and_stays_in_place():
    x, y = torch.arange(7.0)[:, None], torch.arange(7)
    feed = recording.Feed(x, y, 3)
    place, seen = feed.x.data_ptr(), []
    for _ in range(4):
        feed.move()
        seen.append(feed.y.tolist())
    assert seen == [[0, 1, 2], [3, 4, 5], [1, 2, 3], [4, 5, 6]] and feed.x.data_ptr() == place


def measured(tmp_path):
    """A folder with one small record of each device."""
    where = Where("cpu", tmp_path / "measured")
    points = [
        {"at": at, "seconds": [0.1 * at, 0.2 * at, 0.15 * at], "MiB": None if at == 1 else 2.0 * at} for at in (1, 2, 4)
    ]
    claims = [Claim("ours over theirs", 2.5, least=2.0), Claim("seconds", 3.0, most=1.0), Claim("only shown", 7.0)]
    curves = {"draws": {"predict": points}, "rows": {"predict": [{"at": 1, "seconds": [1.0], "MiB": None}]}}
    report(
        where, "some", "A job, small", "s", {"dubito": [1.0, 3.0, 2.0]}, claims, memory={"dubito": 5.0}, curves=curves
    )
    write(where, "broken", {"title": "Another job", "broke off": "ValueError: no"})
    return where.folder


def test_the_page_shows_claims_numbers_failures_and_figures(tmp_path):
    out = tmp_path / "docs/performance.md"
    assert page.main(["--measured", str(measured(tmp_path)), "--out", str(out)]) == out
    text = out.read_text()
    assert "| CPU | A job | ours over theirs | 2.5 | at least 2 | yes |" in text
    assert "| CPU | A job | seconds | 3 | at most 1 | no |" in text
    assert "| only shown | 7 | – | – |" in text and text.count("only shown") == 1
    assert "| CPU | Another job | ValueError: no | – |  | no |" in text
    assert "| dubito | 2.000 | 1.000 | 3.000 | 3 | 5.000 |" in text
    figures = sorted(p.name for p in (tmp_path / "docs/performance").iterdir())
    assert figures == [f"some-cpu-{name}.png" for name in ("draws-mib", "draws-seconds", "rows-seconds")]
    assert all(f"performance/{name}" in text for name in figures)


def test_a_page_needs_measurements(tmp_path):
    with pytest.raises(FileNotFoundError, match="run `python -m benchmarks` first"):
        page.write_page(tmp_path, tmp_path / "page.md")


def test_growth_is_measured_along_every_axis(tmp_path):
    assert growth.run(Where("cpu", tmp_path, quick=True))
    record = json.loads((tmp_path / "growth-cpu.json").read_text())
    assert not record["notes"]["failed"] and set(record["curves"]) == {"draws", "weights", "rows", "members"}
    for jobs in record["curves"].values():
        for points in jobs.values():
            places = [point["at"] for point in points]
            assert len(places) == 2 and places == sorted(places) and all(s > 0 for p in points for s in p["seconds"])
    net = torch.nn.Sequential(torch.nn.Linear(784, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 10))
    assert record["curves"]["weights"]["predict"][1]["at"] == sum(p.numel() for p in net.parameters())


def test_peak_memory_counts_what_is_taken_and_given_back():
    with Peak("cpu") as peak:
        torch.ones(64 << 18)  # 64 MiB, gone at once
    assert peak.mib is None or 60 < peak.mib < 200


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_said(capsys):
    assert front.main(["--device", "cuda"]) == 2 and "no CUDA device" in capsys.readouterr().out
