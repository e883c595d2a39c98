"""Measures of doubt against arithmetic by hand."""

import math

import pytest
import torch

from dubito import uncertainty

SURE, TORN = [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]
DRAWS = torch.tensor([[SURE, TORN], [[0.0, 1.0, 0.0], TORN], [SURE, TORN]], dtype=torch.float64)


def test_entropy_is_in_nats_and_zero_when_sure():
    assert uncertainty.entropy(torch.tensor([SURE, TORN, [1 / 3] * 3])).tolist() == pytest.approx(
        [0, math.log(2), math.log(3)]
    )


def test_bald_is_disagreement_alone():
    mean = DRAWS.mean(0)
    inside = uncertainty.entropy(DRAWS).mean(0)
    apart = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert uncertainty.bald(mean, inside).tolist() == pytest.approx([apart, 0])
    assert float(uncertainty.bald(torch.tensor([1.0, 0.0]), torch.tensor(1e-9))) == 0


def test_the_two_ratios():
    assert uncertainty.variation_ratio(DRAWS.mean(0)).tolist() == pytest.approx([1 / 3, 1 / 2])
    votes = uncertainty.votes(DRAWS)
    assert votes.tolist() == [[2, 1, 0], [3, 0, 0]]
    assert uncertainty.vote_ratio(votes).tolist() == pytest.approx([1 / 3, 0])
