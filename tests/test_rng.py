"""Randomness as a function of its key."""

import multiprocessing
import random
import statistics

import numpy as np
import pytest
import torch

from dubito import rng
from dubito.rng import BLOCK, Rng, choose, derive, generator, isolated


def test_seeds_depend_on_every_part_of_the_key():
    keys = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 1), ("a", 0), (0, "a", "")]
    assert len({derive(*key) for key in keys}) == len(keys)
    assert all(0 <= derive(*key) < 1 << 63 for key in keys)
    assert derive(3, "noise") == derive(3, "noise")


def test_normals_are_a_function_of_seed_name_member_and_step():
    def draw(seed=0, step=0, name="n", first=0):
        return Rng(seed, step).normal_(torch.empty(3, 50), name, first)

    base = draw()
    assert torch.equal(base, draw())
    assert all(not torch.equal(base, other) for other in (draw(seed=1), draw(step=1), draw(name="m")))
    assert torch.equal(base[1:], draw(first=1)[:2])
    assert len({tuple(row.tolist()) for row in base}) == 3


def test_children_and_steps_are_independent_sources():
    source = Rng(7)
    assert source.child("a") != source.child("b") != source
    assert source.at(5) == Rng(7, 5) and source.at(5).child("a").step == 5


def test_normals_have_the_right_moments_and_no_repeats_between_blocks():
    drawn = Rng(0).normal_(torch.empty(1, 3 * BLOCK + 17), "n")[0]
    assert abs(float(drawn.mean())) < 5 / len(drawn) ** 0.5
    assert abs(float(drawn.var()) - 1) < 5 * (2 / len(drawn)) ** 0.5
    blocks = drawn[: 3 * BLOCK].view(3, BLOCK)
    assert float(torch.corrcoef(blocks).fill_diagonal_(0).abs().max()) < 5 / BLOCK**0.5


def test_numbers_do_not_depend_on_the_number_of_threads(monkeypatch):
    drawn = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        drawn.append(Rng(0).normal_(torch.empty(2, 2 * BLOCK), "n"))
    assert torch.equal(*drawn)


def _last_noise() -> list[float]:
    """A few numbers of the last block; no sum, since torch's own threads do not survive a fork."""
    return Rng(0).normal_(torch.empty(1, 2 * BLOCK), "n")[0, -5:].tolist()


def _put_noise(queue) -> None:
    queue.put(_last_noise())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_can_draw_after_its_parent_has(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    here = _last_noise()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_put_noise, args=(queue,))
    child.start()
    child.join(30)
    if child.is_alive():
        child.kill()
    assert child.exitcode == 0
    assert queue.get() == here


def test_uniforms_are_in_the_unit_interval_member_by_member():
    like = torch.empty(0, dtype=torch.float64)
    drawn = Rng(0).uniform((4, 1000), "u", like)
    assert drawn.dtype == torch.float64
    assert float(drawn.min()) >= 0 and float(drawn.max()) < 1
    assert abs(statistics.mean(drawn.flatten().tolist()) - 0.5) < 5 / (12 * 4000) ** 0.5
    assert torch.equal(drawn[2:], Rng(0).uniform((2, 1000), "u", like, first_member=2))


def test_the_global_generator_is_as_it_was():
    before = torch.get_rng_state()
    with isolated(1, "x"):
        first = torch.rand(3)
    with isolated(1, "x"):
        again = torch.rand(3)
    with pytest.raises(KeyError), isolated(1, "x"):
        raise KeyError
    Rng(0).normal_(torch.empty(2, 5), "n")
    choose(10, 3, 0)
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)


def test_generators_of_one_key_give_one_stream():
    a, b, c = (torch.rand(4, generator=generator("cpu", *key)) for key in ((1, "k"), (1, "k"), (2, "k")))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_choose_is_without_replacement_and_everything_once_when_more_is_asked():
    picked = choose(100, 30, seed=4)
    assert len(set(picked)) == 30 and picked == sorted(picked) and max(picked) < 100
    assert picked == choose(100, 30, seed=4) != choose(100, 30, seed=5)
    assert choose(5, 9, 0) == choose(5, 5, 1) == list(range(5))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_draws_on_the_host_is_noticed_wherever_the_network_is(device, monkeypatch):
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.zeros(16, dtype=torch.uint8))
    where = torch.device(device)
    assert all(rng.drew(where, draw) for draw in (lambda: torch.rand(1), random.random, lambda: np.random.rand()))
    assert not rng.drew(where, lambda: torch.ones(1))


@pytest.mark.parametrize("threads", [1, 2])
def test_noise_drawn_meanwhile_is_the_same_noise(monkeypatch, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    like = torch.zeros(2, 3 * BLOCK // 2)
    drawn = Rng(0, step=4).normal_meanwhile(like, "n")
    assert torch.equal(drawn(), Rng(0, step=4).normal_(torch.empty_like(like), "n"))
    assert not like.any()


def test_block_noise_is_shared_out_to_threads_only_where_it_pays(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(rng, "_pool", lambda workers: pytest.fail("a small draw needs no threads"))
    assert Rng(0).normal_(torch.empty(4, 100), "n").std() > 0


@pytest.mark.parametrize("threads", [1, 2])
def test_several_tensors_at_once_are_each_what_they_would_be_alone(monkeypatch, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    shapes = {"a": (2, BLOCK // 2), "b": (1, 3), "c": (1, BLOCK + 5)}
    made = Rng(0, step=2).normals({name: torch.empty(shape) for name, shape in shapes.items()})
    for name, shape in shapes.items():
        assert torch.equal(made[name], Rng(0, step=2).normal_(torch.empty(shape), name))
    assert Rng(0).normals({}) == {}
