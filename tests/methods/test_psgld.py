"""PSGLD's update by hand, and the preconditioner that stops moving."""

import math

import pytest
import torch

import dubito


def test_one_step_is_the_stated_update(problem):
    method, tick = dubito.PSGLD(step_size=1e-3, floor=0.5), dubito.Tick.at(0, 10)
    state = method.init(problem.theta, problem.target, tick)
    state, _ = method.step(state, problem.batch, problem.target, tick)
    grad = problem.gradient(problem.theta)
    metric = 1 / (0.5 + (grad / 12).abs())
    noise = tick.rng.normal_(torch.empty_like(grad), "langevin")
    expected = problem.theta + 5e-4 * metric * grad + math.sqrt(1e-3) * metric.sqrt() * noise
    torch.testing.assert_close(state.theta, expected)


def test_the_preconditioner_is_constant_after_burn_in(problem):
    method = dubito.PSGLD(step_size=1e-4, burn_in=5)
    state = method.init(problem.theta, problem.target, dubito.Tick.at(0, 20))
    seen = []
    for step in range(12):
        state, _ = method.step(state, problem.batch, problem.target, dubito.Tick.at(step, 20))
        seen.append(state.square.clone())
    assert not torch.equal(seen[3], seen[4])
    assert all(torch.equal(later, seen[6]) for later in seen[7:])


@pytest.mark.parametrize("settings", [{"floor": 0.0}, {"decay": 1.0}, {"decay": -0.1}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValueError):
        dubito.PSGLD(**settings)
