"""Cells: None is a dash, and numbers show about four digits."""

import math

import pytest

from dubito.report.cells import cell_text, flat, is_numeric, table_text
from dubito.results import Table, published_beside_measured


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (True, "yes"),
        (1234567, "1,234,567"),
        (0.97225, "0.9722"),
        (12.3456, "12.35"),
        (45678.9, "45,679"),
        (-0.5, "−0.5000"),
        (1.5e-6, "1.5e-06"),
        (0.0, "0"),
        (math.nan, "nan"),
        (-math.inf, "−inf"),
        ("word", "word"),
    ],
)
def test_one_value(value, text):
    assert cell_text(value) == text


def test_a_column_of_like_numbers_has_like_decimals():
    table = Table("T", ["a", "b"], [[0.5, 2.0], [0.25, 0.0005], [None, 0.0]])
    assert [row[0] for row in table_text(table)] == ["0.5000", "0.2500", "–"]
    assert [row[1] for row in table_text(table)] == ["2.000", "0.0005", "0"]


def test_a_column_may_have_its_own_format():
    assert table_text(Table("T", ["a"], [[0.5]], formats={"a": ".0%"})) == [["50%"]]


def test_published_figures_stay_as_published():
    rows = table_text(published_beside_measured("T", [("accuracy", 0.98, 0.975, ""), ("ESS", None, 1200.0, "")]))
    assert rows == [["accuracy", "0.98", "0.9750", "−0.005", ""], ["ESS", "–", "1,200", "–", ""]]


def test_numeric_columns_ignore_gaps():
    assert is_numeric(Table("T", ["a", "b", "c"], [["x", None, 1], ["y", 2.0, True]])) == [False, True, False]


def test_nested_settings_become_dotted_names():
    pairs = dict(flat({"a": {"b": 1, "c": [1, 2.5]}, "d": None, "e": list(range(20))}))
    assert pairs["a.b"] == "1"
    assert pairs["a.c"] == "1, 2.5"
    assert pairs["d"] == "–"
    assert pairs["e"].endswith("11, … (20 in all)")
