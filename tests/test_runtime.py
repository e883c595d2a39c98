"""Work ahead in a thread, and precision as a choice."""

import threading

import pytest
import torch

from dubito import runtime


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
