import numpy as np
import pytest

from dubito import studies
from dubito.studies import linear_regression as study


def test_closed_form_is_as_published():
    exact = study.closed_form()
    np.testing.assert_allclose(exact.mean, [1.4512, -0.5313], atol=5e-5)
    np.testing.assert_allclose(exact.cov, [[0.5031, 0], [0, 0.6923]], atol=5e-5)


def test_maximum_likelihood_is_as_published():
    np.testing.assert_allclose(study.least_squares(), [2.9205, -1.7267], atol=5e-5)


def test_the_grid_is_as_published():
    weights, best = study.grid_likelihood(), study.least_squares()
    assert weights.sum() == pytest.approx(1)
    assert study.on_grid(weights, best) == pytest.approx(0.02433, abs=5e-6)
    assert study.on_grid(weights, best / (1.8, 1)) == pytest.approx(0.00975, abs=5e-6)


def test_the_grid_posterior_is_that_of_the_closed_form():
    exact, grid = study.closed_form(), study.grid_posterior()
    np.testing.assert_allclose(grid.mean, exact.mean, atol=1e-6)
    np.testing.assert_allclose(grid.cov, exact.cov, atol=1e-6)


def test_discretised_langevin_variance_is_that_of_a_simulated_chain():
    exact, step = study.closed_form(), 0.2
    rng, precision = np.random.default_rng(0), np.linalg.inv(exact.cov)
    theta = np.zeros((20_000, 2))
    for _ in range(200):
        theta += -step / 2 * theta @ precision + np.sqrt(step) * rng.standard_normal(theta.shape)
    expected = study.discretised(exact, step).cov
    assert expected[0, 0] > 1.1 * exact.cov[0, 0]
    np.testing.assert_allclose(np.cov(theta.T), expected, atol=0.03)


def test_a_quick_run_finds_the_mode_and_the_neighbourhood(tmp_path):
    result = studies.run("linear-regression", quick=True, device="cpu", folder=tmp_path, progress=False)
    exact = study.closed_form()
    np.testing.assert_allclose(result.numbers["MAP"]["mean"], exact.mean, atol=1e-3)
    for name in ("HMC", "SGLD"):
        np.testing.assert_allclose(result.numbers[name]["mean"], exact.mean, atol=0.6)
    assert [row[0] for row in result.tables[1].rows][:5] == ["exact", "grid, 30 x 30", "MAP", "HMC", "SGLD"]
