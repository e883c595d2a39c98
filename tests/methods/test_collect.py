"""Which states are kept."""

import pytest

import dubito
from dubito.methods.collect import Collect


def kept(method, steps: int) -> list[int]:
    collect = Collect.of(method)
    return [step + 1 for step in range(steps) if collect.keeps(step, steps)]


def test_the_rule_of_the_published_chain():
    collect = Collect.of(dubito.SGLD(burn_in=500, thin=20))
    assert collect.kept(200_000) == 9_975
    assert sum(collect.keeps(step, 5_000) for step in range(5_000)) == 225


def test_updates_are_counted_from_one_after_burn_in():
    assert kept(dubito.SGLD(burn_in=4, thin=3), 12) == [7, 10]
    assert kept(dubito.SGLD(burn_in=0, thin=1), 3) == [1, 2, 3]


def test_only_the_last_so_many():
    assert kept(dubito.SGLD(burn_in=0, thin=2, keep=2), 11) == [8, 10]
    assert Collect.of(dubito.SGLD(keep=2)).depends_on_steps
    assert not Collect.of(dubito.SGLD()).depends_on_steps


def test_cyclical_samplers_are_thinned_inside_their_sampling_parts():
    assert kept(dubito.CyclicalSGLD(cycles=2, exploration=0.5, thin=2), 20) == [6, 8, 10, 16, 18, 20]


def test_a_run_that_keeps_nothing_says_so(problem):
    with pytest.raises(ValueError, match="burn_in"):
        dubito.fit(
            problem.module, (problem.batch.x, problem.batch.y), dubito.SGLD(burn_in=50), steps=10, progress=False
        )
