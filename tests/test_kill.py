"""A run killed with SIGKILL at random moments, twenty times over, ends with the bits of an uninterrupted one."""

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import dubito

STEPS = 1000
FORK = multiprocessing.get_context("fork")

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

METHODS = {"sgld": (dubito.SGLD(burn_in=100, thin=10), {"members": 2}), "map": (dubito.MAP(), {"patience": 1000})}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))


def work(name: str, folder: Path | None, steps: int = STEPS) -> dubito.Posterior:
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 3, generator=rng), torch.randint(2, (64,), generator=rng)
    method, settings = METHODS[name]
    return dubito.fit(
        net(), (x, y), method, steps=steps, batch_size=16, folder=folder, checkpoint_every=37, progress=False,
        device="cpu", validation=(x[:16], y[:16]), **settings
    )  # fmt: skip


def child(name: str, folder: Path) -> None:
    work(name, folder)
    os._exit(0)


def loadable(folder: Path, seen: int) -> int:
    """How many samples a reader finds now; never fewer than before, never one that is not finite."""
    if not (folder / "posterior" / "posterior.json").exists():
        assert seen == 0
        return 0
    posterior = dubito.load(folder, net(), device="cpu")
    theta = posterior.thetas(len(posterior))
    assert len(posterior) >= seen and torch.isfinite(theta).all()
    assert theta.abs().sum(1).min() > 0
    return len(posterior)


def run_and_kill(name: str, folder: Path, seconds: float, seen: int) -> tuple[bool, int]:
    """Start a process, read its folder while it works, and kill it; returns whether it had finished."""
    process = FORK.Process(target=child, args=(name, folder))
    process.start()
    end = time.monotonic() + seconds
    while process.is_alive() and time.monotonic() < end:
        seen = loadable(folder, seen)
        time.sleep(0.01)
    finished = not process.is_alive()
    if not finished:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return finished and process.exitcode == 0, loadable(folder, seen)


@pytest.mark.parametrize(("name", "times"), [("sgld", 20), ("map", 5)])
def test_kills_change_no_bit(name, times, tmp_path):
    whole = tmp_path / "whole"
    started = time.monotonic()
    work(name, whole)
    pause = (time.monotonic() - started) / times
    rng, broken, seen, kills = random.Random(name), tmp_path / "broken", 0, 0
    while kills < times:
        finished, seen = run_and_kill(name, broken, rng.uniform(0, 1.5 * pause), seen)
        kills += not finished
        if finished:  # before it was killed so often: another life
            check_same(whole, broken)
            broken, seen = tmp_path / f"broken-{kills}", 0
    run_and_kill(name, broken, 300, seen)
    check_same(whole, broken)


def check_same(whole: Path, broken: Path) -> None:
    posteriors = [dubito.load(folder, net(), device="cpu") for folder in (whole, broken)]
    assert torch.equal(*(p.thetas(len(p)) for p in posteriors))
    for path in sorted((whole / "posterior").iterdir()):
        assert path.read_bytes() == (broken / "posterior" / path.name).read_bytes(), path.name
    runs = [json.loads((folder / "run.json").read_text()) for folder in (whole, broken)]
    assert runs[0] == runs[1] and runs[0]["finished"]
    assert (whole / "checkpoint.safetensors").read_bytes() == (broken / "checkpoint.safetensors").read_bytes()
    steps = [
        [json.loads(line)["step"] for line in (f / "history.jsonl").read_text().splitlines()] for f in (whole, broken)
    ]
    assert set(steps[0]) == set(steps[1]) and steps[1] == sorted(set(steps[1]))
