"""What does another draw cost? Seconds per epoch and memory for 1 to 10 draws a step, in three ways.

Sequential: a hand-written loop over weight draws with one backward pass. vmap: `Variational(estimator="weights")`. vmap
and local reparameterisation: `Variational(estimator="local")`. The slope by least squares is the cost of one more draw.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

import dubito
from dubito import plots
from dubito.data import Split
from dubito.likelihoods import Likelihood
from dubito.nn import mlp
from dubito.noisy import Estimator
from dubito.progress import track
from dubito.results import Cell, Figure, Result, Table, published_beside_measured
from dubito.runtime import pick_device
from dubito.studies.base import Settings, Study, built

WAYS: dict[str, Estimator | None] = {"sequential": None, "vmap": "weights", "vmap + local": "local"}
PUBLISHED = {  # seconds per epoch at 1 and at 10 draws, and the slope of the ten values between
    "regression": {
        "sequential": (0.083, 0.713, 0.0696),
        "vmap": (0.096, 0.182, 0.0096),
        "vmap + local": (0.090, 0.149, 0.0066),
    },
    "classification": {
        "sequential": (14.3, 94.0, 8.84),
        "vmap": (15.1, 52.0, 4.09),
        "vmap + local": (10.2, 17.1, 0.775),
    },
}
PRIOR_STD = 0.1


class Problem(NamedTuple):
    """Rows of the shape of a problem, what is learned from them, and how."""

    net: nn.Module
    data: Split
    likelihood: Likelihood
    rows: int
    batch: int

    @property
    def steps(self) -> int:
        """In an epoch of the true size."""
        return self.rows // self.batch


class Cost(NamedTuple):
    """Seconds per epoch, and the largest share of memory in MiB where the device tells."""

    seconds: float
    memory: float | None


def problems(settings: Settings) -> dict[str, Problem]:
    """Made rows: speed does not depend on what they show."""
    width = 8 if settings.quick else None
    source = torch.Generator().manual_seed(settings.seed)
    rows = 1280 if settings.quick else 12_800
    x, pixels = torch.rand(1000, 1, generator=source), torch.rand(rows, 784, generator=source)
    labels = torch.randint(10, (rows,), generator=source)
    small, large = (
        built(lambda s=sizes: mlp(s), settings)  # type: ignore[misc]
        for sizes in ([1, *2 * [width or 400], 1], [784, *2 * [width or 800], 10])
    )
    return {
        "regression": Problem(small, Split(x, x[:, 0].sin()), dubito.Gaussian(std=0.1), 1000, 100),
        "classification": Problem(large, Split(pixels, labels), dubito.Categorical(), 60_000, 128),
    }


def cost(problem: Problem, way: str, draws: int, settings: Settings) -> Cost:
    """Time some steps, after some that warm up."""
    device = pick_device(settings.device)
    few, many = (12, 12) if settings.quick else (60, 1000)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    estimator = WAYS[way]
    if estimator is None:
        each = _sequential(problem, draws, few, device)
    else:
        each = _fitted(problem, estimator, draws, many, settings)
    memory = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None
    return Cost(each * problem.steps, memory)


def _fitted(problem: Problem, estimator: Estimator, draws: int, steps: int, settings: Settings) -> float:
    """Seconds a step inside `fit`, by its own history."""
    records: list[Mapping[str, Any]] = []
    dubito.fit(
        problem.net, problem.data, dubito.Variational(estimator=estimator, draws=draws),
        likelihood=problem.likelihood, prior=dubito.Normal(std=PRIOR_STD), steps=steps, batch_size=problem.batch,
        seed=settings.seed, device=settings.device, callback=records.append, progress=False,
    )  # fmt: skip
    warm, last = next(r for r in records if r["step"] >= steps // 3), records[-1]
    return float(last["seconds"] - warm["seconds"]) / float(last["step"] - warm["step"])


def _sequential(problem: Problem, draws: int, steps: int, device: torch.device) -> float:
    """Seconds a step of what people write."""
    net = problem.net.to(device)
    means = {n: p.detach().clone().requires_grad_() for n, p in net.named_parameters()}
    rhos = {n: torch.full_like(p, math.log(math.expm1(0.01))).requires_grad_() for n, p in net.named_parameters()}
    optimiser = torch.optim.Adam([*means.values(), *rhos.values()], lr=1e-3, fused=True)
    x, y = (t[: problem.batch].to(device) for t in problem.data)

    def step() -> None:
        optimiser.zero_grad()
        losses = [_loss(net, means, rhos, problem, x, y) for _ in range(draws)]
        torch.stack(losses).mean().backward()
        optimiser.step()

    return _timed(step, steps, device)


def _loss(
    net: nn.Module, means: Mapping[str, Tensor], rhos: Mapping[str, Tensor], problem: Problem, x: Tensor, y: Tensor
) -> Tensor:
    """log q(w) - log p(w) per datum minus the log-likelihood, for one draw of all weights (Blundell et al., eq. 2)."""
    weights, kl = {}, torch.zeros((), device=x.device)
    for name, mean in means.items():
        std, eps = torch.nn.functional.softplus(rhos[name]), torch.randn_like(mean)
        weights[name] = weight = mean + std * eps
        kl = kl + (weight.square() / (2 * PRIOR_STD**2) - std.log() - eps.square() / 2).sum()
    return kl / problem.rows - problem.likelihood.log_prob(functional_call(net, weights, x), y).mean()


def _timed(step: Callable[[], None], steps: int, device: torch.device) -> float:
    def wait() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    for _ in range(steps // 3):
        step()
    start, counted = wait(), steps - steps // 3
    for _ in range(counted):
        step()
    return (wait() - start) / counted


Costs = dict[str, dict[str, list[Cost]]]  # problem, way, draws


def run(settings: Settings) -> Result:
    """Every way at every number of draws on both problems."""
    draws = [1, 2, 3] if settings.quick else list(range(1, 11))
    posed = problems(settings)
    jobs = [(name, way, k) for name in posed for way in WAYS for k in draws]
    costs: Costs = {name: {way: [] for way in WAYS} for name in posed}
    for name, way, k in track(jobs, len(jobs), "timings", settings.progress):
        costs[name][way].append(cost(posed[name], way, k, settings))
    return Result(
        STUDY.name,
        STUDY.title,
        summary=_summary(costs, draws),
        numbers={n: {w: [list(c) for c in cs] for w, cs in by.items()} for n, by in costs.items()} | {"draws": draws},
        tables=[*(_table(n, by, draws) for n, by in costs.items()), _slopes(costs, draws)],
        figures=[_figure(costs, draws)],
        settings={"batch": {name: p.batch for name, p in posed.items()}, "prior std": PRIOR_STD},
    )


def slope(draws: Sequence[int], costs: Sequence[Cost]) -> float:
    """Seconds per epoch for one more draw, by least squares."""
    return float(np.polyfit(draws, [c.seconds for c in costs], 1)[0])


def _table(name: str, by: Mapping[str, Sequence[Cost]], draws: Sequence[int]) -> Table:
    rows: list[tuple[Cell, ...]] = [(k, *(value for way in WAYS for value in by[way][i])) for i, k in enumerate(draws)]
    columns = ("draws", *(f"{way}, {what}" for way in WAYS for what in ("s", "MiB")))
    return Table(
        f"{name}: seconds per epoch and peak memory", columns, rows, formats=dict.fromkeys(columns[1:], ",.3g")
    )


def _slopes(costs: Costs, draws: Sequence[int]) -> Table:
    rows: list[tuple[str, float | None, float | None, str]] = []
    for name, by in costs.items():
        for way in WAYS:
            old, found = PUBLISHED[name][way], by[way]
            rows.append((f"{name}, {way}: 1 draw, s", old[0], found[0].seconds, "published on an A100"))
            rows.append(
                (f"{name}, {way}: {draws[-1]} draws, s", old[1] if draws[-1] == 10 else None, found[-1].seconds, "")
            )
            rows.append((f"{name}, {way}: slope, s per draw", old[2], slope(draws, found), "least squares"))
    return published_beside_measured("Seconds per epoch", rows)


def _figure(costs: Costs, draws: Sequence[int]) -> Figure:
    pictures = {
        name: plots.lines(
            "seconds", "", [plots.Series(way, [c.seconds for c in by[way]], draws) for way in WAYS],
            x_label="draws a step", y_label="seconds per epoch", log_y=True,
        )
        for name, by in costs.items()
    }  # fmt: skip
    return plots.panels("seconds", "Seconds per epoch", pictures)


def _summary(costs: Costs, draws: Sequence[int]) -> str:
    words = []
    for name, by in costs.items():
        slopes = {way: slope(draws, by[way]) for way in WAYS}
        times = ", ".join(f"{slopes['sequential'] / slopes[way]:.3g} times less by {way}" for way in list(WAYS)[1:])
        words.append(f"{name}: one more draw costs {slopes['sequential']:.3g} s an epoch in sequence, {times}")
    return "; ".join(words).capitalize() + "."


STUDY = Study(
    "wunn-timing",
    "What another draw costs",
    "a student report on Weight Uncertainty in Neural Networks (Blundell et al., ICML 2015) by vmap and local "
    "reparameterisation, timed on an A100.",
    "seconds per epoch and memory for 1 to 10 draws: sequential, vmap, vmap with local reparameterisation",
    run,
)
