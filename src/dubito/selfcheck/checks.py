"""The checks themselves: problems solved, methods fitted and judged, a Result made of it all."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar

import torch

from dubito.config import to_dict
from dubito.fit import fit
from dubito.methods import registry
from dubito.methods.base import Method
from dubito.methods.hmc import HMC
from dubito.progress import track
from dubito.results import Cell, Result, Table, environment
from dubito.runtime import one_thread, pool
from dubito.selfcheck import problems
from dubito.selfcheck.plans import ADAPTATION, FULL, QUICK, Effort, Plan, plan
from dubito.selfcheck.problems import Problem, Reference
from dubito.selfcheck.verdicts import MEANINGS, TOLERANCES, Measured, converged, failures, measure, tolerance

Answer = TypeVar("Answer")
REFERENCE_LEAPFROG = 8
REFERENCE_SEED = 1  # the runs that are checked have seed 0
LONGER = 8  # times more trajectories in the reference than draws wanted, in a quarter of the chains
FEWER = 2  # times fewer draws and steps of descent where weights are not compared

COLUMNS = ("method", "class", "bias", "rms", "var min", "var max", "ESS", "agreement", "TV", "verdict", "s")
FORMATS = dict.fromkeys(("bias", "rms", "var min", "var max", "agreement"), ".3f") | {
    "ESS": ",.0f",
    "TV": ".4f",
    "s": ".1f",
}
NOTE = (
    "bias: largest and root mean square distance from the known mean or mode, in posterior standard deviations; var: "
    "least and largest variance, found to known; agreement and TV (total variation): of predictions with those of the "
    "posterior."
)


@dataclass(frozen=True)
class Row:
    """One method on one problem."""

    problem: str
    method: str
    answer: str
    found: Measured
    failed: tuple[str, ...]
    seconds: float
    plan: Plan

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The row as it is printed."""
        verdict = "FAIL: " + ", ".join(self.failed) if self.failed else "pass"
        return (self.method, self.answer, *self.found, verdict, self.seconds)


def run(quick: bool = False, progress: bool = True, workers: int = 1) -> Result:
    """Check every method there is; `numbers["passed"]` says whether all are right.

    Several workers are processes that start afresh, so that a script needs its `if __name__ == "__main__":` for them.
    """
    began, effort = time.monotonic(), QUICK if quick else FULL
    methods = registry()
    for method in methods.values():
        tolerance(method)
    chosen = _problems(quick)
    with one_thread(), pool(workers) as processes:
        rows = list(track(_rows(chosen, methods, effort, processes), len(chosen) * len(methods), "selfcheck", progress))
    return _result(chosen, rows, quick, time.monotonic() - began)


def check(method: type[Method[Any]], problem: Problem, reference: Reference, effort: Effort) -> Row:
    """Fit one method to one problem and judge what comes out."""
    planned = plan(method, problem, reference, effort if problem.identified else _fewer(effort))
    began, found = time.monotonic(), Measured()
    try:
        found = measure(method, _fitted(problem, planned, method.answer == "dropout"), problem, reference)
        failed = failures(found, tolerance(method))
    except ArithmeticError:
        failed = ("diverged",)
    return Row(problem.name, method.__name__, method.answer, found, failed, time.monotonic() - began, planned)


def long_run(problem: Problem, effort: Effort) -> Reference:
    """Predictions by many chains of HMC, with its own diagnosis as the reason to doubt it."""
    method, chains = HMC(leapfrog=REFERENCE_LEAPFROG, burn_in=ADAPTATION), effort.chains // 4
    steps = ADAPTATION + LONGER * effort.draws // chains
    posterior = _fitted(problem, Plan(method, steps, chains, len(problem.y)), seed=REFERENCE_SEED)
    probs = posterior.predict(problem.grid, draws=len(posterior)).probs
    high = problems.steepness(problem, posterior.thetas(64))
    doubt = "" if converged(posterior, problem) else "HMC has not converged"
    return Reference(problem.prior.std**-2, high, probs=probs, doubt=doubt)


