"""SGLD's update by hand, its default step, and its schedules."""

import math

import pytest
import torch

import dubito
from dubito.schedules import Polynomial


def test_one_step_is_the_textbook_update(problem):
    method, tick = dubito.SGLD(step_size=1e-3), dubito.Tick.at(0, 10, seed=3)
    state = method.init(problem.theta, problem.target, tick)
    state, told = method.step(state, problem.batch, problem.target, tick)
    noise = tick.rng.normal_(torch.empty_like(problem.theta), "langevin")
    expected = problem.theta + 5e-4 * problem.gradient(problem.theta) + math.sqrt(1e-3) * noise
    torch.testing.assert_close(state.theta, expected)
    assert told.fit.shape == (2,)


def test_members_have_noise_of_their_own(problem):
    noise = dubito.Tick.at(0, 10).rng.normal_(torch.empty(2, 1000), "langevin")
    assert abs(float(torch.corrcoef(noise)[0, 1])) < 0.15


def test_the_default_step_is_a_share_of_one_over_n():
    assert dubito.SGLD().resolve(50_000).step_size == pytest.approx(1e-6)
    assert dubito.SGLD(step_size=0.1).resolve(7).step_size == 0.1


def test_polynomial_decay_shrinks_the_step(problem):
    method = dubito.SGLD(step_size=1.0, schedule=Polynomial(b=10.0, gamma=0.55))
    sizes = [method.sizes(dubito.Tick.at(step, 100), problem.target) for step in (0, 10, 90)]
    for (half, root), eps in zip(sizes, [1.0, 2**-0.55, 10**-0.55], strict=True):
        assert half == pytest.approx(eps / 2) and root == pytest.approx(eps**0.5)
    assert not method.depends_on_steps


@pytest.mark.parametrize(
    "settings",
    [{"step_size": 0.0}, {"step_size": -1.0}, {"thin": 0}, {"burn_in": -1}, {"keep": 0}, {"schedule": "cosin"}],
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValueError):
        dubito.SGLD(**settings)
