"""States to disk and back."""

import os
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from dubito import checkpoint
from dubito.posteriors.storage import Damaged


class Inner(NamedTuple):
    first: Tensor
    second: Tensor


class State(NamedTuple):
    theta: Tensor
    inner: Inner
    buffers: dict[str, Tensor]
    nothing: tuple[()]


def state(fill: float = 1.5) -> State:
    return State(
        torch.full((2, 3), fill, dtype=torch.float64),
        Inner(torch.arange(4), torch.zeros(2, 0)),
        {"norm.mean": torch.full((2, 1), fill), "norm.count": torch.tensor([3, 4])},
        (),
    )


def test_any_state_comes_back_bit_for_bit(tmp_path):
    path = tmp_path / "c.safetensors"
    checkpoint.write(path, state(), {"step": 12})
    found, notes = checkpoint.read(path, state(0.0))
    assert notes == {"step": 12} and isinstance(found, State) and isinstance(found.inner, Inner)
    assert torch.equal(found.theta, state().theta) and found.theta.dtype == torch.float64
    assert torch.equal(found.inner.first, torch.arange(4)) and found.inner.second.shape == (2, 0)
    assert found.buffers["norm.count"].tolist() == [3, 4]
    assert os.listdir(tmp_path) == ["c.safetensors"]


def test_tensors_begin_where_fresh_ones_do(tmp_path):
    """Else a resumed run could round otherwise than one that was never stopped."""
    before = {str(i): torch.randn(i + 5) for i in range(8)}
    checkpoint.write(tmp_path / "c", before, {})
    after, _ = checkpoint.read(tmp_path / "c", before)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in after.values())


def test_views_and_transposed_tensors_are_written_as_they_look(tmp_path):
    path = tmp_path / "c.safetensors"
    base = torch.arange(6.0).view(2, 3)
    checkpoint.write(path, (base.T, base[:, 1:], base), {})
    found, _ = checkpoint.read(path, (base.T, base[:, 1:], base))
    assert torch.equal(found[0], base.T) and torch.equal(found[1], base[:, 1:])


def test_a_failed_write_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    checkpoint.write(path, state(1.0), {"step": 1})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"the disk is full; what was written before .* stays readable: free some space"):
        checkpoint.write(path, state(2.0), {"step": 2})
    found, notes = checkpoint.read(path, state())
    assert notes == {"step": 1} and float(found.theta[0, 0]) == 1.0
    assert os.listdir(tmp_path) == ["c.safetensors"]


@pytest.mark.parametrize("cut", [0, 5, 100, -8])
def test_a_damaged_checkpoint_says_so(tmp_path, cut):
    path = tmp_path / "c.safetensors"
    checkpoint.write(path, state(), {"step": 1})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(Damaged, match=r"is damaged or belongs to another run .*; remove it to start over"):
        checkpoint.read(path, state())


def test_a_state_of_another_run_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    checkpoint.write(path, state(), {"step": 1})
    with pytest.raises(Damaged, match="belongs to another run"):
        checkpoint.read(path, (torch.zeros(2),))
    with pytest.raises(
        Damaged, match=r"is \(2, 3\) torch.float64 there, \(2, 4\) torch.float64 here; choose another folder"
    ):
        checkpoint.read(path, state()._replace(theta=torch.zeros(2, 4, dtype=torch.float64)))
    with pytest.raises(Damaged, match=r"float64 there, .*float32 here"):
        checkpoint.read(path, state()._replace(theta=torch.zeros(2, 3)))


def test_some_members_of_a_state_are_overwritten():
    into, source = state(1.0), state(2.0)
    fresh = into._replace(inner=Inner(torch.zeros(2), into.inner.second))
    other = source._replace(inner=Inner(torch.ones(2), source.inner.second))
    checkpoint.copy_rows(fresh, other, torch.tensor([False, True]))
    assert fresh.theta.tolist() == [[1.0] * 3, [2.0] * 3]
    assert fresh.inner.first.tolist() == [0, 1] and fresh.buffers["norm.mean"].tolist() == [[1.0], [2.0]]
