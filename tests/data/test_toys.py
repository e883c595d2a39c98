"""Made data: sizes, seeds, and the distributions their docstrings promise."""

import math

import pytest
import torch

from dubito.data import load, toys


@pytest.mark.parametrize(
    "make", [toys.linear, toys.sine, toys.clusters, toys.blobs, toys.not_digits], ids=lambda make: make.__name__
)
def test_same_seed_same_data(make):
    first, again, other = make(seed=3), make(seed=3), make(seed=4)
    assert torch.equal(first.x, again.x) and torch.equal(first.y, again.y)
    assert not (torch.equal(first.x, other.x) and torch.equal(first.y, other.y))
    assert first.x.dtype == torch.float32 and len(first.x) == len(first.y)


def test_making_toys_leaves_the_global_generators_alone():
    before = torch.get_rng_state()
    toys.not_digits(6), toys.linear(), toys.sine()
    assert torch.equal(before, torch.get_rng_state())


def test_line_has_the_published_least_squares_fit():
    x, y = toys.line()
    design = torch.cat([x, torch.ones_like(x)], dim=1)
    slope, intercept = torch.linalg.lstsq(design, y[:, None]).solution.flatten().tolist()
    assert (slope, intercept) == pytest.approx((2.9205, -1.7267), abs=1e-4)


def test_linear_is_linear_up_to_its_noise():
    x, y = toys.linear(n=4000, features=4, noise_std=0.5, seed=1)
    design = torch.cat([x, torch.ones(len(x), 1)], dim=1)
    residual = y - (design @ torch.linalg.lstsq(design, y[:, None]).solution).squeeze(1)
    assert x.shape == (4000, 4) and residual.std().item() == pytest.approx(0.5, rel=0.05)


def test_sine_has_flat_ends_and_proportional_noise():
    x, y = toys.sine()
    mean, std = toys.sine_truth(x[:, 0])
    outside = x[:, 0].abs() > 3 * math.pi + 1e-4
    assert x.shape == (2048 + 2 * 60, 1) and int(outside.sum()) == 120
    assert y[outside].abs().max() < 1e-6
    noisy = std > 0.1
    assert ((y - mean)[noisy] / std[noisy]).std().item() == pytest.approx(1, rel=0.1)


def test_sine_noise_can_be_kept_from_vanishing():
    x, y = toys.sine(flat=500, min_std=0.2)
    assert y[x[:, 0].abs() > 3 * math.pi + 1e-4].std().item() == pytest.approx(0.2, rel=0.15)


def test_clusters_leave_a_gap():
    x, y = toys.clusters(n=50)
    assert x.shape == (50, 1) and y.shape == (50,)
    assert x.abs().min() >= 1 and x.abs().max() <= 2
    assert int((x > 0).sum()) == 25


def test_blobs_have_the_published_moments():
    x, y = toys.blobs(per_class=2000)
    assert y.tolist() == [0] * 2000 + [1] * 2000
    for label, centre in ((0, -2.0), (1, 2.0)):
        torch.testing.assert_close(x[y == label].mean(0), torch.full((2,), centre), atol=0.06, rtol=0)
        torch.testing.assert_close(x[y == label].T.cov(), 0.3 * torch.eye(2), atol=0.04, rtol=0)


def test_not_digits_are_in_the_scaling_of_digits_and_take_turns():
    x, y = toys.not_digits(n=60)
    assert x.shape == (60, 1, 8, 8)
    assert torch.equal(y, torch.arange(60) % len(toys.KINDS))
    assert x.min() >= 0 and x.max() <= 1 and torch.equal((x * 16).round(), x * 16)


def test_not_digits_differ_from_every_digit():
    digits = load("digits")
    known = torch.cat([digits.train.x, digits.test.x]).flatten(1)
    x = toys.not_digits(n=120).x.flatten(1)
    between_digits = torch.cdist(digits.test.x.flatten(1), digits.train.x.flatten(1)).min(dim=1).values
    assert torch.cdist(x, known).min(dim=1).values.median() > between_digits.median()


@pytest.mark.parametrize("call", [lambda: toys.linear(n=0), lambda: toys.blobs(0), lambda: toys.not_digits(-1)])
def test_no_rows_is_an_error(call):
    with pytest.raises(ValueError, match="at least 1"):
        call()
