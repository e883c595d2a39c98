"""fit: what comes back, how it resumes and extends, and what a folder means the second time."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dubito
from dubito import schedules

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = torch.randint(2, (40,), generator=torch.Generator().manual_seed(1))
VALIDATION = (X[:12] + 0.1, Y[:12])


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Tanh(), nn.Linear(5, 2))


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def turned(x, generator):
    return -x


METHODS = {
    "map": (net, dubito.MAP(), {"members": 2}),
    "sgd": (net, dubito.MAP(optimiser="sgd", clip_norm=1.0, schedule=schedules.StepDecay(0.5, 10)), {}),
    "map with validation": (net, dubito.MAP(), {"validation": VALIDATION, "patience": 50}),
    "ensemble": (net, dubito.DeepEnsemble(bootstrap=True), {}),
    "mc dropout": (net, dubito.MCDropout(), {"validation": VALIDATION}),
    "sgld": (plain, dubito.SGLD(burn_in=4, thin=3), {"members": 2, "validation": VALIDATION}),
    "psgld": (plain, dubito.PSGLD(burn_in=4, thin=3), {}),
    "sghmc": (plain, dubito.SGHMC(burn_in=4, thin=3), {"members": 2}),
    "hmc": (plain, dubito.HMC(burn_in=4, thin=2, leapfrog=3), {"members": 2}),
}
FIXED_LENGTH = {
    "snapshots": (net, dubito.SnapshotEnsemble(cycles=3), {}),
    "cosine": (net, dubito.MAP(schedule="cosine"), {}),
    "last few": (plain, dubito.SGLD(burn_in=4, thin=3, keep=2), {}),
    "cycles": (plain, dubito.CyclicalSGLD(cycles=2, thin=2), {}),
}


def fit(name: str, steps: int, folder: Path | None = None, **more: object):
    make, method, settings = {**METHODS, **FIXED_LENGTH}[name]
    settings = {"batch_size": None if name == "hmc" else 9, "progress": False, "device": "cpu", **settings, **more}
    return dubito.fit(make(), (X, Y), method, steps=steps, folder=folder, **settings)


def same(a, b) -> bool:
    (theta, buffers), (other, others) = a.samples.get(range(len(a))), b.samples.get(range(len(b)))
    return torch.equal(theta, other) and all(torch.equal(buffers[n], others[n]) for n in buffers)


class Crash(Exception):
    pass


def crash_at(step: int):
    def callback(record):
        if record["step"] >= step:
            raise Crash

    return callback


# -- the same bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*METHODS, *FIXED_LENGTH])
def test_a_crashed_run_resumes_to_the_same_bits(name, tmp_path):
    whole = fit(name, 30)
    with pytest.raises(Crash):
        fit(name, 30, tmp_path, checkpoint_every=7, callback=crash_at(17))
    resumed = fit(name, 30, tmp_path)
    assert same(resumed, whole)
    assert same(dubito.load(tmp_path, METHODS.get(name, FIXED_LENGTH.get(name))[0](), device="cpu"), whole)


@pytest.mark.parametrize("name", METHODS)
def test_an_extended_run_is_the_longer_run(name, tmp_path):
    first = fit(name, 17, tmp_path)
    assert same(first, fit(name, 17))
    extended = fit(name, 30, tmp_path)
    assert same(extended, fit(name, 30))
    assert json.loads((tmp_path / "run.json").read_text())["steps"] == 30


@pytest.mark.parametrize("name", FIXED_LENGTH)
def test_a_run_whose_course_depends_on_its_length_is_not_extended(name, tmp_path):
    finished = fit(name, 17, tmp_path)
    with pytest.raises(ValueError, match="schedule depends on their number; it cannot be extended to 30"):
        fit(name, 30, tmp_path)
    assert same(fit(name, 17, tmp_path), finished)


@pytest.mark.parametrize("name", METHODS)
def test_a_finished_run_is_returned_and_not_run_again(name, tmp_path):
    finished = fit(name, 12, tmp_path)
    again = fit(name, 12, tmp_path, callback=lambda record: pytest.fail("it ran again"))
    assert same(again, finished)
    torch.testing.assert_close(again.predict(X).probs, finished.predict(X).probs)


def test_a_seed_gives_one_run_and_another_seed_another():
    assert same(fit("sgld", 12), fit("sgld", 12))
    assert not same(fit("sgld", 12), fit("sgld", 12, seed=1))


# -- what a folder holds ---------------------------------------------------------------------------------------


def test_another_start_is_refused_with_its_cure(tmp_path):
    def begun(seed: int) -> dubito.Posterior:
        torch.manual_seed(seed)
        rows = torch.ones(4, 2), torch.tensor([0, 1, 0, 1])
        return dubito.fit(torch.nn.Linear(2, 2), rows, dubito.MAP(), steps=2, folder=tmp_path, progress=False)

    begun(0)
    with pytest.raises(ValueError, match=r"starts from other weights than then: make it after the same torch\.manual"):
        begun(1)


def test_starts_that_follow_from_other_settings_are_no_matter_of_the_network(tmp_path):
    fit("sgld", 12, tmp_path)
    with pytest.raises(ValueError, match=r"use the same settings or another folder$"):
        fit("sgld", 12, tmp_path, members=3)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, "seed: 0 here, 1 there"),
        ({"batch_size": 10}, "batch_size: 9 here, 10 there"),
        ({"members": 1}, "members: 2 here, 1 there"),
        ({"temperature": 0.5}, "temperature: 1.0 here, 0.5 there"),
        ({"prior": dubito.Normal(2.0)}, r"prior: FanIn\(.*\) here, Normal\(std=2.0"),
        ({"likelihood": dubito.Categorical(ignore_index=-1)}, "likelihood.ignore_index: -100 here, -1 there"),
        ({"validation": None}, "fingerprints.validation: .* here, missing there"),
        ({"augment": turned}, "augment: none here, function.*turned.* there"),
    ],
)
def test_other_settings_are_refused_and_named(change, named, tmp_path):
    before = fit("sgld", 12, tmp_path)
    with pytest.raises(ValueError, match=f"holds another run; .*{named}.*use the same settings or another folder"):
        fit("sgld", 12, tmp_path, **change)
    assert same(fit("sgld", 12, tmp_path), before)


def test_other_data_weights_methods_and_fewer_steps_are_refused(tmp_path):
    settings = {"batch_size": 9, "progress": False, "folder": tmp_path, "device": "cpu"}
    method = dubito.SGLD(burn_in=0, thin=3)
    dubito.fit(plain(), (X, Y), method, steps=12, **settings)
    with pytest.raises(ValueError, match=r"fingerprints.*data"):
        dubito.fit(plain(), (X + 0.01, Y), method, steps=12, **settings)
    other = plain()
    nn.init.zeros_(other[0].bias)
    with pytest.raises(ValueError, match=r"fingerprints.*start"):
        dubito.fit(other, (X, Y), method, steps=12, **settings)
    with pytest.raises(ValueError, match=r"method: SGLD\(.*\) here, PSGLD\(.*\) there"):
        dubito.fit(plain(), (X, Y), dubito.PSGLD(burn_in=0, thin=3), steps=12, **settings)
    with pytest.raises(ValueError, match="holds a run of 12 steps; it cannot be cut to 11"):
        dubito.fit(plain(), (X, Y), method, steps=11, **settings)


def test_history_is_json_lines_and_a_callback(tmp_path):
    told = []
    fit("sgld", 30, tmp_path, callback=told.append)
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert lines == told and lines[-1]["step"] == 30
    assert [line["step"] for line in lines if "validation" in line] == [10, 20, 30]
    assert {"step", "fit", "complexity", "seconds"} <= set(lines[0])


def test_a_resumed_history_has_every_step_once(tmp_path):
    with pytest.raises(Crash):
        fit("sgld", 30, tmp_path, checkpoint_every=7, callback=crash_at(17))
    fit("sgld", 30, tmp_path)
    steps = [json.loads(line)["step"] for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps)) and steps[-1] == 30 and 15 in steps


def test_samples_are_loadable_while_the_run_goes_on(tmp_path):
    seen = []

    def look(record):
        if (tmp_path / "posterior" / "posterior.json").exists():
            seen.append((record["step"], len(dubito.load(tmp_path, plain(), device="cpu"))))

    fit("sgld", 20, tmp_path, callback=look)
    assert seen == [(s, 2 * ((s - 4) // 3)) for s in range(7, 21)]


# -- Ctrl-C ----------------------------------------------------------------------------------------------------


def test_ctrl_c_gives_what_was_reached_and_the_way_on(tmp_path):
    def press(record):
        if record["step"] == 15:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(
        dubito.Interrupted, match=r"after 15 of 30 steps; call fit again with folder='.*' to go on"
    ) as caught:
        fit("sgld", 30, tmp_path, callback=press)
    assert len(caught.value.posterior) == 2 * 3
    assert same(fit("sgld", 30, tmp_path), fit("sgld", 30))
    with pytest.raises(dubito.Interrupted, match=r"its .posterior is what it reached") as caught:
        fit("map", 30, callback=press)
    assert len(caught.value.posterior.predict(X)) == 40


SCRIPT = """
    import sys, torch, dubito
    from torch import nn
    torch.manual_seed(0)
    x, y = torch.randn(40, 3), torch.randint(2, (40,))
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    steps = int(sys.argv[2])
    note = lambda record: print(record["step"], flush=True)
    method = dubito.SGLD(burn_in=5, thin=5)
    dubito.fit(net, (x, y), method, steps=steps, folder=sys.argv[1], callback=note, device="cpu")
