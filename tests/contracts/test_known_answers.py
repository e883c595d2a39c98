"""Where the posterior is known every method lands on the answer of its class: a short form of `dubito selfcheck`."""

from dataclasses import replace

import pytest
import torch

import dubito
from dubito import methods
from dubito.selfcheck import check, problems
from dubito.selfcheck.plans import Effort, plan

METHODS = methods.registry()
SHORT = Effort(chains=128, draws=1_700, descent=150)
ROUND = problems.linear(bias=True, correlation=0.0)  # equal curvature in all directions, so that few steps suffice


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_answer_of_its_class_on_the_conjugate_model(name):
    row = check(METHODS[name], ROUND, problems.closed_form(ROUND), SHORT)
    assert row.failed == (), row


@pytest.mark.parametrize("name", ["HMC", "PSGLD", "SGHMC", "SGLD"])
def test_a_temperature_scales_the_covariance(name):
    reference = problems.closed_form(ROUND)
    cold = reference._replace(low=4 * reference.low, high=4 * reference.high)
    planned = plan(METHODS[name], ROUND, cold, SHORT)
    posterior = dubito.fit(
        ROUND.net, (ROUND.x, ROUND.y), planned.method, likelihood=ROUND.likelihood, prior=ROUND.prior, temperature=0.25,
        steps=planned.steps, batch_size=len(ROUND.y), members=planned.members, progress=False, device="cpu",
    )  # fmt: skip
    mean, std = (part.double() for part in posterior.moments())
    ratio = std.square() / (reference.variance / 4)
    assert float(((mean - reference.mean) / (reference.variance / 4).sqrt()).abs().max()) < 0.1
    assert float(ratio.min()) > 0.85 and float(ratio.max()) < 1.15


def test_decaying_steps_sample_the_same_posterior():
    """Welling and Teh's schedule: large steps first, and a smaller inflation of the variance later."""
    reference = problems.closed_form(ROUND)
    planned = plan(METHODS["SGLD"], ROUND, reference, SHORT)
    decaying = replace(planned.method, schedule=dubito.schedules.Polynomial(b=planned.steps, gamma=0.55))
    posterior = dubito.fit(
        ROUND.net, (ROUND.x, ROUND.y), decaying, likelihood=ROUND.likelihood, prior=ROUND.prior, steps=planned.steps,
        batch_size=planned.batch_size, members=planned.members, progress=False, device="cpu",
    )  # fmt: skip
    mean, std = (part.double() for part in posterior.moments())
    assert float(((mean - reference.mean) / reference.variance.sqrt()).abs().max()) < 0.1
    torch.testing.assert_close(std.square(), reference.variance, rtol=0.15, atol=0)
