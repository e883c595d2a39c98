"""Pieces of a study: all answered, in several processes or one, none made twice, and made again where they must be."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dubito.studies import pieces
from dubito.studies.base import Settings

QUIET = Settings(progress=False)
NAMED = {"two": (2,), "three": (3,)}


def squared(number: int, settings: Settings) -> dict[str, int]:
    """A job that leaves a trace of every call."""
    if settings.work is not None:
        with (settings.work.parent / "calls").open("a") as file:
            file.write(f"{number} by {os.getpid()}\n")
    if number == 13:
        raise ValueError("no luck")
    return {"square": number**2}


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_answers_come_in_order_and_are_kept(tmp_path):
    settings = replace(QUIET, work=tmp_path / "work")
    expected = {"two": {"square": 4}, "three": {"square": 9}}
    assert pieces.answers(squared, NAMED, settings) == expected
    assert pieces.answers(squared, {**NAMED, "four": (4,)}, settings) == {**expected, "four": {"square": 16}}
    assert [line.split()[0] for line in calls(tmp_path)] == ["2", "3", "4"]


def test_other_arguments_and_other_code_are_made_again(tmp_path, monkeypatch):
    settings = replace(QUIET, work=tmp_path / "work")
    pieces.answers(squared, NAMED, settings)
    assert pieces.answers(squared, {"two": (5,)}, settings) == {"two": {"square": 25}}
    monkeypatch.setattr(pieces, "environment", lambda: {"commit": "another"})
    pieces.answers(squared, {"three": (3,)}, settings)
    assert [line.split()[0] for line in calls(tmp_path)] == ["2", "3", "5", "3"]


def test_nothing_is_kept_without_a_folder():
    assert pieces.answers(squared, NAMED, QUIET)["three"] == {"square": 9}


def test_several_processes_answer_alike(tmp_path):
    settings = replace(QUIET, work=tmp_path / "work", workers=2)
    assert pieces.answers(squared, NAMED, settings) == {"two": {"square": 4}, "three": {"square": 9}}
    assert str(os.getpid()) not in "".join(calls(tmp_path))


def test_what_was_answered_before_a_failure_is_kept(tmp_path):
    settings = replace(QUIET, work=tmp_path / "work")
    with pytest.raises(ValueError, match="no luck"):
        pieces.answers(squared, {"two": (2,), "unlucky": (13,)}, settings)
    pieces.answers(squared, NAMED, settings)
    assert [line.split()[0] for line in calls(tmp_path)] == ["2", "13", "3"]
