"""Settings of each method on a problem, worked out from the problem's curvature and not tuned.

For a sampler with step size eps and a direction of curvature h, SGLD and SGHMC with friction a have the stationary
variance 1 / (h (1 - eps h / 4)) and 1 / (h (1 - eps h / (4 (2 - a)))) on all data, and forget where they were in about
2 a / (eps h) steps. So eps = SHARE a / h_max inflates the variance by a few per cent at most, and two relaxation times
of 2 h_max / (SHARE h_min) steps make one independent draw.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dubito.methods.base import Method
from dubito.selfcheck.masks import RATE
from dubito.selfcheck.problems import Problem, Reference

SHARE = 0.3  # of the inverse curvature a sampler's step takes
FORGET = 4  # relaxation times until the start no longer matters
MOMENTUM, FRICTION = 0.9, 0.3
MASKS = 5  # times longer descents under masks and draws, which do not average out over an epoch as batches do
COPIES = 64  # masks of each datum in a step where their rate is learned, of which relaxed ones say little
FLAT = 3  # times longer descents there, as the bound is flat along a rate
DRAWS = 16  # of the weights in each step, where a method draws them
FEW = 4  # masks of each datum, where a method draws several: every way of drawing them is in the known answer
CYCLES, EXPLORATION = 2, 0.1
FROZEN = 1.8  # times more draws from cyclical samplers, whose last steps of a cycle hardly move
ADAPTATION = 150  # trajectories in which HMC finds its step size
SLOW_ENERGY = 6  # trajectories per draw wanted: means mix in one, variances in several, as the energy changes slowly


@dataclass(frozen=True)
class Effort:
    """How long to run: chains side by side, independent draws wanted of them together, steps of descent."""

    chains: int
    draws: int
    descent: int  # times the condition number


QUICK = Effort(chains=256, draws=1_400, descent=100)
FULL = Effort(chains=256, draws=10_000, descent=1_000)


@dataclass(frozen=True)
class Plan:
    """A method with its settings, and what `fit` is told beside it."""

    method: Method[Any]
    steps: int
    members: int | None
    batch_size: int
    copies: int = 1  # of each row in a batch, each under noise of its own


def plan(cls: type[Method[Any]], problem: Problem, reference: Reference, effort: Effort) -> Plan:
    """Settings for any method, by the names of its fields: half batches, or all data where masks or draws are noise."""
    names = {f.name for f in fields(cls) if f.init}  # type: ignore[arg-type]
    n = len(problem.y)
    batch = n if cls.full_batch or names & {"rate", "draws"} else n // 2
    if "learning_rate" in names:
        return _descent(cls, names, n, batch, reference, effort)
    if "leapfrog" in names:
        return _trajectories(cls, batch, reference, effort)
    if "step_size" in names:
        return _diffusion(cls, names, n, batch, reference, effort)
    return Plan(cls(), effort.descent, None, batch)


def _descent(cls: type[Method[Any]], names: set[str], n: int, batch: int, reference: Reference, effort: Effort) -> Plan:
    """Steps of the inverse curvature of the loss per datum that decay to zero, so that noise averages out."""
    wished = {
        "learning_rate": (1 - MOMENTUM) * n / reference.high,
        "optimiser": "sgd",
        "momentum": MOMENTUM,
        "schedule": "cosine",
        "rate": RATE,
        "cycles": CYCLES,
        "draws": FEW if "alpha" in names and "rate" in names else DRAWS,
        "init_std": reference.high**-0.5,
        "masked": "nothing",  # the bound has no closed form where weights come and go
    }
    learned = "relaxation" in names
    rounds = (MASKS if names & {"rate", "draws"} else 1) * (CYCLES if "cycles" in names else 1)
    steps = math.ceil(effort.descent * reference.high / reference.low) * rounds * (FLAT if learned else 1)
    method = cls(**{k: v for k, v in wished.items() if k in names})
    return Plan(method, steps, None, batch, COPIES if learned else 1)


def _diffusion(
    cls: type[Method[Any]], names: set[str], n: int, batch: int, reference: Reference, effort: Effort
) -> Plan:
    """A step that is a share of the inverse curvature, and as many relaxation times as give the draws wanted."""
    friction = {"friction": FRICTION} if "friction" in names else {}
    size = SHARE * friction.get("friction", 1.0) / reference.high
    relax = start = max(2 * reference.high / (SHARE * reference.low), 2 / friction.get("friction", 1.0))
    if "floor" in names:  # RMSprop's metric: the root mean square gradient per datum is sqrt(curvature / (n batch))
        floor = _default(cls, "floor")
        least, most = (floor + math.sqrt(h / (n * batch)) for h in (reference.low, reference.high))
        size, relax = size * least, relax * most / least
        start = max(relax, 1 / (1 - _default(cls, "decay")))
    burn_in, sampling = math.ceil(FORGET * start), math.ceil(effort.draws * 2 * relax / effort.chains)
    thin = max(1, round(relax / 4))
    if "cycles" in names:
        return _cycles(cls, friction, size, burn_in, sampling, thin, batch, effort)
    method = cls(step_size=size, burn_in=burn_in, thin=thin, **friction)  # type: ignore[call-arg]
    return Plan(method, burn_in + sampling, effort.chains, batch)


def _cycles(
    cls: type[Method[Any]],
    friction: Mapping[str, float],
    size: float,
    burn_in: int,
    sampling: int,
    thin: int,
    batch: int,
    effort: Effort,
) -> Plan:
    """The largest step while sampling is `size`; each cycle forgets that it started at a mode."""
    largest = 0.5 * (1 + math.cos(math.pi * EXPLORATION))
    travelled = 0.5 * (1 - EXPLORATION) - math.sin(math.pi * EXPLORATION) / (2 * math.pi)
    cycle = math.ceil((burn_in + FROZEN * sampling / CYCLES) * largest / travelled)
    rare = thin * round(largest / travelled)  # steps are smaller on average, so fewer samples are worth keeping
    method = cls(step_size=size / largest, cycles=CYCLES, exploration=EXPLORATION, thin=rare, **friction)  # type: ignore[call-arg]
    return Plan(method, CYCLES * cycle, effort.chains, batch)


def _trajectories(cls: type[Method[Any]], batch: int, reference: Reference, effort: Effort) -> Plan:
    """Trajectories of a quarter of the slowest period."""
    step, quarter = reference.high**-0.5, math.pi / 2 * reference.low**-0.5
    method = cls(step_size=step, leapfrog=math.ceil(quarter / step), burn_in=ADAPTATION)  # type: ignore[call-arg]
    return Plan(method, ADAPTATION + math.ceil(SLOW_ENERGY * effort.draws / effort.chains), effort.chains, batch)


def _default(cls: type[Method[Any]], name: str) -> float:
    """The default of a field."""
    return float(next(f.default for f in fields(cls) if f.name == name))  # type: ignore[arg-type]
