import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dubito.schedules import (
    Constant,
    Cosine,
    CyclicalCosine,
    Linear,
    Polynomial,
    Rise,
    Schedule,
    StepDecay,
    WarmUp,
    ends_at_one,
    halving,
    parse,
)

ALL = [
    Constant(),
    Cosine(),
    Cosine(0.1),
    Linear(),
    Linear(0.5),
    StepDecay(0.5, 10),
    Polynomial(20.0, 0.6),
    CyclicalCosine(4),
    WarmUp(5),
    WarmUp(5, Cosine()),
]


@pytest.mark.parametrize("schedule", ALL, ids=repr)
def test_multipliers_are_python_floats_between_zero_and_one(schedule):
    values = [schedule(step, 40) for step in range(40)]
    assert all(type(value) is float and 0 < value <= 1 for value in values)


@pytest.mark.parametrize("schedule", ALL, ids=repr)
def test_depends_on_steps_says_whether_a_longer_run_differs(schedule):
    differs = any(schedule(step, 40) != schedule(step, 80) for step in range(40))
    assert schedule.depends_on_steps == differs


def test_cosine_starts_at_one_and_ends_at_its_floor():
    assert Cosine(0.1)(0, 100) == 1
    assert Cosine(0.1)(50, 100) == pytest.approx(0.55)
    assert Cosine(0.1)(100, 100) == pytest.approx(0.1)


def test_linear_waits_and_then_falls_to_zero():
    assert [Linear(0.5)(step, 8) for step in range(9)] == [1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]


def test_step_decay():
    assert [StepDecay(0.5, 3)(step, 9) for step in range(7)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]


def test_polynomial_is_the_schedule_of_welling_and_teh():
    a, b, gamma = 0.3, 23.0, 0.55
    first = a * b**-gamma
    for t in (0, 1, 10, 10_000):
        assert first * Polynomial(b, gamma)(t, 1) == pytest.approx(a * (b + t) ** -gamma)


def test_cyclical_cosine_is_the_schedule_of_zhang_et_al():
    steps, cycles = 120, 4
    length = math.ceil(steps / cycles)
    for k in range(1, steps + 1):
        expected = (math.cos(math.pi * ((k - 1) % length) / length) + 1) / 2
        assert CyclicalCosine(cycles)(k - 1, steps) == pytest.approx(expected)


@given(st.integers(1, 12), st.integers(0, 200))
def test_every_cycle_is_complete_and_of_nearly_the_same_length(cycles, extra):
    steps = cycles + extra
    positions = [CyclicalCosine(cycles).position(step, steps) for step in range(steps)]
    starts = [0] + [k for k in range(1, steps) if positions[k] < positions[k - 1] or cycles == steps] + [steps]
    lengths = {end - begin for begin, end in pairwise(starts)}
    assert len(starts) == cycles + 1
    assert max(lengths) - min(lengths) <= 1
    assert all(0 <= position < 1 for position in positions)


def test_warm_up_rises_to_the_start_of_the_next_schedule():
    schedule = WarmUp(4, Linear())
    assert [schedule(step, 8) for step in range(8)] == [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25]
    assert WarmUp(4)(1, 2) == 0.5


def test_names_and_objects_are_parsed():
    assert [parse(name) for name in ("constant", "cosine", "linear")] == [Constant(), Cosine(), Linear()]
    assert parse(StepDecay(0.1, 5)) == StepDecay(0.1, 5)


@pytest.mark.parametrize("value", ["cosign", "", None, ["cosine"]])
def test_an_unknown_name_lists_the_known_ones(value):
    with pytest.raises(ValueError, match=r"no schedule is called .*; use constant, cosine, linear or a Schedule"):
        parse(value)


def test_a_users_own_schedule_is_taken_to_depend_on_the_steps():
    class Square(Schedule):
        def __call__(self, step: int, steps: int) -> float:
            return (1 - step / steps) ** 2

    assert parse(Square())(5, 10) == 0.25
    assert Square().depends_on_steps


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        (Cosine, (1.5,)),
        (Cosine, (math.nan,)),
        (Linear, (1.0,)),
        (Linear, (-0.1,)),
        (StepDecay, (0.0, 5)),
        (StepDecay, (0.5, 0)),
        (Polynomial, (0.0, 0.6)),
        (Polynomial, (10.0, 0.5)),
        (Polynomial, (10.0, 1.1)),
        (CyclicalCosine, (0,)),
        (WarmUp, (0,)),
        (Cosine, ("low",)),
        (Linear, (None,)),
        (StepDecay, ("half", 5)),
        (StepDecay, (0.5, 2.5)),
        (Polynomial, ("b",)),
        (Polynomial, (10.0, "c")),
        (CyclicalCosine, (2.5,)),
        (WarmUp, (2.5,)),
        (WarmUp, (math.inf,)),
        (WarmUp, (3, "cosine")),
    ],
)
def test_bad_settings_are_refused_at_construction(cls, arguments):
    with pytest.raises(ValueError, match=f"^{cls.__name__}: .* must "):
        cls(*arguments)


def test_more_cycles_than_steps_are_refused():
    with pytest.raises(ValueError, match="5 cycles do not fit into 3 steps"):
        CyclicalCosine(5)(0, 3)


@pytest.mark.parametrize("batches", [1, 2, 3, 10, 60, 469, 100_000])
def test_halving_averages_one_over_an_epoch_of_any_length(batches):
    weights = [halving(step, batches) for step in range(2 * batches)]
    assert sum(weights[:batches]) / batches == pytest.approx(1.0)
    assert weights[batches:] == weights[:batches]
    assert all(math.isfinite(w) for w in weights)
    if batches <= 60:
        exact = [batches * 2 ** (batches - i) / (2**batches - 1) for i in range(1, batches + 1)]
        assert weights[:batches] == pytest.approx(exact)


def test_a_rise_is_the_papers_warm_up():
    """Nothing for 4 of 200 epochs, everything from the 20th on (Molchanov et al. 2017)."""
    rise = Rise(0.02, 0.1)
    values = [rise(epoch, 200) for epoch in range(200)]
    assert not any(values[:5]) and values[12] == pytest.approx(0.5) and set(values[20:]) == {1.0}
    assert all(a <= b for a, b in pairwise(values)) and rise.depends_on_steps
    for start, end in [(0.5, 0.5), (-0.1, 0.5), (0.2, 1.1), ("0", 1.0), (0.0, math.nan)]:
        with pytest.raises(ValueError, match="Rise: start is"):
            Rise(start, end)
    assert ends_at_one(rise) and ends_at_one(WarmUp(3)) and not ends_at_one(WarmUp(3, Cosine()))
