"""Ensembles and cycles: what they keep, and when they are noisy."""

import pytest
import torch

import dubito
from dubito.methods.recipes import _resample
from dubito.rng import derive


def test_snapshots_are_kept_at_the_end_of_each_cycle():
    method = dubito.SnapshotEnsemble(cycles=4)
    assert [step for step in range(40) if method.keeps(step, 40)] == [9, 19, 29, 39]
    assert [method.rates(step, 40) for step in (0, 10, 20)] == [1.0, 1.0, 1.0]
    assert method.rates(9, 40) < 0.03


@pytest.mark.parametrize("cls", [dubito.CyclicalSGLD, dubito.CyclicalSGHMC])
def test_cycles_explore_without_noise_and_sample_with_it(cls, problem):
    method = cls(cycles=2, exploration=0.5, step_size=1e-3)
    noisy = [method.noisy(step, 20) for step in range(20)]
    assert noisy == ([False] * 5 + [True] * 5) * 2
    assert [method.keeps(step, 20) for step in range(20)] == noisy
    sizes = [2 * method.sizes(dubito.Tick.at(step, 20), problem.target)[0] for step in (0, 5, 10)]
    assert sizes == pytest.approx([1e-3, 5e-4, 1e-3])
    assert method.depends_on_steps


def test_an_exploring_step_is_plain_ascent(problem):
    method = dubito.CyclicalSGLD(step_size=1e-3, cycles=1)
    state = method.init(problem.theta, problem.target, dubito.Tick.at(0, 100))
    state, _ = method.step(state, problem.batch, problem.target, dubito.Tick.at(0, 100))
    torch.testing.assert_close(state.theta, problem.theta + 5e-4 * problem.gradient(problem.theta))


def test_bootstrap_counts_are_resamples():
    counts = _resample(1000, seed=1)
    assert int(counts.sum()) == 1000
    assert abs(float((counts == 0).float().mean()) - 0.368) < 0.05


def test_a_bootstrapped_member_sees_its_own_resample(problem):
    x, y = problem.batch.x, problem.batch.y
    method = dubito.DeepEnsemble(bootstrap=True, learning_rate=0.05, schedule="cosine")
    posterior = dubito.fit(
        problem.module, (x, y), method, steps=1500, batch_size=12, members=2, likelihood=dubito.Gaussian(std=0.3),
        prior=dubito.Normal(2.0), progress=False, device="cpu", seed=4,
    )  # fmt: skip
    for member in range(2):
        counts = _resample(12, derive(4, "bootstrap", member)).double()
        precision = x.T @ (counts[:, None] * x) / 0.3**2 + torch.eye(3).double() / 4
        mode = torch.linalg.solve(precision, x.T @ (counts * y) / 0.3**2)
        torch.testing.assert_close(posterior.thetas(2)[member], mode, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    "make", [lambda: dubito.SnapshotEnsemble(cycles=0), lambda: dubito.CyclicalSGLD(exploration=1.0)]
)
def test_bad_settings_are_refused(make):
    with pytest.raises(ValueError):
        make()
