"""A generator trained on a chain on disk, 10,000 samples of a 79,510-weight network (3.2 GB): the memory it takes."""

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import dubito
from benchmarks.common import Claim, Where, report
from benchmarks.stored_chain import anonymous, write_chain
from dubito.distill import adversarial

SAMPLES, STEPS = 10_000, 20
MOST = 2048  # MiB


def run(where: Where) -> bool:
    """All anonymous resident memory of the process, torch and its own code included, stays under 2 GiB."""
    samples, steps = where.pick(SAMPLES, 20), where.pick(STEPS, 2)
    with tempfile.TemporaryDirectory() as place:
        write_chain(Path(place) / "chain", samples)
        command = [sys.executable, "-m", "benchmarks.distilled_chain", place + "/chain", str(steps)]
        child = subprocess.run(command, check=True, capture_output=True, text=True)
    before, peak, seconds = map(float, child.stdout.split())
    values = {
        "anonymous memory at its peak, MiB": [peak],
        "before the chain is opened, MiB": [before],
        f"the whole, {steps} steps of the generator, s": [seconds],
    }
    title = f"A generator from {samples:,} stored samples of 79,510 weights"
    return report(where, "distilled-chain", title, "", values, [Claim("anonymous memory, MiB", peak, most=MOST)])


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


def _measure(path: str, steps: int) -> None:
    """In a process of its own: MiB before, at the peak, and the seconds of the whole distillation."""
    before, gauge, start = anonymous(), Gauge(), time.perf_counter()
    gauge.start()
    adversarial(dubito.load(path, device="cpu"), steps=steps, device="cpu", progress=False)
    seconds = time.perf_counter() - start
    print(before, gauge.end(), seconds)


if __name__ == "__main__":
    _measure(sys.argv[1], int(sys.argv[2]))
