"""Samples far larger than the memory they are used with."""

import ctypes
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import dubito
from dubito import functions
from dubito.distill import Adversarial, Mixture, adversarial, bank, mixture
from dubito.net import Net
from dubito.posteriors import files

STATUS = Path("/proc/self/status")
MIB = 1 << 20
SAMPLES = 500


@pytest.fixture(autouse=True)
def freed():
    """What is freed goes back at once: glibc would keep some of it, more or less of it by chance."""
    mallopt, threshold = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0), -3  # M_MMAP_THRESHOLD
    mallopt(threshold, MIB)
    yield
    mallopt(threshold, 32 * MIB)  # the most that it would have risen to by itself


def anonymous() -> int:
    """Bytes of anonymous resident memory."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


class Gauge(threading.Thread):
    """The most anonymous memory beyond that at the start."""

    def __init__(self):
        super().__init__(daemon=True)
        self.base, self.peak, self.done = anonymous(), 0, False

    def run(self):
        while not self.done:
            self.peak = max(self.peak, anonymous() - self.base)
            time.sleep(0.001)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        self.done = True
        self.join()


def chain(place: Path) -> nn.Module:
    """Many networks on disk; returns the module they belong to."""
    module = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    net = Net(module)
    about = files.describe(net, dubito.Categorical(), "samples", {})
    folder = files.SampleFolder(place, {**about, "form": "chains"})
    files.save_constants(folder.folder, net)
    theta = torch.randn(1, net.layout.size)
    for i in range(SAMPLES):
        folder.append(theta + i / SAMPLES, {})
    folder.publish()
    return module


@pytest.mark.skipif(not STATUS.exists(), reason="needs /proc")
def test_a_chain_is_distilled_without_being_held(tmp_path, monkeypatch):
    monkeypatch.setattr(bank, "CPU_BYTES", 0)
    monkeypatch.setattr(bank, "PIECE_BYTES", 4 * MIB)
    module, small = chain(tmp_path), Adversarial(noise=2, widths=(4,), batch_size=10)
    held = dubito.load(tmp_path, module, device="cpu")
    adversarial(held, small, steps=1, progress=False, device="cpu")
    with Gauge() as gauge:
        adversarial(held, small, steps=3, progress=False, device="cpu")
        mixture(held, Mixture(components=2, passes=2), progress=False, device="cpu")
    assert gauge.peak < SAMPLES * held.net.layout.size * 4 / 2


@pytest.mark.skipif(not STATUS.exists(), reason="needs /proc")
def test_stored_samples_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(functions, "WEIGHT_BYTES", 4 * MIB)
    module = chain(tmp_path)
    x = torch.randn(50, 784)
    dubito.load(tmp_path, module, device="cpu").predict(x, draws=3)
    with Gauge() as gauge:
        started = time.monotonic()
        posterior = dubito.load(tmp_path, module, device="cpu")
        opened = time.monotonic() - started
        prediction = posterior.predict(x, draws=SAMPLES)
        posterior.moments()
    assert prediction.n_draws == SAMPLES and opened < 1
    stored = SAMPLES * posterior.net.layout.size * 4
    assert gauge.peak < stored / 2


@pytest.mark.skipif(not STATUS.exists(), reason="needs /proc")
def test_predictions_far_larger_than_their_draws_would_allow(monkeypatch):
    monkeypatch.setattr(functions, "ACTIVATION_BYTES", 16 * MIB)
    net = nn.Linear(4, 5)
    x = torch.randn(100_000, 4)
    posterior = dubito.fit(
        net, (x[:50], torch.arange(50) % 5), dubito.SGLD(burn_in=0, thin=1), steps=100, progress=False
    )
    posterior.predict(x[:100])
    with Gauge() as gauge:
        prediction = posterior.predict(x, keep_draws=False)
        prediction.bald.mean()
    every_draw = 100 * 100_000 * 5 * 4
    assert prediction.probs.shape == (100_000, 5)
    assert gauge.peak < every_draw / 2
