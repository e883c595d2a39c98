"""Results: round trips, refusals, damaged files, environment."""

import json
import math
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dubito import plots, results
from dubito.results import Figure, Panel, Result, Table


def make(**changes):
    big, small = np.arange(600.0).reshape(3, 10, 20), np.array([1.0, 2.0, 3.0])
    picture = plots.images("digits", "Digits", big, ["a", "b", "c"])
    curve = plots.lines("curve", "Curve", [plots.Series("SGLD", small, small)], x_label="x", y_label="y")
    values = {
        "name": "demo",
        "title": "A demonstration",
        "summary": "First.\n\nSecond.",
        "numbers": {"accuracy": {"SGLD": np.float64(0.5)}, "lost": math.nan, "far": -math.inf, "counts": np.arange(3)},
        "tables": [Table("Scores", ["method", "score"], [["SGLD", 0.5], ["MAP", None]], "note", {"score": ".2f"})],
        "figures": [picture, curve],
        "settings": {"steps": 10, "sizes": (2, 3)},
        "environment": {"python": "3.11"},
        "arrays": {"pixels": big, "file": small},
    }
    return Result(**(values | changes))


def test_everything_survives_the_round_trip(tmp_path):
    result = make()
    again = Result.load(result.save(tmp_path / "deep" / "demo.json"))
    for key in ("name", "title", "summary", "tables", "settings", "environment"):
        assert getattr(again, key) == getattr(result, key)
    assert again.numbers["accuracy"] == {"SGLD": 0.5}
    assert math.isnan(again.numbers["lost"])
    assert again.numbers["far"] == -math.inf
    assert again.numbers["counts"] == [0, 1, 2]
    assert again.arrays.keys() == {"pixels", "file"}
    np.testing.assert_array_equal(again.arrays["pixels"], result.arrays["pixels"])


def test_figures_survive_with_small_data_in_json_and_large_in_npz(tmp_path):
    result = make()
    path = result.save(tmp_path / "demo.json")
    record = json.loads(path.read_text())
    again = Result.load(path)
    assert record["figures"][1]["panels"][0]["data"]["series"][0]["y"] == [1.0, 2.0, 3.0]
    # the figure's pixels are the very array stored under its own name: one copy on disk
    assert record["figures"][0]["panels"][0]["data"]["pixels"] == {"$array": "arrays/pixels"}
    np.testing.assert_array_equal(again.figures[0].panels[0].data["pixels"], result.arrays["pixels"])
    assert [figure.kind for figure in again.figures] == ["images", "lines"]
    assert again.figures[1].options == result.figures[1].options


def test_arrays_of_figures_alone_do_not_appear_among_the_arrays(tmp_path):
    again = Result.load(make(arrays={}).save(tmp_path / "demo.json"))
    assert again.arrays == {}
    assert again.figures[0].panels[0].data["pixels"].shape == (3, 10, 20)


def test_the_json_is_strict_and_no_temporary_file_stays(tmp_path):
    path = make().save(tmp_path / "demo.json")
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["demo.json", "demo.npz"]


def test_no_arrays_no_npz(tmp_path):
    make(arrays={}, figures=[]).save(tmp_path / "demo.json")
    assert [p.name for p in tmp_path.iterdir()] == ["demo.json"]


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = make().save(tmp_path / "demo.json")
    before = path.read_bytes()

    def full(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(results.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        make(title="new").save(path)
    assert path.read_bytes() == before
    assert Result.load(path).title == "A demonstration"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda json_, npz: json_.write_text(json_.read_text()[:100]), "damaged or no dubito result"),
        (lambda json_, npz: json_.write_text("[]"), "damaged or no dubito result"),
        (lambda json_, npz: json_.write_text('{"format": 1, "name": "x"}'), "damaged or no dubito result"),
        (lambda json_, npz: json_.write_bytes(b"\xff\xfe\x00"), "damaged or no dubito result"),
        (lambda json_, npz: json_.write_text(json_.read_text().replace('"format": 1', '"format": 9')), "format 9"),
        (lambda json_, npz: npz.unlink(), "missing; keep both files together"),
        (lambda json_, npz: npz.write_bytes(npz.read_bytes()[:-7]), "is damaged or belongs to another"),
    ],
)
def test_damaged_files_get_one_clear_sentence(tmp_path, damage, message):
    path = make().save(tmp_path / "demo.json")
    damage(path, path.with_suffix(".npz"))
    with pytest.raises(ValueError, match=message) as caught:
        Result.load(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no result at"):
        Result.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make().save("demo.txt"), "end the name in .json"),
        (lambda: make(name="a/b"), "usable as a file name"),
        (lambda: make(numbers={"net": object()}), "numbers.net holds a object"),
        (lambda: make(settings={"$float": 1}), "the key '\\$float' in settings is reserved"),
        (lambda: make(figures=[make().figures[1]] * 2), "two figures of one name"),
        (lambda: Table("T", ["a", "b"], [[1]]), "has 2 columns, but the row"),
        (lambda: Table("T", ["a"], [[1]], formats={"b": ".2f"}), "format for 'b'"),
        (lambda: Figure("x", "pie", "Pie", [Panel({})]), "of kind 'pie'; choose one of lines"),
        (lambda: Figure("x", "lines", "None", []), "has no panel"),
    ],
)
def test_bad_values_are_refused_at_construction(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_objects_in_arrays_are_refused(tmp_path):
    with pytest.raises(ValueError, match="holds Python objects"):
        make(arrays={"bad": np.array([object()])}).save(tmp_path / "demo.json")
    assert list(tmp_path.iterdir()) == []


words = st.text('aé–\n"\\', max_size=4)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(words, plain, max_size=3))
def test_any_json_numbers_survive(tmp_path_factory, numbers):
    path = tmp_path_factory.mktemp("any") / "x.json"
    assert Result.load(Result("x", "X", numbers=numbers).save(path)).numbers == numbers


def test_published_beside_measured():
    rows = [("accuracy", 0.979, 0.975, ""), ("ESS", None, 1200.0, "not published"), ("AUROC", 0.99, None, "no data")]
    table = results.published_beside_measured("Coin", rows)
    assert table.columns == ("quantity", "published", "measured", "difference", "note")
    assert [row[3] for row in table.rows] == [pytest.approx(-0.004), None, None]


def test_environment_tells_machine_and_versions():
    found = results.environment()
    assert found["python"].startswith("3.")
    assert found["cpus"] >= 1
    assert found["numpy"] == np.__version__
    assert found["time"].endswith("+00:00")
    json.dumps(found)


def test_commit_is_of_the_checkout_that_tracks_the_folder(tmp_path):
    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    inside = tmp_path / "package"
    inside.mkdir()
    (inside / "code.py").write_text("1\n")
    assert results._commit(inside) is None
    git("init")
    assert results._commit(inside) is None  # in a checkout, but not part of it
    git("add", ".")
    git("commit", "-m", "first")
    clean = results._commit(inside)
    assert len(clean) == 40
    (tmp_path / "elsewhere").write_text("a result that was just written\n")
    assert results._commit(inside) == clean
    (inside / "code.py").write_text("2\n")
    assert results._commit(inside) == f"{clean}-dirty"
