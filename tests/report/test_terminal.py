"""The terminal: readable on any width, in a pipe, and without Unicode."""

import io

import pytest
from rich.console import Console

from dubito.report import print_result
from dubito.results import Result, Table


@pytest.fixture
def wide():
    columns = ["method", *(f"a rather long column {i}" for i in range(8))]
    return Result(
        "w",
        "Wide",
        "Words.",
        tables=[Table("T", columns, [["MAP", *[0.25] * 8], ["SGLD", *[0.5] * 7, None]], "A note.")],
    )


def printed(result, **options):
    file = io.StringIO()
    print_result(result, Console(file=file, **options))
    return file.getvalue()


def test_a_pipe_gets_whole_aligned_rows(wide):
    text = printed(wide, force_terminal=False, width=40)
    lines = text.splitlines()
    row = next(line for line in lines if line.startswith("SGLD"))
    head = next(line for line in lines if line.startswith("method"))
    assert "…" not in text
    assert "\x1b" not in text
    assert row.count("0.5000") == 7
    assert row.endswith("–")
    assert len(row) == len(head) == len(lines[lines.index(head) + 1])


def test_a_narrow_terminal_gets_a_line_for_each_cell(wide):
    text = printed(wide, force_terminal=True, width=40, color_system=None)
    assert all(len(line) <= 40 for line in text.splitlines())
    assert "  a rather long column 0: 0.5000" in text


def test_a_terminal_that_is_wide_enough_gets_the_grid(result):
    text = printed(result, force_terminal=True, width=100, color_system=None)
    assert "method     NLL    BALD\n" in text
    assert "MAP     0.2000       –\n" in text


def test_markup_in_words_is_printed_as_it_is():
    text = printed(Result("a", "[bold]A[/]", tables=[Table("T", ["[red]x"], [["[/]"]])]), width=80)
    assert "[bold]A[/]" in text
    assert "[red]x" in text


def test_a_cell_with_line_ends_stays_one_row():
    text = printed(Result("a", "A", tables=[Table("T", ["c\nd", "e"], [["x\ny", 1]])]), width=80)
    assert "c d  e\n" in text and "x y  1\n" in text


def test_without_unicode_dashes_are_plain(wide):
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_result(wide, Console(file=file, width=40))
    file.flush()
    text = file.buffer.getvalue().decode("ascii")
    assert "-" * 40 in text
    assert text.splitlines()[-2].endswith(" -")
