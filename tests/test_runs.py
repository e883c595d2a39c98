"""The folder of a run: claiming, resuming, extending and refusing."""

import json

import pytest
import torch

from dubito.posteriors.storage import Damaged
from dubito.runs import RunFolder

SETTINGS = {"method": {"name": "SGLD", "step_size": 1e-3}, "seed": 0}


def test_a_new_folder_is_claimed_and_finished_once(tmp_path):
    home = RunFolder(tmp_path / "a" / "b")
    assert home.open(SETTINGS, 10, extendable=True) is False
    assert RunFolder(home.path).open(SETTINGS, 10, extendable=True) is False
    home.finish(10)
    assert RunFolder(home.path).open(SETTINGS, 10, extendable=True) is True


def test_more_steps_extend_and_fewer_do_not(tmp_path):
    home = RunFolder(tmp_path)
    home.open(SETTINGS, 10, extendable=True)
    home.finish(10)
    with pytest.raises(ValueError, match="holds a run of 10 steps; it cannot be cut to 9: use another folder"):
        home.open(SETTINGS, 9, extendable=True)
    with pytest.raises(ValueError, match="whose schedule depends on their number; it cannot be extended to 20"):
        home.open(SETTINGS, 20, extendable=False)
    assert home.open(SETTINGS, 10, extendable=False) is True
    assert home.open(SETTINGS, 20, extendable=True) is False
    assert json.loads((tmp_path / "run.json").read_text())["finished"] is False


def test_other_settings_are_named(tmp_path):
    home = RunFolder(tmp_path)
    home.open(SETTINGS, 10, extendable=True)
    other = {"method": {"name": "SGLD", "step_size": 1e-2}, "seed": 1}
    with pytest.raises(ValueError, match=r"method.step_size: 0.001 here, 0.01 there; seed: 0 here, 1 there"):
        home.open(other, 10, extendable=True)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("do not touch")
    with pytest.raises(ValueError, match="is not empty and holds no run; choose an empty or a new folder"):
        RunFolder(tmp_path).open(SETTINGS, 10, extendable=True)
    assert (tmp_path / "thesis.tex").read_text() == "do not touch"


def test_a_run_killed_while_claiming_can_be_started_again(tmp_path):
    (tmp_path / "run.json.partial").write_text('{"settings"')
    assert RunFolder(tmp_path).open(SETTINGS, 10, extendable=True) is False


@pytest.mark.parametrize("text", ["", "{", "[]", '{"settings": {}}', "\x00"])
def test_a_damaged_run_file_says_so(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(Damaged, match=r"run\.json is damaged .* choose another folder"):
        RunFolder(tmp_path).open(SETTINGS, 10, extendable=True)


def test_checkpoints_tell_how_far_they_came(tmp_path):
    home = RunFolder(tmp_path)
    state = {"theta": torch.zeros(2, 3)}
    assert home.restore(state) == (state, 0)
    home.save({"theta": torch.ones(2, 3)}, 7)
    found, step = home.restore(state)
    assert step == 7 and bool((found["theta"] == 1).all())


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write to .*file/run .*; choose a folder you may write to"):
        RunFolder(tmp_path / "file" / "run")
    with pytest.raises(OSError, match="choose a folder you may write to"):
        RunFolder(tmp_path / "file")
