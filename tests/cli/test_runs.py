"""fit -> predict -> evaluate -> report, in this process."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import dubito as library
from dubito import metrics
from dubito.results import Result


def text(path):
    return Path(path).read_text(encoding="utf-8")


def read(path):
    return list(csv.DictReader(text(path).splitlines()))


def column(path, name):
    return np.array([float(row[name]) for row in read(path)])


def probabilities(path, classes):
    return np.stack([column(path, f"p_{name}") for name in classes], axis=1)


def test_a_table_of_classes_from_fit_to_report(dubito, pet_flags, table):
    said = dubito(*pet_flags, "--method", "sgld", "--set", "burn_in=20", "--set", "thin=4", "--members", "2")
    assert "SGLD: 2 x 10 samples" in said.stdout
    assert "dubito predict run" in said.stdout
    table("new.csv", ["ear", "weight"], [[0.01, 4.0], [0.02, 24.0], [0.015, 500.0]])
    dubito("predict", "run", "--data", "new.csv", "--out", "p.csv")
    rows = read("p.csv")
    assert [row["prediction"] for row in rows[:2]] == ["cat", "dog"]
    assert np.allclose(probabilities("p.csv", ("cat", "dog")).sum(1), 1, atol=1e-5)
    doubts = {
        "entropy",
        "expected_entropy",
        "bald",
        "variation_ratio",
        "vote_ratio",
        "top_spread",
        "std_cat",
        "aleatoric_cat",
        "epistemic_dog",
        "votes_dog",
    }
    assert doubts <= set(rows[0])

    scores = json.loads(dubito("evaluate", "run", "--data", "pets.csv", "--json", "-q").stdout)
    assert (scores["rows"], scores["networks"]) == (60, 20)
    assert scores["accuracy"] > 0.9
    assert "accuracy" in dubito("evaluate", "run", "--data", "pets.csv").stdout

    dubito("report", "run", "--data", "pets.csv", "--out", "page.html")
    page = text("page.html")
    for part in ("How the run went", "Mixing of the chains", "Is it right as often as it claims?", "On pets.csv"):
        assert part in page


def test_the_predictions_are_those_of_the_library(dubito, pet_flags):
    dubito(*pet_flags, "--members", "3", "--method", "deep_ensemble", "-q")
    dubito("predict", "run", "--data", "pets.csv", "--out", "p.npz", "-q")
    found = np.load("p.npz")
    x, y, _ = library.data.read("pets.csv")
    (standard,) = library.data.standardise(x)
    expected = library.load("run").predict(standard)
    assert np.allclose(found["probs"], expected.probs.numpy(), atol=1e-6)
    assert np.allclose(found["bald"], expected.bald.numpy(), atol=1e-6)
    assert found["classes"].tolist() == ["cat", "dog"]
    scores = json.loads(dubito("evaluate", "run", "--data", "pets.csv", "--json", "-q").stdout)
    assert scores["nll"] == pytest.approx(metrics.evaluate(expected, y)["nll"], abs=1e-6)


def test_regression_speaks_in_the_units_of_the_target(dubito, prices):
    net = ["--net", "mlp", "--net-args", '{"sizes": [1, 1]}']
    method = ["--method", "deep_ensemble", "--members", "3", "--set", "learning_rate=0.05", "--steps", "300"]
    dubito("fit", "--data", "prices.csv", *net, *method, "--folder", "run", "-q")
    dubito("predict", "run", "--data", "prices.csv", "--out", "p.csv", "-q")
    dubito("predict", "run", "--data", "prices.csv", "--out", "p.npz", "-q")
    rows = read("p.csv")
    truth = np.array([float(row["price"]) for row in read("prices.csv")])
    mean, std, low, high = (
        np.array([float(row[key]) for row in rows]) for key in ("mean", "std", "lower_90", "upper_90")
    )
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 60
    assert 15 < std.mean() < 60
    assert np.allclose(column("p.csv", "aleatoric") + column("p.csv", "epistemic"), std**2, rtol=1e-3)
    assert np.allclose(np.load("p.npz")["mean"][:, 0], mean, rtol=1e-6)

    scores = json.loads(dubito("evaluate", "run", "--data", "prices.csv", "--json", "-q").stdout)
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((mean - truth) ** 2)), rel=1e-4)
    assert scores["coverage"] == pytest.approx(np.mean((low <= truth) & (truth <= high)))
    normal = np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * ((truth - mean) / std) ** 2)
    assert scores["nll"] == pytest.approx(normal, abs=0.05)
    dubito("report", "run", "--data", "prices.csv", "--out", "page.html")
    assert "Predicted against true" in text("page.html")


def test_digits_with_dropout_and_validation(dubito):
    net = ["--net", "mlp", "--net-args", '{"sizes": [64, 32, 10], "dropout": 0.2}']
    method = ["--method", "mc_dropout", "--set", "learning_rate=0.01", "--epochs", "3", "--validation", "0.1"]
    dubito("fit", "--data", "digits", *net, *method, "--folder", "run", "-q")
    history = [json.loads(line) for line in text("run/history.jsonl").splitlines()]
    assert any("validation" in record for record in history)
    assert json.loads(text("run/run.json"))["settings"]["n_data"] == 1352 - 135
    scores = json.loads(dubito("evaluate", "run", "--data", "digits", "--json", "--draws", "20", "-q").stdout)
    assert scores["rows"] == 445
    assert scores["networks"] == 20
    assert scores["accuracy"] > 0.5
    trained = json.loads(
        dubito("evaluate", "run", "--data", "digits", "--train", "--json", "--draws", "5", "-q").stdout
    )
    assert trained["rows"] == 1352
    dubito("predict", "run", "--data", "digits", "--out", "p.csv", "--draws", "5", "-q")
    assert np.allclose(probabilities("p.csv", "0123456789").sum(1), 1, atol=1e-5)


def test_images_in_npz_keep_their_shape(dubito, in_folder):
    rng = np.random.default_rng(0)
    x, y = rng.random((30, 1, 4, 4), dtype=np.float32), np.arange(30) % 3
    np.savez("images.npz", x=x, y=np.array(["red", "green", "blue"])[y])
    net = ["--net", "small_cnn", "--net-args", '{"side": 4, "classes": 3, "channels": [2], "hidden": 4}']
    dubito("fit", "--data", "images.npz", *net, "--method", "map", "--steps", "3", "--folder", "run", "-q")
    assert json.loads(text("run/data.json"))["x_mean"] is None
    np.savez("new.npz", x=x[:5])
    dubito("predict", "run", "--data", "new.npz", "--out", "p.csv", "-q")
    assert {"p_red", "p_green", "p_blue"} <= set(read("p.csv")[0])


def test_a_single_network_leaves_out_what_it_cannot_know(dubito, pet_flags):
    dubito(*pet_flags, "-q")
    dubito("predict", "run", "--data", "pets.csv", "--out", "p.csv", "-q")
    columns = set(read("p.csv")[0])
    assert {"p_cat", "entropy", "variation_ratio"} <= columns
    assert not {"bald", "vote_ratio", "std_cat"} & columns


def test_a_run_is_repeated_resumed_and_extended_by_its_own_file(dubito, pet_flags, refused):
    sampler = ["--method", "sgld", "--set", "burn_in=0", "--set", "thin=10"]
    dubito(*pet_flags, *sampler, "-q")
    dubito("predict", "run", "--data", "pets.csv", "--out", "a.csv", "-q")
    before = text("run/history.jsonl")
    dubito("fit", "--config", "run/fit.toml", "-q")
    assert text("run/history.jsonl") == before
    dubito("fit", "--config", "run/fit.toml", "--folder", "again", "-q")
    dubito("predict", "again", "--data", "pets.csv", "--out", "b.csv", "-q")
    assert text("a.csv") == text("b.csv")

    dubito("fit", "--config", "run/fit.toml", "--steps", "100", "-q")
    assert len(library.load("run")) == 10
    assert "100" in text("run/fit.toml")
    assert "it cannot be cut to 60" in refused(*pet_flags, *sampler)
    assert "seed: 0 here, 1 there" in refused("fit", "--config", "run/fit.toml", "--seed", "1")
    assert len(library.load("run")) == 10


def test_other_data_do_not_resume_a_run(pet_flags, dubito, refused, pets):
    dubito(*pet_flags, "-q")
    lines = pets.read_text().splitlines()
    pets.write_text("\n".join(lines[:-1]) + "\n")
    assert "run holds another run; n_data: 60 here, 59 there" in refused(*pet_flags)


def test_a_report_of_several_things(dubito, pet_flags, in_folder):
    dubito(*pet_flags, "-q")
    (in_folder / "results").mkdir()
    Result("one", "First result").save("results/one.json")
    Result("two", "Second result").save("results/two.json")
    dubito("report", "run", "results", "results/two.json", "--out", "page.html")
    page = text("page.html")
    assert page.count("First result") >= 1
    assert page.count("Second result") >= 2
    assert "Run run" in page
    assert "no chain to diagnose" in page


def test_standardise_can_be_refused(dubito, pet_flags):
    dubito(*pet_flags, "--no-standardise", "-q")
    assert json.loads(text("run/data.json"))["x_mean"] is None
    assert "standardise = false" in text("run/fit.toml")


def test_lists(dubito):
    listed = dubito("methods").stdout
    for name in ("sgld", "hmc", "mc_dropout", "deep_ensemble", "cyclical_sghmc"):
        assert name in listed
    one = dubito("methods", "sgld").stdout
    assert "burn_in" in one
    assert "500" in one
    sets = dubito("data").stdout
    assert "digits" in sets
    assert "uci/yacht" in sets


def test_version(dubito):
    assert dubito("--version").stdout.strip() == f"dubito {library.__version__}"


def test_rounding_is_a_choice_that_is_kept_and_checked(dubito, pet_flags, refused):
    dubito(*pet_flags, "--method", "map", "--precision", "tf32", "-q")
    assert library.load("run").about["precision"] == "tf32"
    dubito("predict", "run", "--data", "pets.csv", "--out", "p.npz", "--precision", "bf16", "-q")
    assert "unknown precision 'half'" in refused(
        "predict", "run", "--data", "pets.csv", "--out", "p.npz", "--precision", "half"
    )
    assert "precision" in refused(*pet_flags[:-1], "other", "--method", "map", "--precision", "half")
