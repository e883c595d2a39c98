"""A chain of 2,000 samples of a 79,510-weight network on disk (636 MB): opening it, and predicting from it."""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import dubito
from benchmarks.common import Claim, Where, fcnn1, report
from dubito.posteriors.files import SampleFolder, describe, save_constants

SAMPLES, MIB = 2_000, 1 << 20


def run(where: Where) -> bool:
    """Opens in under a second and predicts within 500 MiB of anonymous memory beyond torch itself."""
    samples = where.pick(SAMPLES, 20)
    with tempfile.TemporaryDirectory() as place:
        write_chain(Path(place) / "chain", samples)
        child = subprocess.run([sys.executable, "-m", "benchmarks.stored_chain", place + "/chain"], check=True,
                               capture_output=True, text=True)  # fmt: skip
    opened, memory, predicted = map(float, child.stdout.split())
    claims = [
        Claim("1 s over the time to open", 1 / opened, 1.0),
        Claim("500 MiB over the memory used", 500 / memory, 1.0),
    ]
    values = {
        "open, s": [opened],
        "predict 1,000 rows with all samples, s": [predicted],
        "anonymous memory, MiB": [memory],
    }
    return report(where, "stored-chain", f"{samples:,} stored samples of 79,510 weights", "", values, claims)


def write_chain(path: Path, samples: int) -> None:
    """A chain of 784-100-10 on disk, around one point."""
    net = dubito.Net(fcnn1())
    manifest = {**describe(net, dubito.Categorical(), "samples", {}), "form": "chains"}
    shelf = SampleFolder(path, manifest)
    save_constants(path, net)
    generator = torch.Generator().manual_seed(0)
    for _ in range(samples):
        shelf.append(net.theta() + 0.01 * torch.randn(1, net.layout.size, generator=generator), {})
    shelf.finish()
    shelf.publish()


def anonymous() -> float:
    """MiB of this process that lie in no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def _measure(path: str) -> None:
    """In a process of its own: seconds to open, MiB beyond the start, seconds to predict."""
    import time

    x = torch.rand(1_000, 784, generator=torch.Generator().manual_seed(1))
    torch.nn.functional.linear(x, torch.rand(100, 784)).relu_()
    before, start = anonymous(), time.perf_counter()
    posterior = dubito.load(path, device="cpu")
    opened, start = time.perf_counter() - start, time.perf_counter()
    posterior.predict(x, draws=len(posterior))
    print(opened, anonymous() - before, time.perf_counter() - start)


if __name__ == "__main__":
    _measure(sys.argv[1])
