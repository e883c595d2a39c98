"""What a user can do wrong gives one line, exit status 2, and loses nothing."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from dubito.cli import app


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--method", "sgdl"], "no method is called 'sgdl'; did you mean 'sgld'?"),
        (["--data", "irsi"], "there is no data set 'irsi'"),
        (["--data", "none.csv"], "there is no file none.csv"),
        (["--data", "pets.txt"], "there is no file pets.txt"),
        (["--target", "species"], "has no column 'species'"),
        (["--net", "mpl"], "no network 'mpl'"),
        (["--net", "nowhere:make"], "cannot import 'nowhere'"),
        (["--net-args", '{"sizes": [3, 8, 2]}'], "the network mlp cannot take a row of shape (2,)"),
        (["--net-args", '{"sizes": [2, 8, 1]}'], "2 classes but the network only 1 outputs"),
        (["--net-args", '{"sizes": "2"}'], "sizes"),
        (["--net-args", "sizes=3"], "--net-args is no JSON"),
        (["--set", "learning_rat=1"], "did you mean 'learning_rate'?"),
        (["--set", "learning_rate=fast"], "wants a number, got 'fast'"),
        (["--set", "learning_rate=-1"], "learning_rate must be positive"),
        (["--prior", "normal", "--set", "prior.std=-1"], "std is -1.0"),
        (["--likelihood", "gaussian"], "--set likelihood.std="),
        (["--epochs", "3"], "exactly one of steps= and epochs="),
        (["--steps", "0"], "there is nothing to do in 0 steps"),
        (["--batch-size", "1000"], "batch_size is 1000 but the data have 60 rows"),
        (["--members", "0"], "members must be at least 1"),
        (["--validation", "2"], "between 0 and 1"),
        (["--validation", "0.001"], "leaves 0 for validation"),
        (["--patience", "3"], "patience counts checks on validation data"),
        (["--split", "1"], "belongs to the UCI sets"),
        (["--device", "abacus"], "unknown device 'abacus'"),
        (["--folder", "pets.csv/run"], "cannot write to pets.csv/run"),
        (["--config", "none.toml"], "there is no settings file none.toml; check the path"),
        (["--stpes", "3"], "--stpes"),
        (["--steps", "many"], "--steps"),
    ],
)
def test_fit_refuses(refused, pet_flags, more, sentence):
    assert sentence in refused(*pet_flags, *more)


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [("nan", "line 3, column 'weight'"), ("", "is empty"), ("heavy", "is not a finite number ('heavy')")],
)
def test_a_bad_cell_is_named(refused, pet_flags, pets, cell, sentence):
    lines = pets.read_text().splitlines()
    lines[2] = cell + lines[2][lines[2].index(",") :]
    pets.write_text("\n".join(lines))
    assert sentence in refused(*pet_flags)


def test_a_folder_with_other_things_is_left_alone(refused, pet_flags, in_folder):
    (in_folder / "run").mkdir()
    (in_folder / "run" / "thesis.txt").write_text("ten years of work")
    assert "is not empty and holds no run" in refused(*pet_flags)
    assert [path.name for path in (in_folder / "run").iterdir()] == ["thesis.txt"]


def test_a_failed_fit_does_not_block_the_folder(refused, dubito, pet_flags, in_folder):
    assert "batch_size is 1000" in refused(*pet_flags, "--batch-size", "1000")
    dubito(*pet_flags, "-q")
    assert list((in_folder / "run").rglob("posterior.json"))


def test_what_cannot_be_an_answer(refused, pet_flags, dubito, table, in_folder):
    dubito(*pet_flags, "-q")
    (in_folder / "p.csv").mkdir()
    assert "end it in .csv or .npz" in refused("predict", "run", "--data", "pets.csv", "--out", "p.txt")
    assert "there is no folder no" in refused("predict", "run", "--data", "pets.csv", "--out", "no/p.csv")
    assert "is p.csv, which is a folder" in refused("predict", "run", "--data", "pets.csv", "--out", "p.csv")
    (in_folder / "p.csv").rmdir()
    assert "draws must be at least 1" in refused(
        "predict", "run", "--data", "pets.csv", "--out", "p.csv", "--draws", "0"
    )
    table("unlabelled.csv", ["weight", "ear"], [[1, 2]])
    assert "has no targets" in refused("evaluate", "run", "--data", "unlabelled.csv")
    table("other.csv", ["weight", "tail"], [[1, 2]])
    assert "lacks 'ear' and has 'tail'" in refused("predict", "run", "--data", "other.csv", "--out", "p.csv")
    table("bird.csv", ["weight", "ear", "kind"], [[1, 2, "bird"]])
    assert "'bird', unseen in training" in refused("evaluate", "run", "--data", "bird.csv")
    np.savez("wide.npz", x=np.zeros((2, 3)))
    assert "has shape (3,)" in refused("predict", "run", "--data", "wide.npz", "--out", "p.csv")


def test_a_damaged_run(refused, pet_flags, dubito, in_folder):
    predict = ["predict", "run", "--data", "pets.csv", "--out", "p.csv"]
    assert "there is no folder run" in refused(*predict)
    dubito(*pet_flags, "-q")
    shard = in_folder / "run" / "posterior" / "samples-00000.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    assert "damaged" in refused(*predict)
    shard.unlink()
    assert "missing" in refused(*predict)
    shard.write_bytes(whole)
    manifest = in_folder / "run" / "posterior" / "posterior.json"
    text = manifest.read_text()
    manifest.write_text(text[: len(text) // 2])
    assert "damaged" in refused(*predict)
    manifest.write_text(json.dumps({**json.loads(text), "format": 99}))
    assert "newer" in refused(*predict)
    manifest.write_text(text)
    (in_folder / "run" / "fit.toml").write_text("net = ")
    assert "not valid TOML" in refused(*predict)
    (in_folder / "run" / "data.json").unlink()
    assert "not made by dubito fit" in refused(*predict)
    assert not (in_folder / "p.csv").exists()


def test_a_report_of_nothing(refused, in_folder):
    assert "neither a run, nor a result" in refused("report", "nowhere")
    (in_folder / "a.json").write_text("{}")
    assert "no dubito result" in refused("report", "a.json")


def test_unknown_commands_and_missing_arguments(refused):
    assert "Did you mean 'fit'" in refused("fti")
    assert "folder" in refused("predict")
    assert "--vrsion" in refused("--vrsion")
    assert "did you mean 'sgld'" in refused("methods", "sgdl")


def test_debug_shows_the_error_itself(pet_flags):
    result = CliRunner().invoke(app, ["--debug", *pet_flags, "--method", "sgdl"])
    assert isinstance(result.exception, ValueError)
