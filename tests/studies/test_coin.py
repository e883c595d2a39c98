import numpy as np
import pytest
import torch

from dubito import studies
from dubito.studies import coin


@pytest.mark.parametrize("case", coin.CASES, ids=lambda case: case.label)
def test_published_figures(case):
    assert coin.grid_posterior(case.heads, case.tails) @ coin.GRID == pytest.approx(case.grid, abs=5e-5)
    assert coin.exact_chance(case.heads, case.tails) == pytest.approx(case.exact, abs=1e-12)


def test_three_heads_give_four_theta_cubed():
    theta = np.linspace(0, 1, 11)
    np.testing.assert_allclose(coin.exact_density(theta, 3, 0), 4 * theta**3, rtol=1e-12)


def test_the_prior_makes_every_chance_equally_likely():
    logits = torch.linspace(-12, 12, 24_001, dtype=torch.float64)
    density = coin.UniformChance().log_prob(logits).exp()
    below = torch.cumulative_trapezoid(density, logits)
    assert torch.allclose(below, logits[1:].sigmoid(), atol=1e-5)


def test_a_quick_run_by_hmc_is_near_the_exact_chance(tmp_path):
    result = studies.run("coin", quick=True, device="cpu", folder=tmp_path, progress=False)
    for case in coin.CASES:
        found = result.numbers[case.label]
        assert found["exact"] == pytest.approx(case.exact) and found["grid"] == pytest.approx(case.grid, abs=5e-5)
        assert abs(found["hmc"] - case.exact) < 5 * found["hmc error"]
    assert (tmp_path / "quick" / "figures" / "coin-posteriors.png").is_file()
