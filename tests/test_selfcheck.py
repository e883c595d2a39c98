"""The known answers are right, and a method that is wrong does not pass."""

import math
from dataclasses import dataclass, fields, replace

import pytest
import torch

import dubito
from dubito import methods, selfcheck
from dubito.priors import assign
from dubito.results import Result
from dubito.runtime import pool
from dubito.selfcheck import checks, problems, verdicts
from dubito.selfcheck.masks import RATE, Dropping, masks
from dubito.selfcheck.plans import QUICK, Effort, plan
from dubito.selfcheck.problems import closed_form, quadrature
from dubito.selfcheck.verdicts import TOLERANCES, Measured, failures
from dubito.target import Batch, Target

SHORT = Effort(chains=128, draws=1_400, descent=100)
ALL = [problems.linear(False), problems.linear(True), problems.logistic(), problems.tiny_net()]
ROUND = problems.linear(bias=False, correlation=0.0)


def points(problem, n: int = 4) -> torch.Tensor:
    return torch.randn(n, problem.size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.fixture(params=ALL, ids=lambda p: p.name)
def problem(request):
    return request.param


# the problems


def test_the_formula_is_the_network(problem):
    net = dubito.Net(problem.net)
    for theta in points(problem):
        known = problem.outputs(theta, problem.grid)[0][0]
        torch.testing.assert_close(net(theta.float(), problem.grid)[:, 0].double(), known, rtol=1e-5, atol=1e-5)


def test_the_log_joint_is_the_target_s_up_to_a_constant(problem):
    net = dubito.Net(problem.net)
    target = Target(net, problem.likelihood, assign(problem.prior, problem.net), len(problem.y))
    theta = points(problem)
    parts, grad = target.value_and_grad(theta.float(), Batch(problem.x, problem.y, torch.arange(len(problem.y))))
    found = target.n_data * parts.log_lik + parts.log_prior
    known = torch.stack([problem.log_joint(t) for t in theta])
    torch.testing.assert_close((found - found[0]).double(), known - known[0], rtol=1e-4, atol=1e-3)
    slope = torch.func.vmap(torch.func.grad(problem.log_joint))(theta)
    torch.testing.assert_close(grad.double(), slope, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("bias", [False, True])
def test_the_closed_form_is_the_mode_and_the_curvature_there(bias):
    problem = problems.linear(bias)
    known = closed_form(problem)
    torch.testing.assert_close(problem.mode(), known.mean)
    curvature = problem.curvature(known.mean)
    torch.testing.assert_close(torch.linalg.inv(curvature).diagonal(), known.variance)
    torch.testing.assert_close(1 / curvature.diagonal(), known.mean_field)
    assert bool((known.mean_field < 0.85 * known.variance).any()), "the two answers must be tellable apart"
    assert float(problem.gap(known.mean).max()) < 1e-9


def test_a_step_of_one_standard_deviation_is_a_gap_of_one():
    problem, known = ROUND, closed_form(ROUND)
    moved = known.mean + torch.tensor([1.0, 0.0], dtype=torch.float64) * known.variance.sqrt()
    torch.testing.assert_close(problem.gap(moved), torch.tensor([1.0, 0.0], dtype=torch.float64), atol=1e-6, rtol=0)


def test_a_saddle_is_no_mode():
    net = problems.tiny_net()
    assert bool(torch.isinf(net.gap(torch.full((net.size,), 1e-3, dtype=torch.float64))).all())


def test_quadrature_finds_the_closed_form():
    problem = problems.linear(bias=False)
    known, found = closed_form(problem), quadrature(problem)
    torch.testing.assert_close(found.mean, known.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.variance, known.variance, rtol=1e-8, atol=1e-8)
    assert (found.low, found.high) == pytest.approx((known.low, known.high))


def test_masks_average_to_one_and_are_all_there():
    keep, weight = masks(3, Dropping(RATE))
    assert keep.shape == (8, 3)
    assert float(weight.sum()) == pytest.approx(1.0)
    torch.testing.assert_close(weight @ keep, torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(weight @ keep.square() - 1, torch.full((3,), RATE / (1 - RATE), dtype=torch.float64))


def test_relaxed_masks_have_the_moments_of_the_concrete_distribution_and_become_binary():
    uniform = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    logit = torch.tensor(0.3, dtype=torch.float64).logit()
    for relaxation in (0.5, 0.1, 0.02):
        keep, weight = masks(1, Dropping(0.3, relaxation=relaxation))
        known = ((uniform.logit() - logit) / relaxation).sigmoid() / 0.7
        assert float(weight.sum()) == pytest.approx(1.0)
        for power in (1, 2, 3):
            assert float(weight @ keep[:, 0] ** power) == pytest.approx(float((known**power).mean()), rel=2e-3)
    binary = masks(2, Dropping(0.3))
    keep, weight = masks(2, Dropping(0.3, relaxation=1e-9))
    for power in (1, 2):
        torch.testing.assert_close(weight @ keep**power, binary.weight @ binary.keep**power)


def test_the_bound_of_a_learned_rate_has_the_rates_of_a_hand_made_optimum():
    """With one input whose weight must be 0 nothing but entropy is left, and it wants a rate of one half."""
    problem = replace(problems.linear(bias=False), y=torch.zeros(20))
    theta, rate = problem.masked_optimum(torch.ones(2, dtype=torch.float64), torch.tensor(0.1).double(), 0.0)
    torch.testing.assert_close(theta, torch.zeros(2, dtype=torch.float64), atol=1e-4, rtol=0)
    assert float(rate) == pytest.approx(0.5, abs=1e-3)


def test_dropout_on_the_inputs_of_a_linear_model_is_ridge_regression():
    """E|y - (x * m) w|^2 = |y - x w|^2 + p / (1 - p) w' diag(x'x) w (Wager et al., 2013, arXiv 1307.1493)."""
    problem = problems.linear(bias=False)
    x, y = problem.x.double(), problem.y.double()
    gram = x.T @ x
    ridge = RATE / (1 - RATE) * torch.diag(gram.diagonal()) + torch.eye(2, dtype=torch.float64) / problem.prior.std**2
    mode = torch.linalg.solve(gram + ridge, x.T @ y)
    torch.testing.assert_close(problem.mode(Dropping(RATE)), mode)
    mean, variance = problem.predicted(mode, RATE)
    grid = problem.grid.double()
    torch.testing.assert_close(mean, grid @ mode)
    torch.testing.assert_close(variance, RATE / (1 - RATE) * grid.square() @ mode.square())


# the verdicts


def test_limits_are_limits():
    good = Measured(0.05, 0.02, 0.9, 1.1, 1500.0, 0.99, 0.01)
    assert failures(good, TOLERANCES["exact"]) == ()
    wrong = {
        "bias": 0.11,
        "ratio_low": 0.84,
        "ratio_high": 1.16,
        "ess": 999.0,
        "agreement": 0.9,
        "total_variation": 0.03,
    }
    names = ["bias", "variance", "variance", "ESS", "agreement", "total variation"]
    for (field, value), name in zip(wrong.items(), names, strict=True):
        assert failures(good._replace(**{field: value}), TOLERANCES["exact"]) == (name,)
        assert failures(good._replace(**{field: math.nan}), TOLERANCES["exact"]) == (name,)
    assert failures(good._replace(agreement=0.0, total_variation=1.0), TOLERANCES["point"]) == ()
    assert failures(Measured(), TOLERANCES["exact"]) == ()


def test_the_table_of_tolerances_has_every_answer_and_its_meaning():
    assert {cls.answer for cls in methods.registry().values()} <= set(TOLERANCES)
    assert TOLERANCES.keys() == verdicts.MEANINGS.keys() == verdicts.MEASURES.keys()


@dataclass(frozen=True, kw_only=True)
class Loud(dubito.SGLD):
    """Noise of twice the variance, the classic mistake."""

    def step(self, state, batch, target, tick):
        state, told = super().step(state, batch, target, tick)
        state.theta.add_(tick.rng.normal_(torch.empty_like(state.theta), "more"), alpha=math.sqrt(self.step_size))
        return state, told


@dataclass(frozen=True, kw_only=True)
class Forgetful(dubito.SGLD):
    """A batch taken for all of the data: the likelihood counts half."""

    def step(self, state, batch, target, tick):
        half = Target(target.net, target.likelihood, target.prior, len(batch.y), target.temperature)
        return super().step(state, batch, half, tick)


@dataclass(frozen=True, kw_only=True)
class Free(dubito.MAP):
    """A point estimate that leaves out the prior."""

    def step(self, state, batch, target, tick):
        flat = {name: dubito.Normal(std=1e3) for name in target.prior}
        return super().step(state, batch, Target(target.net, target.likelihood, flat, target.n_data), tick)


@dataclass(frozen=True, kw_only=True)
class Wild(dubito.SGLD):
    """Steps without bound."""

    def sizes(self, tick, target):
        return 5e5, 1e3


@pytest.mark.parametrize(
    ("method", "failed"), [(Loud, "variance"), (Forgetful, "variance"), (Free, "bias"), (Wild, "diverged")]
)
def test_a_wrong_method_does_not_pass(method, failed):
    row = selfcheck.check(method, ROUND, closed_form(ROUND), SHORT)
    assert failed in row.failed
    assert "FAIL" in str(row.cells)


def test_dropout_off_in_training_does_not_pass():
    class Dry(dubito.MCDropout):
        def step(self, state, batch, target, tick):
            parts, grad = target.value_and_grad(state.theta, batch)
            self.descend_(state.theta, grad.div_(-target.n_data), state.optim, tick)
            return state, methods.base.info(parts.log_lik, parts.log_prior, target)

    row = selfcheck.check(Dry, ROUND, closed_form(ROUND), SHORT)
    assert row.failed == ("bias",)


def test_an_unknown_class_of_answer_is_refused_before_anything_runs(monkeypatch):
    class Odd(dubito.MAP):
        answer = "oracle"

    monkeypatch.setattr(checks, "registry", lambda: {"Odd": Odd})
    with pytest.raises(ValueError, match="Odd gives answers of class 'oracle'"):
        selfcheck.run(quick=True, progress=False)


def test_a_mean_field_answer_is_judged_by_factorised_variances():
    problem = problems.linear(bias=True)
    known = closed_form(problem)

    class Factorised:
        def __init__(self, variance):
            self.variance = variance

        def moments(self):
            return known.mean.float(), self.variance.sqrt().float()

    class Future(dubito.MAP):
        answer = "mean-field"

    limits = TOLERANCES["mean-field"]
    right, wrong = (
        verdicts.measure(Future, Factorised(v), problem, known) for v in (known.mean_field, 1.5 * known.mean_field)
    )
    assert failures(right, limits) == ()
    assert failures(wrong, limits) == ("variance",)


# the plans


@pytest.mark.parametrize("name", sorted(methods.registry()))
def test_settings_follow_the_curvature(name):
    cls, problem, known = methods.registry()[name], problems.linear(True), closed_form(problems.linear(True))
    stiff = known._replace(low=100 * known.low, high=100 * known.high)
    usual, steep = plan(cls, problem, known, QUICK), plan(cls, problem, stiff, QUICK)
    field = "learning_rate" if hasattr(usual.method, "learning_rate") else "step_size"
    assert getattr(steep.method, field) < getattr(usual.method, field)
    assert usual.batch_size in (10, 20)
    assert usual.steps > 0


def test_a_method_without_known_fields_runs_with_its_defaults():
    @dataclass(frozen=True, kw_only=True)
    class Plain(methods.Method):
        answer = "point"

        def init(self, theta, target, tick): ...
        def step(self, state, batch, target, tick): ...
        def weights(self, state): ...
        def posterior(self, state, target): ...

    assert not fields(Plain)
    assert plan(Plain, ROUND, closed_form(ROUND), QUICK).method == Plain()


# all together


def test_a_run_is_a_result(monkeypatch, tmp_path):
    chosen = {problems.linear(bias=True): checks._closed_form, problems.logistic(): checks._quadrature}
    monkeypatch.setattr(checks, "_problems", lambda quick: chosen)
    monkeypatch.setattr(checks, "registry", lambda: {"MAP": dubito.MAP, "SnapshotEnsemble": dubito.SnapshotEnsemble})
    result = selfcheck.run(quick=True, progress=False)
    assert result.numbers["passed"], result.numbers["checks"]
    found = result.numbers["checks"]["logistic"]["MAP"]
    assert found["bias"] < 0.1 and found["agreement"] > 0.95
    assert result.settings["plans"]["logistic"]["MAP"]["method"]["name"] == "MAP"
    assert [len(table.rows) for table in result.tables] == [2, 2, len(TOLERANCES)]
    assert Result.load(result.save(tmp_path / "selfcheck.json")).numbers["passed"]


def test_every_problem_is_in_the_quick_and_in_the_full_run():
    quick, full = ([p.name for p in checks._problems(q)] for q in (True, False))
    assert quick == ["linear-bias", "logistic", "net"]
    assert full == ["linear", "linear-bias", "logistic", "net"]


def test_a_reference_that_has_not_converged_is_doubted(monkeypatch):
    monkeypatch.setattr(checks, "ADAPTATION", 10)
    found = checks.long_run(problems.tiny_net(), Effort(chains=8, draws=4, descent=1))
    assert found.doubt == "HMC has not converged"
    assert found.probs.shape == (256, 2)


def test_one_failure_fails_the_run_and_hmc_s_failure_discredits_the_reference(monkeypatch):
    known = closed_form(problems.linear(bias=True))

    def wrong(method, problem, reference, effort):
        planned = plan(method, problem, reference, effort)
        failed = ("bias",) if problem.name == "logistic" else ()
        return checks.Row(problem.name, method.__name__, "exact", Measured(), failed, 0.0, planned)

    def solve(problem, effort):
        return known

    monkeypatch.setattr(checks, "check", wrong)
    monkeypatch.setattr(checks, "long_run", solve)
    monkeypatch.setattr(checks, "registry", lambda: {"HMC": dubito.HMC, "MAP": dubito.MAP})
    chosen = {problems.logistic(): lambda problem, effort: known, problems.tiny_net(): solve}
    monkeypatch.setattr(checks, "_problems", lambda quick: chosen)
    result = selfcheck.run(quick=True, progress=False)
    assert not result.numbers["passed"]
    assert result.numbers["checks"]["net"]["MAP"]["failed"] == ["HMC missed a known answer"]
    assert "4 FAILED" in result.summary


def test_workers_find_what_one_process_finds():
    chosen = {problems.linear(bias=True): checks._closed_form}
    methods = {"MAP": dubito.MAP, "HMC": dubito.HMC}
    effort = Effort(chains=4, draws=40, descent=5)
    alone = list(checks._rows(chosen, methods, effort))
    with pool(2) as processes:
        shared = list(checks._rows(chosen, methods, effort, processes))
    assert [row.found for row in shared] == [row.found for row in alone]
    with pytest.raises(ValueError, match="at least 1"):
        pool(0)
