"""Predictions from a chain on disk: read ahead in a thread, with the numbers of a chain in memory."""

import threading

import pytest
import torch
from torch import nn

import dubito
from dubito import functions
from dubito.posteriors.storage import Damaged, JoinedSamples, MemorySamples, StoredSamples, shard_name

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randn(12, 1, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def chain(tmp_path, monkeypatch):
    """The same chain in memory and on disk, read three samples at a time."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    held = dubito.fit(net, (X, Y), dubito.SGLD(burn_in=0, thin=1), steps=20, members=2, progress=False)
    held.save(tmp_path / "chain")
    monkeypatch.setattr(functions, "WEIGHT_BYTES", 6 * held.net.layout.size * 4)
    return held, dubito.load(tmp_path / "chain", net, device="cpu")


def test_reading_ahead_changes_no_number(chain, monkeypatch):
    held, stored = chain
    readers, original = set(), stored.samples.get

    def get(index):
        readers.add(threading.current_thread())
        assert len(index) <= 3  # two chunks lie in memory at once
        return original(index)

    monkeypatch.setattr(stored.samples, "get", get)
    ours, expected = stored.predict(X, draws=30), held.predict(X, draws=30)
    assert readers and threading.main_thread() not in readers
    torch.testing.assert_close(ours.mean, expected.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours.std, expected.std, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours.draws, expected.draws, rtol=0, atol=1e-6)


def test_a_shard_that_vanishes_is_named(chain):
    _, stored = chain
    (stored.samples.folder / shard_name(0)).unlink()
    stored.samples._open.clear()
    with pytest.raises(Damaged, match="is missing"):
        stored.predict(X)


def test_what_lies_on_disk_says_so(chain):
    held, stored = chain
    assert isinstance(stored.samples, StoredSamples) and stored.samples.on_disk
    assert isinstance(held.samples, MemorySamples) and not held.samples.on_disk
    assert JoinedSamples([held.samples, stored.samples]).on_disk
    assert not JoinedSamples([held.samples, held.samples]).on_disk
