"""Timing that survives a shared machine: candidates take turns, and a claim is a ratio of medians from the same run."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dubito.results import environment


@dataclass(frozen=True)
class Claim:
    """A ratio that must not fall below `least`, or None where it is only shown."""

    what: str
    ratio: float
    least: float | None

    @property
    def holds(self) -> bool:
        return self.least is None or self.ratio >= self.least


def take_turns(candidates: Mapping[str, Callable[[], Any]], rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds of each candidate in each round; the first round warms up and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name, run in candidates.items():
            _wait(device)
            start = time.perf_counter()
            run()
            _wait(device)
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def report(
    name: str,
    title: str,
    unit: str,
    values: Mapping[str, list[float]],
    claims: list[Claim],
    folder: Path,
    notes: Any = None,
) -> bool:
    """Print medians with their spread and the claims, write JSON; returns whether every claim holds."""
    print(f"\n{title}")
    wide = max(len(n) for n in values)
    for label, numbers in values.items():
        low, high = min(numbers), max(numbers)
        spread = f"from {low:,.4g} to {high:,.4g} in {len(numbers)} rounds"
        print(f"  {label:{wide}}  {median(numbers):12,.4g} {unit}   ({spread})")
    for claim in claims:
        bound = (
            "" if claim.least is None else f", at least {claim.least:g} claimed: {'holds' if claim.holds else 'FAILS'}"
        )
        print(f"  {claim.what}: {claim.ratio:.3g}{bound}")
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "title": title,
        "unit": unit,
        "values": dict(values),
        "claims": [{**asdict(c), "holds": c.holds} for c in claims],
        "notes": notes,
        "threads": torch.get_num_threads(),
        "environment": environment(),
    }
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1))
    return all(claim.holds for claim in claims)


def median_ratio(values: Mapping[str, list[float]], above: str, below: str) -> float:
    """The median over rounds of one candidate's number over another's in the same round."""
    return median(a / b for a, b in zip(values[above], values[below], strict=True))


def rates(seconds: list[float], work: int) -> list[float]:
    """Units of work per second in each round."""
    return [work / s for s in seconds]


def fcnn2() -> torch.nn.Module:
    """784-400-400-10, from a fixed seed."""
    from dubito.nn import mlp

    torch.manual_seed(0)
    return mlp([784, 400, 400, 10])


def fcnn1() -> torch.nn.Module:
    """784-100-10, from a fixed seed."""
    from dubito.nn import mlp

    torch.manual_seed(0)
    return mlp([784, 100, 10])


def images(n: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Made images and labels of MNIST's shape; speed does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 784, generator=generator)
    return x.to(device), torch.randint(0, 10, (n,), generator=generator).to(device)