def _problems(quick: bool) -> dict[Problem, Callable[[Problem, Effort], Reference]]:
    """The problems in order, and how each is solved; the closed form comes first because HMC must pass it."""
    closed = [problems.linear(bias=True)] if quick else [problems.linear(bias=False), problems.linear(bias=True)]
    return {
        **dict.fromkeys(closed, _closed_form),
        problems.logistic(): _quadrature,
        problems.tiny_net(): long_run,
    }


def _closed_form(problem: Problem, effort: Effort) -> Reference:
    return problems.closed_form(problem)


def _quadrature(problem: Problem, effort: Effort) -> Reference:
    return problems.quadrature(problem)


def _rows(
    chosen: Mapping[Problem, Callable[[Problem, Effort], Reference]],
    methods: Mapping[str, type[Method[Any]]],
    effort: Effort,
    pool: Executor | None = None,
) -> Iterator[Row]:
    """All checks in order; in a pool, the known answers and all that they allow are begun at once."""
    wrong = False
    solved = {problem: _begun(pool, solve, problem, effort) for problem, solve in chosen.items()}
    begun = {
        problem: [_begun(pool, check, method, problem, answer(), effort) for method in methods.values()]
        for problem, answer in solved.items()
    }
    for problem, checks in begun.items():
        doubt = solved[problem]().doubt
        if chosen[problem] is long_run and wrong:
            doubt = "HMC missed a known answer"
        for row in (finish() for finish in checks):
            wrong = wrong or (row.method == HMC.__name__ and bool(row.failed))
            yield replace(row, failed=(*row.failed, doubt)) if doubt else row


def _begun(pool: Executor | None, f: Callable[..., Answer], *args: Any) -> Callable[[], Answer]:
    """A call begun in a pool, or put off until its answer is asked for, once."""
    return cache(partial(f, *args)) if pool is None else pool.submit(f, *args).result


def _fewer(effort: Effort) -> Effort:
    return replace(effort, draws=effort.draws // FEWER, descent=effort.descent // FEWER)


def _fitted(problem: Problem, planned: Plan, dropping: bool = False, seed: int = 0) -> Any:
    return fit(
        problem.dropping if dropping else problem.net,
        tuple(torch.cat([part] * planned.copies) for part in (problem.x, problem.y)),
        planned.method,
        likelihood=problem.likelihood,
        prior=problem.prior,
        steps=planned.steps,
        batch_size=planned.batch_size * planned.copies,
        n_data=len(problem.y),
        members=planned.members,
        seed=seed,
        device="cpu",
        progress=False,
    )


def _result(chosen: Mapping[Problem, Any], rows: Sequence[Row], quick: bool, seconds: float) -> Result:
    failed = [row for row in rows if row.failed]
    verdict = "all passed" if not failed else f"{len(failed)} FAILED"
    tables = [
        Table(p.title, COLUMNS, [row.cells for row in rows if row.problem == p.name], formats=FORMATS) for p in chosen
    ]
    return Result(
        name="selfcheck",
        title="Every method against answers that are known",
        summary=f"{len(rows)} checks on {len(chosen)} problems in {seconds:.0f} s: {verdict}.\n\n{NOTE}",
        numbers={"passed": not failed, "seconds": seconds, "checks": _numbers(rows)},
        tables=[*tables, _limits()],
        settings={"quick": quick, "plans": _settings(rows)},
        environment=environment(),
    )


def _numbers(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        measured = {**row.found._asdict(), "seconds": row.seconds, "failed": list(row.failed)}
        found.setdefault(row.problem, {})[row.method] = measured
    return found


def _settings(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    for row in rows:
        told = {"steps": row.plan.steps, "members": row.plan.members, "batch_size": row.plan.batch_size}
        made.setdefault(row.problem, {})[row.method] = {"method": to_dict(row.plan.method), **told}
    return made


def _limits() -> Table:
    """The one table of tolerances."""
    rows = [
        (name, MEANINGS[name], t.bias, *(t.ratio or (None, None)), t.ess, t.agreement, t.total_variation)
        for name, t in TOLERANCES.items()
    ]
    columns = ("class", "answer", "bias at most", "var from", "var to", "ESS from", "agreement from", "TV at most")
    return Table("Tolerances by class of answer", columns, rows, formats={"ESS from": ",.0f"})
