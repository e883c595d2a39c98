"""Two groups of scores told apart by a threshold: areas, error rates, and bootstrap intervals for all of them.

Higher scores mean more doubt, and inputs from outside are the positives. Everything is computed from how many inputs of
each side have each distinct score, so that thousands of bootstrap samples differ in their counts alone and are measured
side by side, on whatever device the scores lie.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubito.config import is_number
from dubito.rng import generator

Array: TypeAlias = Tensor | NDArray[Any]
Interval: TypeAlias = tuple[float, float]

ROUNDS = 1000  # bootstrap samples
_CELLS = {"cpu": 1 << 18}  # counts at a time: what stays in the cache
_MANY = 1 << 25  # on other devices, where few large kernels are best


class Counts(NamedTuple):
    """How many inputs of each side have each distinct score, (..., K), least doubt first, and how many up to each."""

    inside: Tensor
    outside: Tensor
    inside_upto: Tensor
    outside_upto: Tensor

    @classmethod
    def of(cls, inside: Tensor, outside: Tensor) -> "Counts":
        """With their running sums."""
        return cls(inside, outside, inside.cumsum(-1), outside.cumsum(-1))

    @property
    def sizes(self) -> tuple[Tensor, Tensor]:
        """How many inputs there are on each side, (..., 1)."""
        return self.inside_upto[..., -1:], self.outside_upto[..., -1:]

    @property
    def flagged(self) -> tuple[Tensor, Tensor]:
        """How many of each side have a score of at least each distinct one."""
        n_inside, n_outside = self.sizes
        return n_inside - self.inside_upto + self.inside, n_outside - self.outside_upto + self.outside


def auroc(counts: Counts) -> Tensor:
    """P(a score outside > a score inside), with ties counting one half."""
    n_inside, n_outside = counts.sizes
    below = (counts.inside_upto - counts.inside / 2) / n_inside
    return (counts.outside * below).sum(-1) / n_outside.squeeze(-1)


def aupr_out(counts: Counts) -> Tensor:
    """Average precision (a step sum, no interpolation) when doubtful inputs are called outside."""
    false, true = counts.flagged
    precision = true / (true + false).clamp_min(1)  # scores that nothing reaches gain nothing either
    return (counts.outside * precision).sum(-1) / counts.sizes[1].squeeze(-1)


def aupr_in(counts: Counts) -> Tensor:
    """Average precision when inputs of little doubt are called inside: the positives are the inside inputs."""
    precision = counts.inside_upto / (counts.inside_upto + counts.outside_upto).clamp_min(1)
    return (counts.inside * precision).sum(-1) / counts.sizes[0].squeeze(-1)


def fpr95(counts: Counts) -> Tensor:
    """Least share of inside inputs flagged by a threshold that flags 95 % of the outside inputs."""
    n_inside, n_outside = counts.sizes
    false, true = counts.flagged
    highest = (true / n_outside >= 0.95).sum(-1, keepdim=True) - 1
    return (false.gather(-1, highest) / n_inside).squeeze(-1)


MEASURES: dict[str, Callable[[Counts], Tensor]] = {
    measure.__name__: measure for measure in (auroc, aupr_out, aupr_in, fpr95)
}


class Ranked:
    """The scores of both sides in one order."""

    def __init__(self, inside: Array, outside: Array) -> None:
        sides = [scores(inside, "inside"), scores(outside, "outside").to(_device(inside))]
        self.sizes = [len(side) for side in sides]
        values, self._order = torch.cat(sides).sort(stable=True)
        self._inside = self._order < self.sizes[0]
        new = torch.ones_like(self._order, dtype=torch.bool)
        new[1:] = values[1:] != values[:-1]
        self._ends = torch.cat([new[1:], new[:1]]).nonzero().squeeze(1)  # the last place of each distinct score

    @property
    def device(self) -> torch.device:
        """Where the scores lie."""
        return self._order.device

    def counts(self, weight: Tensor | None = None) -> Counts:
        """How often each distinct score occurs; input i counts weight[..., i] times, the inside ones first."""
        if weight is None:
            weight = torch.ones(sum(self.sizes), device=self.device, dtype=torch.float64)
        ordered = weight.index_select(-1, self._order)
        inside = ordered * self._inside
        return Counts.of(self._per_score(inside), self._per_score(ordered - inside))

    def _per_score(self, ordered: Tensor) -> Tensor:
        if len(self._ends) == ordered.shape[-1]:
            return ordered
        upto = ordered.cumsum(-1).index_select(-1, self._ends)
        return torch.cat([upto[..., :1], upto.diff(dim=-1)], -1)


def measured(ranked: Ranked) -> dict[str, float]:
    """Every measure of the scores as they are."""
    counts = ranked.counts()
    return {name: float(measure(counts)) for name, measure in MEASURES.items()}


def intervals(
    ranked: Mapping[str, Ranked], rounds: int = ROUNDS, level: float = 0.95, seed: int = 0
) -> dict[str, dict[str, Interval]]:
    """Percentile bootstrap (Efron, 1979): inputs of each side drawn with replacement, the same draws for every score.

    {score: {measure: (low, high)}}.
    """
    check_intervals(rounds, level)
    found: dict[str, dict[str, list[Tensor]]] = {name: {m: [] for m in MEASURES} for name in ranked}
    for weight in _resamples(next(iter(ranked.values())), rounds, seed):
        for name, one in ranked.items():
            counts = one.counts(weight)
            for measure, f in MEASURES.items():
                found[name][measure].append(f(counts))
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    return {
        n: {m: _interval(torch.cat(parts).cpu().double(), ends) for m, parts in by.items()} for n, by in found.items()
    }


def check_intervals(rounds: int, level: float) -> None:
    """Refuse too few bootstrap samples, and a level that is none."""
    if not (is_number(level) and 0.0 < level < 1.0):
        raise ValueError(f"level={level!r} is no confidence level; give one between 0 and 1, such as 0.95.")
    if rounds < 2:
        raise ValueError(f"rounds={rounds} bootstrap samples have no spread; give 1000 or so.")


def _resamples(ranked: Ranked, rounds: int, seed: int) -> Iterator[Tensor]:
    """How often each input was drawn, (some rounds, inputs)."""
    source = generator(ranked.device, seed, "bootstrap")
    step = max(1, _CELLS.get(ranked.device.type, _MANY) // sum(ranked.sizes))
    for start in range(0, rounds, step):
        many = min(step, rounds - start)
        yield torch.cat([_drawn(many, size, source) for size in ranked.sizes], 1)


def _drawn(many: int, size: int, source: torch.Generator) -> Tensor:
    index = torch.randint(size, (many, size), generator=source, device=source.device)
    counts = torch.zeros(many, size, device=source.device)
    return counts.scatter_add_(1, index, torch.ones((), device=source.device).expand(many, size))


def _interval(values: Tensor, ends: Tensor) -> Interval:
    low, high = values.quantile(ends).tolist()
    return low, high


def _device(value: Array) -> torch.device:
    return value.device if isinstance(value, Tensor) else torch.device("cpu")


def scores(value: Array, name: str) -> Tensor:
    """One number per input, (N,), in double precision; emptiness and NaN are refused."""
    given = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value, dtype=np.float64))
    found = given.double()
    if found.dim() != 1:
        raise ValueError(f"{name} has shape {tuple(found.shape)}; give one number per input.")
    if not len(found):
        raise ValueError(f"{name} is empty (shape {tuple(found.shape)}); give at least one row.")
    if bool(found.isnan().any()):
        missing = int(found.isnan().sum())
        raise ValueError(f"{name} holds {missing} NaN; find the inputs that cause them and leave them out.")
    return found
