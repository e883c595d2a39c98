"""Quantiles of draws, and of distribution functions."""

import numpy as np
import pytest
import torch
from scipy import stats

from dubito import quantiles


@pytest.mark.parametrize("q", [0.01, 0.25, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("draws", [1, 2, 7, 100])
def test_of_draws_is_numpys_quantile(q, draws):
    values = torch.randn(draws, 5, 2, generator=torch.Generator().manual_seed(draws), dtype=torch.float64)
    assert quantiles.of_draws(values, q).numpy() == pytest.approx(np.quantile(values.numpy(), q, axis=0))


@pytest.mark.parametrize("q", [1e-6, 0.05, 0.5, 0.999999])
def test_a_bracket_far_off_is_widened(q):
    centre = torch.tensor([-1e4, 0.0, 3.0], dtype=torch.float64)
    start = torch.zeros(3, dtype=torch.float64)
    found = quantiles.invert(lambda y: torch.special.ndtr(y - centre), q, start, start + 0.1)
    assert found.numpy() == pytest.approx(stats.norm.ppf(q, loc=centre.numpy()), abs=1e-8)


def test_counts_give_the_smallest_that_reaches_the_level():
    rate = torch.tensor([1e-3, 0.5, 4.0, 90.0], dtype=torch.float64)
    for q in (0.05, 0.5, 0.9995):
        found = quantiles.invert(
            lambda y: torch.where(y < 0, 0.0, torch.special.gammaincc(y.floor().clamp_min(0) + 1, rate)),
            q,
            rate - 6 * rate.sqrt(),
            rate + 6 * rate.sqrt(),
        )
        assert found.numpy() == pytest.approx(stats.poisson.ppf(q, rate.numpy()), abs=1e-6)
