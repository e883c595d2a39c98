"""Reading the user's own files, good ones and bad ones."""

import zipfile
from contextlib import suppress

import numpy as np
import pytest
import torch

from dubito.data import DataError, Table, read
from dubito.data.tables import csv_header


@pytest.fixture
def csv_file(tmp_path):
    def write(text, name="table.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def npz_file(tmp_path):
    def write(**arrays):
        path = tmp_path / "table.npz"
        np.savez(path, **arrays)
        return path

    return write


@pytest.mark.parametrize("text", ["b,a\n2,1\n4,3\n", "b,c,a\n2,,1\n4, ,3\n"])
def test_new_rows_need_no_target(csv_file, text):
    x, y, table = read(csv_file(text), like=Table(("a", "b"), "c", "class", ("no", "yes")))
    assert x.tolist() == [[1, 2], [3, 4]] and y is None and table == Table(("a", "b"))


def test_last_column_is_the_target_unless_named(csv_file):
    path = csv_file("a,b,c\n1,2,0.5\n3,4,1.5\n\n")
    x, y, table = read(path)
    assert x.tolist() == [[1, 2], [3, 4]] and y.tolist() == [0.5, 1.5]
    assert x.dtype == y.dtype == torch.float32
    assert table == Table(("a", "b"), "c", "real")
    x, y, table = read(path, target="b")
    assert x.tolist() == [[1, 0.5], [3, 1.5]] and y.tolist() == [2, 4] and y.dtype == torch.int64
    assert table.target_type == "integer"


def test_words_become_classes_in_alphabetical_order(csv_file):
    _, y, table = read(csv_file("\ufeffsize,kind\n1,wasp\n2,ant\n3, wasp\n"))
    assert y.tolist() == [1, 0, 1] and y.dtype == torch.int64
    assert table == Table(("size",), "kind", "class", ("ant", "wasp"))


def test_new_rows_are_read_like_the_training_rows(csv_file):
    _, _, table = read(csv_file("size,legs,kind\n1,6,wasp\n2,8,ant\n", "train.csv"))
    x, y, again = read(csv_file("kind,legs,extra,size\nwasp,4,9,7\n", "test.csv"), like=table)
    assert x.tolist() == [[7, 4]] and y.tolist() == [1] and again == table
    x, y, _ = read(csv_file("legs,size\n4,7\n", "new.csv"), like=table)
    assert x.tolist() == [[7, 4]] and y is None


def test_a_real_target_stays_real_on_whole_numbers(csv_file):
    _, _, table = read(csv_file("a,y\n1,2.5\n2,3\n"))
    _, y, _ = read(csv_file("a,y\n1,2\n", "test.csv"), like=table)
    assert y.dtype == torch.float32


def test_long_labels_keep_every_digit(csv_file):
    _, y, _ = read(csv_file("a,y\n1,9007199254740993\n2,9007199254740992\n3,-5\n"))
    assert y.tolist() == [9007199254740993, 9007199254740992, -5]


@pytest.mark.parametrize("text", ["a,y\n1e39,1\n2,2\n", "a,y\n1,0.5e39\n2,2\n", "a,y\n1,99999999999999999999\n2,2\n"])
def test_a_number_that_does_not_fit_is_named(csv_file, text):
    with pytest.raises(DataError, match=r"line 2, column '.' of .* is too large for"):
        read(csv_file(text))


def test_blank_lines_above_the_header_do_not_count(csv_file):
    path = csv_file("\ufeff\n , \n a,y\n1,2\n")
    assert csv_header(path) == ["a", "y"] and read(path)[0].tolist() == [[1]]


def test_without_labels_every_column_is_an_input(csv_file):
    x, y, table = read(csv_file("a,b\n1,2\n"), labelled=False)
    assert x.shape == (1, 2) and y is None and table == Table(("a", "b"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("a,b\n", "no rows"),
        ("a,b\n1,2\n3\n", "line 3 .* 1 cells but the header has 2"),
        ("a,b\n1,2\n,4\n", "line 3, column 'a' .* is empty"),
        ("a,b\n1,2\n3,\n", "line 3, column 'b' .* is empty"),
        ("a,b\n1,2\nnan,4\n", r"line 3, column 'a' .* not a finite number \('nan'\)"),
        ("a,b\n1,2\nred,4\n", r"line 3, column 'a' .* not a finite number \('red'\)"),
        ("a,b\n1,2.5\n3,3.5\n4,oops\n", "line 4, column 'b'"),
        ("1,2\n3,4\n", "no header"),
        ("a;b\n1;2\n", "not separated by commas"),
        ("a,a\n1,2\n", "two columns named 'a'"),
        ("a\n1\n", "no column besides the target"),
    ],
)
def test_a_bad_table_is_named_in_one_sentence(csv_file, text, message):
    with pytest.raises(DataError, match=message) as caught:
        read(csv_file(text))
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


def test_a_missing_column_lists_those_there_are(csv_file):
    with pytest.raises(DataError, match=r"no column 'c': its columns are a, b\."):
        read(csv_file("a,b\n1,2\n"), target="c")


def test_a_new_class_is_refused(csv_file):
    table = Table(("a",), "y", "class", ("ant", "wasp"))
    with pytest.raises(DataError, match=r"class 'bee', unseen in training \(ant, wasp\): correct it"):
        read(csv_file("a,y\n1,bee\n"), like=table)


def test_a_fraction_among_training_integers_is_refused(csv_file):
    with pytest.raises(DataError, match=r"line 2, column 'y' .* not a whole number"):
        read(csv_file("a,y\n1,0.5\n"), like=Table(("a",), "y", "integer"))


def test_text_that_is_not_utf8(tmp_path):
    path = tmp_path / "latin.csv"
    path.write_bytes("größe,y\n1,2\n".encode("latin-1"))
    with pytest.raises(DataError, match="UTF-8"):
        read(path)


def test_missing_file_and_unknown_ending(tmp_path):
    with pytest.raises(DataError, match="no file"):
        read(tmp_path / "nothing.csv")
    (tmp_path / "table.xlsx").write_bytes(b"")
    with pytest.raises(DataError, match=r"neither \.csv nor \.npz"):
        read(tmp_path / "table.xlsx")


def test_npz_arrays(npz_file):
    x, y, table = read(npz_file(x=np.ones((3, 1, 2, 2)), y=np.array([0, 1, 2], dtype=np.uint8)))
    assert x.shape == (3, 1, 2, 2) and x.dtype == torch.float32 and y.tolist() == [0, 1, 2] and y.dtype == torch.int64
    assert table == Table((), "y", "integer")
    x, y, _ = read(npz_file(x=np.array([[5, 7]])))
    assert x.dtype == torch.int64 and y is None
    _, y, table = read(npz_file(x=np.zeros((2, 1)), y=np.array([True, False])))
    assert y.tolist() == [1, 0] and table.target_type == "integer"


def test_npz_words(npz_file):
    path = npz_file(x=np.zeros((2, 1)), y=np.array(["wasp", "bee"]))
    assert read(path)[1].tolist() == [1, 0]
    assert read(npz_file(x=np.zeros((2, 1)), y=np.array([[b"wasp"], [b"bee"]])))[2].classes == ("bee", "wasp")
    path = npz_file(x=np.zeros((2, 1)), y=np.array(["wasp", "bee"]))
    assert read(path, like=Table((), "y", "class", ("ant", "bee", "wasp")))[1].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": np.zeros(3)}, r"no array 'x' \(it has inputs\)"),
        ({"x": np.zeros(3)}, r"shape \(3,\)"),
        ({"x": np.zeros((0, 3))}, "at least one row"),
        ({"x": np.zeros((3, 1)), "y": np.zeros(2)}, "3 rows in x but y of shape"),
        ({"x": np.array([[0.0], [np.nan]])}, r"x .* not finite at index \(1, 0\)"),
        ({"x": np.zeros((1, 1)), "y": np.array([np.inf])}, r"y .* not finite at index \(0,\)"),
        ({"x": np.array([[1e39]])}, r"x .* not finite at index \(0, 0\)"),
        ({"x": np.zeros((2, 0))}, r"shape \(2, 0\)"),
        ({"x": np.zeros((1, 1)), "y": np.array([2**63], dtype=np.uint64)}, "too large for int64"),
        ({"x": np.zeros((1, 1)), "y": np.array([["a", "b"]])}, "one word per row"),
        ({"x": np.zeros((1, 1)), "y": np.array([b"\xff"])}, "no UTF-8 text"),
        ({"x": np.array([["a"]])}, "not numbers"),
        ({"x": np.array([[None]], dtype=object)}, "cannot be read as npz"),
    ],
)
def test_a_bad_npz_is_named_in_one_sentence(npz_file, arrays, message):
    with pytest.raises(DataError, match=message) as caught:
        read(npz_file(**arrays))
    assert "\n" not in str(caught.value)


def test_a_truncated_npz(npz_file):
    path = npz_file(x=np.zeros((9, 9)))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read as npz"):
        read(path)


def test_a_damaged_or_foreign_npz(tmp_path):
    path = tmp_path / "table.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(60, 3)))
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with suppress(DataError):
            read(path)
    with path.open("wb") as file:
        np.save(file, np.zeros((2, 2)))
    with pytest.raises(DataError, match="one array without a name"):
        read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", "no array")
    with pytest.raises(DataError, match=r"x in .* has shape"):
        read(path)
