"""A generator trained on a chain on disk, 10,000 samples of a 79,510-weight network (3.2 GB): memory, and time by game.

On every weight, and along 200 principal directions, which is what a CPU is enough for.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import dubito
from benchmarks.common import Claim, Where, each_logged_step, report
from benchmarks.stored_chain import anonymous, write_chain
from dubito.distill import Adversarial, adversarial

SAMPLES = 10_000
STEPS, ALONG, DIRECTIONS = 20, 500, 200
MOST = 2048  # MiB
LEAST = 20.0  # times as many steps a second


def run(where: Where) -> bool:
    """All anonymous resident memory of the process, torch and its own code included, stays under 2 GiB."""
    samples = where.pick(SAMPLES, 20)
    games = {
        "on every weight": (where.pick(STEPS, 5), 0),
        "along directions": (where.pick(ALONG, 5), where.pick(DIRECTIONS, 3)),
    }
    with tempfile.TemporaryDirectory() as place:
        write_chain(Path(place) / "chain", samples)
        found = {name: _in_a_process(f"{place}/chain", *game) for name, game in games.items()}
    values = {
        f"{name}: {what}": numbers if isinstance(numbers, list) else [numbers]
        for name, one in found.items()
        for what, numbers in one.items()
    }
    peaks = {name: one["anonymous memory at its peak, MiB"] for name, one in found.items()}
    whole, few = (median(found[name]["s a step"]) for name in games)
    claims = [Claim(f"{name}: anonymous memory, MiB", peak, most=MOST) for name, peak in peaks.items()]
    claims.append(Claim("a step on every weight over one along directions", whole / few, least=LEAST))
    title = f"A generator from {samples:,} stored samples of 79,510 weights"
    return report(where, "distilled-chain", title, "", values, claims)


def _in_a_process(chain: str, steps: int, directions: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.distilled_chain", chain, str(steps), str(directions)]
    child = subprocess.run(command, check=True, capture_output=True, text=True)
    told: dict[str, Any] = json.loads(child.stdout)
    return told


class Gauge(threading.Thread):
    """The most anonymous memory while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.done = anonymous(), False

    def run(self) -> None:
        while not self.done:
            self.peak = max(self.peak, anonymous())
            time.sleep(0.002)

    def end(self) -> float:
        """Stop; the peak in MiB."""
        self.done = True
        self.join()
        return self.peak


def _measure(path: str, steps: int, directions: int) -> None:
    """In a process of its own: MiB before and at the peak, seconds of each step, and of the whole distillation."""
    before, gauge, start = anonymous(), Gauge(), time.perf_counter()
    gauge.start()
    chain, settings = dubito.load(path, device="cpu"), Adversarial(directions=directions or None)
    each = each_logged_step(
        lambda told: adversarial(chain, settings, steps=steps, callback=told, device="cpu", progress=False)
    )
    seconds = time.perf_counter() - start
    told = {
        "anonymous memory at its peak, MiB": gauge.end(),
        "before the chain is opened, MiB": before,
        "s a step": each,
        f"the whole, {steps:,} steps, s": seconds,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    _measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
