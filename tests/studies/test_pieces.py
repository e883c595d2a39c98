"""Pieces of a study: all answered, in several processes or one, none made twice, and made again where they must be."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dubito import studies
from dubito.runtime import alone
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
    monkeypatch.setattr(pieces, "sources", lambda: "others")
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


def shared(number: int, settings: Settings) -> int:
    """Two pieces that want one and the same thing, which takes a while to make."""
    place = settings.folder("Shared, by all")
    with alone(place):
        if not place.exists():
            place.mkdir()
            time.sleep(0.2)
            squared(number, settings)
    return number


def test_what_pieces_share_is_made_once(tmp_path):
    settings = replace(QUIET, work=tmp_path / "work", workers=2)
    assert pieces.answers(shared, NAMED, settings) == {"two": 2, "three": 3}
    assert len(calls(tmp_path)) == 1


def test_fits_ahead_keep_themselves_and_no_answers(tmp_path):
    pieces.ahead(squared, NAMED, replace(QUIET, work=tmp_path / "work"))  # one process: whoever asks next makes them
    pieces.ahead(squared, NAMED, replace(QUIET, workers=2))  # and so where nothing would be kept
    assert list(tmp_path.iterdir()) == []
    pieces.ahead(squared, NAMED, replace(QUIET, work=tmp_path / "work", workers=2))
    assert sorted(line.split()[0] for line in calls(tmp_path)) == ["2", "3"] and not (tmp_path / "work").exists()


def test_another_study_s_folders_lie_beside():
    settings = replace(QUIET, work=Path("results/runs/one-3"), seed=3)
    assert settings.folder("A fit, the first") == Path("results/runs/one-3/a-fit-the-first")
    assert settings.beside("other").work == Path("results/runs/other-3")
    assert QUIET.beside("other").work is None


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes by /proc")
SCRIPT = """
import signal, sys, time
from pathlib import Path
from dubito.runtime import pool

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin without it
    with pool(2) as processes:
        job = processes.submit(time.sleep, 600)
        Path(sys.argv[1]).write_text(" ".join(map(str, processes._processes)))
        job.result()
"""


@on_linux
def test_workers_do_not_outlive_a_parent_that_was_killed(tmp_path):
    script, told = tmp_path / "script.py", tmp_path / "workers"
    script.write_text(SCRIPT)
    parent = subprocess.Popen([sys.executable, str(script), str(told)])
    _until(lambda: told.exists() and told.read_text())
    workers = [int(one) for one in told.read_text().split()]
    assert workers and all(map(_lives, workers))
    parent.kill()
    parent.wait()
    _until(lambda: not any(map(_lives, workers)))


@on_linux
def test_ctrl_c_does_not_wait_for_what_workers_were_given(tmp_path):
    script, told = tmp_path / "script.py", tmp_path / "workers"
    script.write_text(SCRIPT)
    parent = subprocess.Popen([sys.executable, str(script), str(told)], stderr=subprocess.DEVNULL)
    _until(lambda: told.exists() and told.read_text())
    parent.send_signal(signal.SIGINT)
    assert parent.wait(timeout=60) != 0
    assert not any(_lives(int(one)) for one in told.read_text().split())


def _lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _until(true) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)


def test_no_workers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="workers is 0; there must be at least 1"):
        studies.run("coin", quick=True, folder=tmp_path, workers=0)
    assert not any(tmp_path.iterdir())
