"""Who answers, and what becomes of answers that are none: nothing is noted, and one sentence says why."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dubito
from dubito.tasks import Active, Known, Person, Waiting

X = torch.rand(30, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(30) % 3
TASK = Active(acquisition="entropy", batch=2, rounds=1, start=3, draws=2)


def refit(data, previous, seed):
    torch.manual_seed(0)
    return dubito.fit(nn.Linear(4, 3), data, dubito.MAP(), steps=2, seed=seed, progress=False)


def asked(folder, text, classes=3, encoding="utf-8"):
    """What a person's answer to rows 5 and 7 is read as."""
    person = Person(folder, classes)
    with pytest.raises(Waiting):
        person([5, 7], X[:2, :3], 0)
    (folder / "to-label-000.csv").write_text(text, encoding=encoding)
    return person([5, 7], X[:2, :3], 0)


def test_names_that_are_numbers_mean_themselves(tmp_path):
    assert asked(tmp_path, "row,label\n5,1\n7,3\n", ["1", "2", "3"]) == [0, 2]
    with pytest.raises(ValueError, match="has the label '0'; write one of 1, 2, 3"):
        Person(tmp_path, ["1", "2", "3"])._read(_table(tmp_path, "row,label\n5,0\n"), [5, 7])


def _table(folder, text):
    path = folder / "other.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "encoding", "sentence"),
    [
        ("row,label\n5,1\n7,2\n", "utf-16", "is no UTF-8 text .*; save it as CSV in UTF-8"),
        ("", "utf-8", "has no column 'row' in its first line; restore the line"),
        ("row,l\n5,1\n7,2\n", "utf-8", "has no column 'label' in its first line"),
        ("row,label\n5,1\n7,2\n5,0\n", "utf-8", "line 4 of .* labels row 5 otherwise than before; keep one of both"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path, text, encoding, sentence):
    with pytest.raises(ValueError, match=sentence):
        asked(tmp_path, text, encoding=encoding)


@pytest.mark.parametrize(
    ("classes", "sentence"),
    [
        ([], r"classes=\[\] leave nothing to tell apart"),
        (1, "classes=1 leave nothing to tell apart; give their number or names, 2 or more"),
        (["a", "a"], r"classes=\['a', 'a'\] names one class twice"),
        ("cat", "classes='cat' are no classes; give their number, or their names in a list"),
        (2.5, "classes=2.5 are no classes"),
    ],
)
def test_classes_that_are_none(tmp_path, classes, sentence):
    with pytest.raises(ValueError, match=sentence):
        Person(tmp_path, classes)


def test_a_refit_that_returns_nothing_is_refused():
    with pytest.raises(ValueError, match="what refit returned is of type NoneType, not a posterior"):
        TASK.run(lambda *_: None, {"pool": (X, Y)})


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"pool": ((X, X), Y)}, "the pool's inputs are several tensors"),
        ({"pool": (X * torch.nan, Y)}, "the pool holds NaN or infinity, first in row 0"),
        ({"pool": (X, Y), "test": X}, "these inputs have no labels"),
        ({"pool": (X, Y), "test": (X[:0], Y[:0])}, "the data are empty"),
    ],
)
def test_data_are_checked_before_anybody_is_asked(tmp_path, data, sentence):
    with pytest.raises(ValueError, match=sentence):
        TASK.run(refit, data, folder=tmp_path, oracle=Person(tmp_path, 3))
    assert not list(tmp_path.iterdir())


def test_classes_may_be_numbers_and_names_of_numpy(tmp_path):
    assert asked(tmp_path / "names", "row,label\n5,dog\n7,cat\n", np.array(["cat", "dog"])) == [1, 0]
    assert asked(tmp_path / "number", "row,label\n5,1\n7,2\n", np.int64(3)) == [1, 2]


@pytest.mark.parametrize("y", [Y.numpy(), Y.tolist(), Y.unsqueeze(1)])
def test_known_labels_come_in_any_array(y):
    assert Known(y)([4, 2], X, 0) == [1, 2]


@pytest.mark.parametrize("y", [Y + 0.5, Y * torch.nan, torch.eye(3)[Y % 3]])
def test_known_labels_are_whole_numbers(y):
    with pytest.raises(ValueError, match="are not one whole number each; number the classes"):
        TASK.run(refit, {"pool": (X, y)})


def test_too_few_known_labels():
    with pytest.raises(ValueError, match="was asked for and 2 labels are known; give one for each row"):
        TASK.run(refit, {"pool": X}, oracle=Known(Y[:2]))


def test_inputs_may_be_single_numbers(tmp_path):
    with pytest.raises(Waiting):
        Person(tmp_path, 2)([1, 0], torch.tensor([0.5, 5.1]), 0)
    assert (tmp_path / "to-label-000.csv").read_text() == "row,label,x0\n1,,0.5\n0,,5.1\n"


def test_numbers_may_have_names(tmp_path):
    names = ["a;b", "label", "row", *"defghijklmnop"]
    with pytest.raises(Waiting):
        Person(tmp_path, 3, names)([2], torch.arange(16)[None], 0)
    table = tmp_path / "to-label-000.csv"
    first, second = table.read_text().splitlines()
    assert first.startswith("row,label,a;b,input label,input row,d,") and second.startswith("2,,0,1,2,3,")
    table.write_text(f"{first}\n{second.replace(',,', ',1,')}\n")
    assert Person(tmp_path, 3, names)([2], torch.arange(16)[None], 0) == [1]
    with pytest.raises(ValueError, match="columns name 2 numbers, but an input has 16; give each one name"):
        Person(tmp_path, 3, ["a", "b"])([2], torch.arange(16)[None], 1)


def test_lines_without_anything_do_not_count(tmp_path):
    assert asked(tmp_path, "row,label,x0\n5,1,\n7,2,\n,,\n") == [1, 2]
    with pytest.raises(ValueError, match=r"line 3 of .* is about row '²', which was not asked for"):
        asked(tmp_path / "other", "row,label\n5,1\n²,2\n")


def test_settings_and_recipes_may_hold_numbers_of_numpy(tmp_path):
    numbers = Active(acquisition="entropy", batch=np.int64(2), rounds=np.int64(1), start=3, draws=2)
    recipe = {"rate": np.float64(0.5), "sizes": np.arange(3), "scale": torch.tensor(2.0)}
    found = numbers.run(refit, {"pool": (X, Y)}, folder=tmp_path, recipe=recipe).numbers
    plain = {"rate": 0.5, "sizes": [0, 1, 2], "scale": 2.0}
    assert TASK.run(refit, {"pool": (X, Y)}, folder=tmp_path, recipe=plain).numbers == found


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ("adam", "recipe='adam' is no mapping; give what refit does as {name: plain value}"),
        ({"path": Path("a")}, r"must be plain values \(PosixPath\('a'\) is none\); give numbers, text and lists"),
        ({"sizes": {(1, 2): 3}}, "must be plain values .*; give numbers, text and lists"),
    ],
)
def test_recipes_that_cannot_be_noted(recipe, sentence):
    with pytest.raises(ValueError, match=sentence):
        TASK.run(refit, {"pool": (X, Y)}, recipe=recipe)
