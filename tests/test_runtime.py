"""Work ahead in a thread, precision as a choice, and side by side or one after another by a stopwatch."""

import threading
import time

import pytest
import torch
from torch import nn
from torch._C._functorch import is_batchedtensor

import dubito
from dubito import runtime
from dubito.posteriors.samples import SamplesPosterior

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_the_next_item_is_under_way_while_the_last_is_used():
    begun, threads, used = [], set(), []

    def work(item):
        threads.add(threading.current_thread())
        begun.append(item)
        return item * item

    for value in runtime.ahead(work, range(5)):
        used.append(value)
        while len(begun) < min(5, len(used) + 1):  # a worker that waited to be asked would leave this hanging
            pass
    assert used == [0, 1, 4, 9, 16] and begun == list(range(5))
    assert threading.main_thread() not in threads
    assert list(runtime.ahead(work, [])) == []


def test_what_goes_wrong_ahead_is_raised_where_it_is_used():
    def work(item):
        if item == 2:
            raise OSError("a bad sector")
        return item

    found = runtime.ahead(work, range(4))
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(OSError, match="a bad sector"):
        next(found)


def test_giving_up_half_way_leaves_no_thread_behind():
    before = threading.active_count()
    found = runtime.ahead(lambda item: item, range(100))
    next(found)
    found.close()
    assert threading.active_count() == before


def test_precision_is_refused_or_restored():
    with pytest.raises(ValueError, match="unknown precision 'half'"):
        runtime.check_precision("half")
    before = torch.backends.cuda.matmul.allow_tf32
    with runtime.precision("tf32", torch.device("cpu")):
        assert torch.backends.cuda.matmul.allow_tf32 == before
    assert torch.backends.cuda.matmul.allow_tf32 == before


@pytest.mark.parametrize("side_by_side", [True, False])
def test_a_probe_finds_what_is_faster(side_by_side):
    def slow(x):
        time.sleep(0.03 if is_batchedtensor(x) != side_by_side else 0.001)
        return x

    assert runtime.is_faster_vectorised(slow, (torch.zeros(5, 2),)) is side_by_side


def test_a_stopwatch_is_asked_where_no_rule_is_clear():
    cpu, cuda, other = (torch.device(name) for name in ("cpu", "cuda", "mps"))
    large, small = 2 * runtime.CLEAR_FLOPS, runtime.CLEAR_FLOPS / 2
    assert runtime.wants_probe(large, False, cpu) and not runtime.wants_probe(small, True, cpu)
    assert runtime.wants_probe(small, True, cuda) and not runtime.wants_probe(large, False, cuda)
    assert not runtime.wants_probe(large, True, other)


@gpu
def test_a_gpu_times_drawn_convolutions_once_for_a_shape(monkeypatch):
    torch.manual_seed(0)
    net = dubito.Net(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).cuda())
    theta = net.theta() + 0.1 * torch.randn(20, net.layout.size, device="cuda")
    x, asked, seen = torch.randn(64, 1, 8, 8), [], {}
    for way in (True, False):
        held = SamplesPosterior.of(dubito.Net(net.module), dubito.Categorical(), theta, {}, "chains")
        monkeypatch.setattr(runtime, "is_faster_vectorised", lambda *a, way=way: asked.append(way) or way)
        seen[way] = [held.predict(x, draws=20).probs for _ in range(2)][-1]
    assert asked == [True, False]
    torch.testing.assert_close(seen[True], seen[False], rtol=1e-3, atol=1e-4)


@gpu
@pytest.mark.parametrize("side_by_side", [True, False])
def test_a_probe_on_a_gpu_waits_for_the_device(side_by_side):
    big = torch.randn(4096, 4096, device="cuda")

    def slow(x):
        made = x
        for _ in range(40 if is_batchedtensor(x) != side_by_side else 0):
            made = made + (big @ big)[0, 0]
        return made

    assert runtime.is_faster_vectorised(slow, (torch.zeros(3, 2, device="cuda"),)) is side_by_side
