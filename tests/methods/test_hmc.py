"""HMC's trajectories: energy, reversibility, acceptance, and adaptation."""

import math

import pytest
import torch

import dubito


def started(problem, **settings):
    method = dubito.HMC(**settings)
    state = method.init(problem.theta, problem.target, dubito.Tick.at(0, 100))
    method._place(state, *problem.target.value_and_grad(state.theta, problem.batch))
    return method, state


def drift(problem, size: float, leapfrog: int) -> torch.Tensor:
    method, state = started(problem, leapfrog=leapfrog)
    momentum = torch.ones_like(state.theta)
    before = method._log_joint(state.parts, momentum, problem.target)
    step = torch.full((2,), size, dtype=torch.float64)
    _, parts, _, momentum = method._trajectory(state, step, momentum, problem.batch, problem.target)
    return (method._log_joint(parts, momentum, problem.target) - before).abs()


def test_the_energy_error_falls_with_the_square_of_the_step(problem):
    coarse, fine = drift(problem, 0.01, 20), drift(problem, 0.005, 40)
    ratio = coarse / fine
    assert bool((ratio > 3.3).all()) and bool((ratio < 4.7).all())


def test_a_trajectory_run_backwards_returns(problem):
    method, state = started(problem, leapfrog=15)
    size = torch.full((2,), 0.01, dtype=torch.float64)
    momentum = torch.randn(2, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    theta, parts, grad, end = method._trajectory(state, size, momentum, problem.batch, problem.target)
    there = state._replace(theta=theta, parts=parts, grad=grad)
    back, _, _, momentum_back = method._trajectory(there, size, -end, problem.batch, problem.target)
    torch.testing.assert_close(back, problem.theta)
    torch.testing.assert_close(momentum_back, -momentum)


def test_the_energy_is_that_of_the_posterior(problem):
    method, state = started(problem)
    zero = torch.zeros_like(state.theta)
    energy = method._log_joint(state.parts, zero, problem.target)
    known = problem.log_joint(state.theta)
    torch.testing.assert_close(energy[0] - energy[1], known[0] - known[1])


def test_a_hopeless_step_is_rejected_and_shrinks(problem):
    method, state = started(problem, step_size=1e6, leapfrog=5, burn_in=50)
    before, size = state.theta.clone(), state.log_step.clone()
    state, told = method.step(state, problem.batch, problem.target, dubito.Tick.at(1, 100))
    assert torch.equal(state.theta, before)
    assert bool((told.accept == 0).all()) and bool((told.divergent == 1).all())
    for step in range(2, 12):
        state, _ = method.step(state, problem.batch, problem.target, dubito.Tick.at(step, 100))
    assert bool((state.log_step < size - 1).all())


def test_adaptation_reaches_the_acceptance_aimed_at(problem):
    method, state = started(problem, leapfrog=5, accept=0.8, burn_in=400, step_size=0.5)
    accepted = []
    for step in range(1, 700):
        state, told = method.step(state, problem.batch, problem.target, dubito.Tick.at(step, 700))
        if step >= 400:
            accepted.append(told.accept)
    assert abs(float(torch.stack(accepted).mean()) - 0.8) < 0.1


def test_the_first_step_size_follows_the_data(problem):
    _, state = started(problem)
    torch.testing.assert_close(state.log_step.exp(), torch.full((2,), 0.1 / math.sqrt(12), dtype=torch.float64))


@pytest.mark.parametrize("settings", [{"leapfrog": 0}, {"accept": 1.0}, {"step_size": 0.0}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValueError):
        dubito.HMC(**settings)


def test_all_rows_are_used_at_every_step(problem):
    x, y = problem.batch.x, problem.batch.y
    with pytest.raises(ValueError, match="batch_size"):
        dubito.fit(problem.module, (x, y), dubito.HMC(), steps=2, batch_size=5, progress=False)
