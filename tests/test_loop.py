"""The loop by itself: history, divergence, early stops and Ctrl-C, driven by a small counter."""

import json
import os
import signal
import threading
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from dubito import loop
from dubito.loop import Diverged, History, Interrupted, Watch


class Info(NamedTuple):
    fit: Tensor
    complexity: Tensor


class Counter:
    """A stepper whose state is the list of steps taken."""

    def __init__(self, losses=None, press=None, stop=None):
        self.losses, self.press, self.stop_at = losses or {}, press, stop
        self.saved, self.kept = [], []

    device = torch.device("cpu")

    def step(self, state, tick):
        step = int(tick.step)
        assert tick.rng.step == step and tick.recorder is None
        if step == self.press:
            os.kill(os.getpid(), signal.SIGINT)
        fit, complexity = self.losses.get(step, (1.0, 0.5))
        return [*state, step], Info(torch.tensor([fit, 1.0]), torch.tensor([complexity, 0.5]))

    def after(self, state, done):
        self.kept.append(done)

    def save(self, state, step):
        self.saved.append(step)

    def validate(self, state, done):
        return ({"validation": 2.0}, True) if done == self.stop_at else ({}, False)


def run(stepper, steps=10, start=0, path=None, callback=None, every=None, log_every=4):
    history = History(path, callback, start)
    settings = {"seed": 0, "label": "counting", "progress": False, "log_every": log_every, "checkpoint_every": every}
    state, done = loop.run(stepper, list(range(start)), start=start, steps=steps, history=history, **settings)
    return state, done, history


def test_every_step_is_taken_once_and_told(tmp_path):
    told = []
    stepper = Counter()
    state, done, history = run(stepper, path=tmp_path / "h.jsonl", callback=told.append)
    assert state == list(range(10)) and done == 10 and stepper.kept == list(range(1, 11))
    assert [r["step"] for r in told] == [4, 8, 10]
    assert all((r["fit"], r["complexity"]) == (1.0, 0.5) and r["seconds"] >= 0 for r in told)
    lines = (tmp_path / "h.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == told == history.records


def test_records_are_averages_since_the_last(tmp_path):
    stepper = Counter({s: (float(s), 0.0) for s in range(8)})
    _, _, history = run(stepper, steps=8)
    assert [r["fit"] for r in history.records] == pytest.approx(
        [((0 + 1 + 2 + 3) / 4 + 1) / 2, ((4 + 5 + 6 + 7) / 4 + 1) / 2]
    )


def test_checkpoints_come_every_so_many_steps_and_never_at_the_end():
    stepper = Counter()
    run(stepper, every=3)
    assert stepper.saved == [3, 6, 9]
    run(stepper := Counter(), steps=9, every=3)
    assert stepper.saved == [3, 6]


def test_a_run_goes_on_from_its_start_and_forgets_later_records(tmp_path):
    path = tmp_path / "h.jsonl"
    run(Counter(), path=path)
    with path.open("a") as file:
        file.write('{"step": 12, "fi')
    state, done, _ = run(Counter(), steps=12, start=8, path=path)
    assert state == list(range(12)) and done == 12
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [4, 8, 12]


@pytest.mark.parametrize(
    ("loss", "quantity"),
    [((float("nan"), 0.5), "log-likelihood"), ((float("inf"), 0.5), "log-likelihood"), ((1.0, 1e12), "log-prior")],
)
def test_divergence_names_step_quantity_and_cure(loss, quantity):
    stepper = Counter({5: loss})
    with pytest.raises(
        Diverged, match=rf"at step 5 the {quantity} left the finite .* try a smaller step_size or learning"
    ):
        run(stepper, every=1, log_every=100)
    assert stepper.saved == [1, 2, 3, 4, 5]


def test_watch_looks_at_every_member():
    watch = Watch()
    watch.add(Info(torch.tensor([0.0, 1.0]), torch.zeros(2)), torch.tensor(0))
    watch.check()
    watch.add(Info(torch.tensor([0.0, torch.nan]), torch.zeros(2)), torch.tensor(1))
    watch.add(Info(torch.tensor([0.0, 0.0]), torch.zeros(2)), torch.tensor(2))
    with pytest.raises(Diverged, match="at step 1"):
        watch.check()


def test_an_early_stop_ends_with_the_step_it_came_at():
    stepper = Counter(stop=7)
    state, done, history = run(stepper)
    assert state == list(range(7)) and done == 7
    assert history.records[-1]["validation"] == 2.0 and history.records[-1]["step"] == 7


def test_ctrl_c_finishes_the_step_and_saves():
    stepper = Counter(press=4)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="stopped by the user after 5 of 10 steps") as caught:
        run(stepper)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert stepper.saved == [5] and stepper.kept == [1, 2, 3, 4, 5]
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_at_an_early_stop_is_an_early_stop():
    stepper = Counter(press=6, stop=7)
    assert run(stepper)[1] == 7 and stepper.saved == []


def test_a_second_ctrl_c_does_not_wait():
    class Stubborn(Counter):
        def step(self, state, tick):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("the second one was not heard")

    with pytest.raises(KeyboardInterrupt):
        run(Stubborn())


def test_the_loop_runs_in_threads_too():
    found = []
    thread = threading.Thread(target=lambda: found.append(run(Counter())[1]))
    thread.start()
    thread.join()
    assert found == [10]


def test_a_full_disk_under_the_history_is_told_in_one_sentence(tmp_path, monkeypatch):
    path = tmp_path / "h.jsonl"
    history = History(path, None, 0)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "open", full)
    with pytest.raises(OSError, match="the disk is full"):
        history.add({"step": 1})
