"""Which rows an acquisition chooses: by hand, and by brute force over every configuration of labels."""

import itertools
import math

import pytest
import torch

from dubito.tasks.active import batch_bald, labels_needed, stochastic_top
from dubito.tasks.active.acquire import Joint, acquire, top
from dubito.tasks.active.task import first
from dubito.tasks.base import Labelled


class Drawn:
    """As much of a prediction as a batch is chosen by."""

    def __init__(self, draws: torch.Tensor) -> None:
        self.draws, self.n_draws = draws, len(draws)


def drawn(s: int = 5, n: int = 6, c: int = 3) -> torch.Tensor:
    return torch.randn(s, n, c, generator=torch.Generator().manual_seed(3)).double().mul(2).softmax(-1)


def information(draws: torch.Tensor, batch: tuple[int, ...]) -> float:
    """I[y_batch; theta] over every configuration of labels."""
    classes, joint, given = draws.shape[-1], 0.0, 0.0
    for labels in itertools.product(range(classes), repeat=len(batch)):
        each = torch.stack([draws[:, i, y] for i, y in zip(batch, labels, strict=True)]).prod(0)
        p = float(each.mean())
        joint -= p * math.log(p)
        given -= float((each * each.log()).mean())
    return joint - given


def test_batch_bald_equals_brute_force_on_a_tiny_pool():
    draws = drawn()
    found = batch_bald(Drawn(draws), 3, seed=0)
    chosen: tuple[int, ...] = ()
    for step in range(3):
        rest = [i for i in range(6) if i not in chosen]
        best = max(rest, key=lambda i: information(draws, (*chosen, i)))
        chosen = (*chosen, best)
        assert found.information[step] == pytest.approx(information(draws, chosen), abs=1e-9)
    assert tuple(found.rows) == chosen


def test_batch_bald_of_one_is_bald():
    draws = drawn(n=20)
    mean = draws.mean(0)
    bald = torch.special.entr(mean).sum(-1) - torch.special.entr(draws).sum(-1).mean(0)
    found = batch_bald(Drawn(draws), 1, seed=0)
    assert found.rows == [int(bald.argmax())] and found.information[0] == pytest.approx(float(bald.max()))


def test_sampled_configurations_come_close_to_all_of_them():
    draws = drawn(n=9)
    exact, sampled = Joint(draws, 0, limit=10**6), Joint(draws, 0, limit=4000)
    for index in range(8):  # 3 ** 8 = 6,561 configurations
        exact.add(index)
        sampled.add(index)
    assert len(exact.given) == 6561 and len(sampled.given) == 4000
    torch.testing.assert_close(sampled.entropies(), exact.entropies(), atol=0.1, rtol=0)


def test_a_duplicate_is_worth_less_to_a_batch_than_to_bald():
    draws = drawn(n=3)
    draws[:, 1] = draws[:, 0]
    found = batch_bald(Drawn(draws), 3, seed=0)
    assert found.information[1] - found.information[0] < found.information[0]
    assert set(found.rows[:2]) != {0, 1}


def test_scores_choose_by_hand(shifted):
    posterior = shifted(-4.0, 4.0)
    x = torch.tensor([[0.0, 9.0], [0.0, 0.0], [9.0, 0.0], [0.5, 0.0]])  # the second is where the draws disagree most
    for name in ("entropy", "bald", "mean_std", "batch_bald"):
        assert acquire(posterior, x, 1, name, 2, None, 0) == [1], name
    assert acquire(posterior, x, 2, "variation_ratio", 2, None, 0) == [1, 3]
    assert sorted(acquire(posterior, x, 4, "random", 2, None, 0)) == [0, 1, 2, 3]


def test_equal_scores_are_taken_in_an_order_of_the_seed():
    scores = torch.tensor([1.0, 0.0, 0.0, 0.0, 2.0])
    orders = {tuple(top(scores, 5, seed)) for seed in range(20)}
    assert len(orders) > 1 and {order[:2] for order in orders} == {(4, 0)}


def test_stochastic_top_is_in_proportion_to_the_score():
    scores = torch.tensor([1.0, 2.0, 4.0])
    counts = torch.zeros(3)
    for seed in range(3000):
        counts[stochastic_top(scores, 1, 1.0, seed)] += 1
    torch.testing.assert_close(counts / 3000, scores / 7, atol=0.03, rtol=0)
    sharp = [stochastic_top(scores, 1, 50.0, seed)[0] for seed in range(50)]
    assert sharp == [2] * 50
    assert sorted(stochastic_top(scores, 3, 1.0, 0)) == [0, 1, 2]
    pairs = torch.zeros(3, 3)
    for seed in range(4000):
        pairs[tuple(stochastic_top(scores, 2, 1.0, seed))] += 1
    p = scores / 7
    exact = p.unsqueeze(1) * p / (1 - p).unsqueeze(1)  # the second among those that are left
    torch.testing.assert_close(pairs / 4000, exact.fill_diagonal_(0), atol=0.03, rtol=0)


def test_the_start_is_balanced_where_labels_are_known():
    y = torch.tensor([0] * 50 + [1] * 5 + [2] * 2)
    pool = Labelled(torch.zeros(57, 2), y)
    assert torch.bincount(y[first(pool, 6, 0)]).tolist() == [2, 2, 2]
    assert torch.bincount(y[first(pool, 9, 0)]).tolist() in ([4, 3, 2], [3, 4, 2])
    assert len(set(first(Labelled(pool.x, None), 6, 0))) == 6


def test_labels_needed():
    assert labels_needed([10, 20, 30], [0.5, 0.9, 0.96], 0.1) == 20
    assert labels_needed([10, 20, 30], [0.5, 0.9, 0.96], 0.05) == 30
    assert labels_needed([10], [0.5], 0.1) is None
