"""`dubito active`: labels from the data, or from a person, and the same command goes on."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from dubito.results import Result

RECIPE = """
steps = 20
[data]
source = "pets.csv"
[net]
name = "mlp"
arguments = {sizes = [2, 6, 2]}
[method]
name = "deep_ensemble"
"""


@pytest.fixture
def recipe(pets, in_folder) -> list[str]:
    (in_folder / "fit.toml").write_text('folder = "unused"\n' + RECIPE)
    return ["active", "--config", "fit.toml", "--folder", "asked", "--batch", "3", "--start", "4", "-q"]


def test_labels_from_the_data(dubito, recipe):
    shown = dubito(*recipe, "--rounds", 2, "--test", "pets.csv").stdout
    assert "Round by round" in shown
    found = Result.load("asked/result/active.json").numbers
    assert found["labels"] == [4, 7, 10] and len(found["accuracy"]) == 3
    dubito(*recipe, "--rounds", 3, "--test", "pets.csv")
    longer = Result.load("asked/result/active.json").numbers
    assert longer["chosen"][:3] == found["chosen"]


def test_a_run_ends_at_the_error_asked_for(dubito, refused, recipe):
    said = refused(*recipe, "--rounds", 2, "--until", 0.5)
    assert "until=0.5 is an error on test rows, and there are none" in said
    dubito(*recipe, "--rounds", 2, "--test", "pets.csv", "--until", 0.99)
    assert Result.load("asked/result/active.json").numbers["labels"] == [4]


def test_a_named_set_without_a_test_part_is_not_judged(dubito, recipe, in_folder, monkeypatch):
    (in_folder / "mushroom").mkdir()
    rows = "".join(f"{'ep'[i % 2]},{'xyz'[i % 3]}\n" for i in range(20))
    (in_folder / "mushroom/agaricus-lepiota.data").write_text(rows)
    monkeypatch.setenv("DUBITO_DATA", str(in_folder))
    (in_folder / "fit.toml").write_text(
        'folder = "unused"\n' + RECIPE.replace("pets.csv", "mushroom").replace("[2, 6, 2]", "[3, 6, 2]")
    )
    dubito(*recipe, "--rounds", 1)
    found = Result.load("asked/result/active.json").numbers
    assert found["labels"] == [4, 7] and "accuracy" not in found


def test_another_recipe_does_not_go_on(dubito, refused, recipe, in_folder):
    dubito(*recipe, "--rounds", 1, "--test", "pets.csv")
    (in_folder / "fit.toml").write_text('folder = "unused"\n' + RECIPE.replace("steps = 20", "steps = 30"))
    said = refused(*recipe, "--rounds", 2, "--test", "pets.csv")
    assert "recipe.steps: 20 here, 30 there" in said and "choose another folder" in said


def test_a_column_of_labels_can_be_named_where_a_person_answers(dubito, refused, recipe, in_folder):
    assert "name it as target in [data]" in refused(*recipe, "--person", "--rounds", 0)
    text = (in_folder / "fit.toml").read_text()
    (in_folder / "fit.toml").write_text(text.replace('"pets.csv"', '"pets.csv"\ntarget = "kind"'))
    assert "4 of 4 labels are missing" in dubito(*recipe, "--person", "--rounds", 0).stdout


def test_a_person_sees_the_rows_as_they_stand_in_the_file(dubito, recipe, in_folder):
    text = (in_folder / "fit.toml").read_text()
    (in_folder / "fit.toml").write_text(text.replace('"pets.csv"', '"pets.csv"\ntarget = "kind"'))
    dubito(*recipe, "--person", "--rounds", 0)
    with Path("pets.csv").open(newline="") as file:
        pets = list(csv.DictReader(file))
    with Path("asked/to-label-000.csv").open(newline="") as file:
        asked = list(csv.DictReader(file))
    names = [name for name in pets[0] if name != "kind"]
    assert list(asked[0]) == ["row", "label", *names] and len(asked) == 4
    assert all(float(row[name]) == pytest.approx(float(pets[int(row["row"])][name])) for row in asked for name in names)


@pytest.mark.parametrize("target", ["", 'target = "kind"'])
@pytest.mark.parametrize("column", [False, True])
def test_a_pool_without_labels_is_judged_by_rows_that_have_them(dubito, refused, recipe, in_folder, target, column):
    lines = Path("pets.csv").read_text().splitlines()
    rest = [line.rpartition(",")[0] for line in lines]
    Path("pool.csv").write_text("\n".join([lines[0], *(f"{line}," for line in rest[1:])] if column else rest))
    text = (in_folder / "fit.toml").read_text()
    (in_folder / "fit.toml").write_text(text.replace('"pets.csv"', f'"pool.csv"\n{target}'))
    asking = (*recipe, "--person", "--rounds", 0, "--test", "pets.csv")
    if column and not target:
        assert "name it as target in [data]" in refused(*asking)
        return
    assert "write them (one of cat, dog)" in " ".join(dubito(*asking).stdout.split())
    table = Path("asked/to-label-000.csv")
    table.write_text(table.read_text().replace(",,", ",dog,"))
    dubito(*asking)
    found = Result.load("asked/result/active.json").numbers
    assert found["answers"] == [[1, 1, 1, 1]] and 0 <= found["accuracy"][0] <= 1
    assert "recipe.classes" in refused(*asking[:-2])  # without their names the numbers may mean others


def test_a_person_is_told_labels_that_are_not_counted_from_0(dubito, recipe, in_folder):
    text = Path("pets.csv").read_text().replace("cat", "10").replace("dog", "20")
    Path("pets.csv").write_text(text)
    text = (in_folder / "fit.toml").read_text()
    (in_folder / "fit.toml").write_text(text.replace('"pets.csv"', '"pets.csv"\ntarget = "kind"'))
    asking = (*recipe, "--person", "--rounds", 0, "--test", "pets.csv")
    assert "write them (one of 10, 20)" in " ".join(dubito(*asking).stdout.split())
    table = Path("asked/to-label-000.csv")
    table.write_text(table.read_text().replace(",,", ",20,"))
    dubito(*asking)
    assert Result.load("asked/result/active.json").numbers["answers"] == [[1, 1, 1, 1]]


def test_a_person_answers(dubito, refused, recipe, in_folder):
    x = np.random.default_rng(0).random((20, 4, 4)).astype(np.float32)
    np.savez(in_folder / "pool.npz", x=x)
    text = (in_folder / "fit.toml").read_text().replace("pets.csv", "pool.npz").replace("[2, 6, 2]", "[16, 2]")
    (in_folder / "fit.toml").write_text(text)
    assert "no labels to ask for" in refused(*recipe)
    said = dubito(*recipe, "--person", "--rounds", 0).stdout
    assert "4 of 4 labels are missing" in said
    table = Path("asked/to-label-000.csv")
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all((Path("asked") / row["image"]).exists() for row in rows)
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([["row", "label"], *([row["row"], i % 2] for i, row in enumerate(rows))])
    dubito(*recipe, "--person", "--rounds", 0)
    assert json.loads(Path("asked/active.json").read_text())["blocks"][0]["labels"] == [0, 1, 0, 1]


def test_validation_is_refused_in_one_line(refused, recipe, in_folder):
    (in_folder / "fit.toml").write_text('folder = "unused"\nvalidation = 0.1\n' + RECIPE)
    assert "every label counts" in refused(*recipe)
