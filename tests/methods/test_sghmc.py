"""SGHMC's update by hand, and its limit."""

import math

import pytest
import torch

import dubito


def test_one_step_is_the_stated_update(problem):
    method = dubito.SGHMC(step_size=1e-3, friction=0.2)
    state = method.init(problem.theta, problem.target, dubito.Tick.at(0, 10))
    theta, velocity = problem.theta, torch.zeros_like(problem.theta)
    for step in range(3):
        tick = dubito.Tick.at(step, 10)
        state, _ = method.step(state, problem.batch, problem.target, tick)
        noise = tick.rng.normal_(torch.empty_like(theta), "langevin")
        velocity = 0.8 * velocity + 5e-4 * problem.gradient(theta) + math.sqrt(0.2 * 1e-3) * noise
        theta = theta + velocity
    torch.testing.assert_close(state.theta, theta)
    torch.testing.assert_close(state.velocity, velocity)


def test_full_friction_is_sgld(problem):
    hmc, sgld = dubito.SGHMC(step_size=1e-3, friction=1.0), dubito.SGLD(step_size=1e-3)
    tick = dubito.Tick.at(0, 10)
    first, second = (m.init(problem.theta, problem.target, tick) for m in (hmc, sgld))
    for step in range(5):
        tick = dubito.Tick.at(step, 10)
        first, _ = hmc.step(first, problem.batch, problem.target, tick)
        second, _ = sgld.step(second, problem.batch, problem.target, tick)
    torch.testing.assert_close(first.theta, second.theta)


def test_the_default_step_grows_with_friction():
    assert dubito.SGHMC(friction=0.5).resolve(100).step_size == pytest.approx(2.5e-4)


@pytest.mark.parametrize("friction", [0.0, 1.5, float("nan")])
def test_bad_friction_is_refused(friction):
    with pytest.raises(ValueError, match="friction"):
        dubito.SGHMC(friction=friction)
