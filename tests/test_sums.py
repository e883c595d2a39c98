"""Functions of rows over draws: all at once, or one draw at a time where each has its own noise."""

import pytest
import torch
from torch import nn

import dubito
from dubito.sums import over_draws, over_rows

OUTPUTS = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
CASES = {
    "classes": (dubito.Categorical(), OUTPUTS, {}),
    "classes on another axis": (dubito.Categorical(class_axis=1), OUTPUTS.unsqueeze(-1).expand(4, 6, 3, 2), {}),
    "known noise": (dubito.Gaussian(std=0.3), OUTPUTS, {}),
    "noise of each draw": (dubito.Gaussian.learned(), OUTPUTS, {"raw_std": torch.arange(4, dtype=torch.float64)}),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_of_all_draws_at_once_are_the_rows_of_each(name):
    likelihood, outputs, noise = CASES[name]
    expected = over_draws(likelihood, outputs, noise, lambda lik, o: lik.mean(o))
    torch.testing.assert_close(over_rows(likelihood, outputs, noise, lambda lik, o: lik.mean(o)), expected)
    if likelihood.kind == "regression":
        spreads = over_rows(likelihood, outputs, noise, lambda lik, o: lik.variance(o))
        torch.testing.assert_close(spreads, over_draws(likelihood, outputs, noise, lambda lik, o: lik.variance(o)))
        assert bool((spreads > 0).all())


def test_draws_with_their_own_noise_keep_it():
    likelihood, outputs, noise = CASES["noise of each draw"]
    found = over_rows(likelihood, outputs, noise, lambda lik, o: lik.variance(o))
    expected = nn.functional.softplus(noise["raw_std"]).square()
    torch.testing.assert_close(found[:, 0, 0], expected)