"""


def test_sigint_stops_a_process_cleanly_and_it_goes_on_to_the_same_bits(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    child = subprocess.Popen(
        [*command, str(tmp_path / "a"), "100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while int(child.stdout.readline()) < 300:
            continue
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode not in (0, -signal.SIGKILL)
    assert "stopped by the user after" in errors and "call fit again with folder=" in errors
    held = dubito.load(tmp_path / "a", plain(), device="cpu")
    assert held.samples.rows >= (300 - 5) // 5
    rows = held.samples.rows
    torch.manual_seed(0)
    x, y = torch.randn(40, 3), torch.randint(2, (40,))
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    method = dubito.SGLD(burn_in=5, thin=5)
    again = dubito.fit(module, (x, y), method, steps=5 * rows + 5, progress=False, device="cpu")
    assert torch.equal(again.thetas(rows), held.thetas(rows))


def test_numbers_of_numpy_are_numbers(tmp_path):
    settings = {"steps": 20, "batch_size": 10, "members": 2, "seed": 3, "n_data": 60, "patience": 2, "temperature": 1.5}
    numpy = {name: np.asarray(value)[()] for name, value in settings.items()}
    runs = {}
    for name, given in {"plain": settings, "numpy": numpy}.items():
        kept = {"validation": (X, Y), "folder": tmp_path / name, "device": "cpu", "progress": False}
        runs[name] = dubito.fit(plain(), (X, Y), "map", **given, **kept)
        runs[name].save(tmp_path / "copies" / name)
    assert same(runs["plain"], runs["numpy"]) and runs["plain"].about == runs["numpy"].about


def test_a_prior_mapping_in_another_order_is_another_prior(tmp_path):
    settings = {"prior": {"0.*": dubito.Normal(1.0), "*": dubito.Normal(0.1)}, "folder": tmp_path, "device": "cpu"}
    dubito.fit(plain(), (X, Y), "map", steps=3, progress=False, **settings)
    settings["prior"] = dict(reversed(settings["prior"].items()))
    with pytest.raises(ValueError, match=r"prior: 0\.\*, \* here, \*, 0\.\* there in this order"):
        dubito.fit(plain(), (X, Y), "map", steps=3, progress=False, **settings)
