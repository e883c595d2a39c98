"""Timing that survives a shared machine, claims as data, and one table and one file for each benchmark."""

import contextlib
import ctypes
import gc
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dubito.results import environment

PEERS = ("bayesian-torch", "torchbnn", "posteriors")
SEGMENTS = 10  # parts of a run that are timed apart
WARM = 0.3  # of a run, in which caches fill and steps are recorded and compiled, left out of its time
Stepping = Callable[[int], object]  # takes so many steps


@dataclass(frozen=True)
class Where:
    """The device, where results go, and whether sizes are so small that only the code is tried."""

    device: str
    folder: Path
    quick: bool = False

    def pick(self, full: int, quick: int) -> int:
        """A size."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Claim:
    """A number that must not fall below `least` nor rise above `most`; one without limits is only shown."""

    what: str
    measured: float
    least: float | None = None
    most: float | None = None

    @property
    def holds(self) -> bool:
        """A number that is none, because something failed, holds nothing."""
        above = self.least is None or self.measured >= self.least
        return above and (self.most is None or self.measured <= self.most)

    @property
    def limited(self) -> bool:
        """Whether it claims anything."""
        return self.least is not None or self.most is not None

    def __str__(self) -> str:
        limits = {"at least": self.least, "at most": self.most}
        said = [f"{word} {limit:g}" for word, limit in limits.items() if limit is not None]
        verdict = f" ({' and '.join(said)} claimed: {'holds' if self.holds else 'FAILS'})" if said else ""
        return f"{self.what}: {self.measured:.3g}{verdict}"


def take_turns(candidates: Mapping[str, Callable[[], Any]], rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds of each candidate in each round; the first round warms up and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name, run in candidates.items():
            spent = timed(run, device)
            if number:
                seconds[name].append(spent)
    return seconds


def timed(run: Callable[[], Any], device: str) -> float:
    """Seconds until a call has done all its work, on the device too."""
    wait(device)
    start = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - start


def wait(device: str) -> None:
    """Until the device has nothing left to do."""
    if device == "cuda":
        torch.cuda.synchronize()


def each_step(take: Stepping, steps: int, device: str) -> list[float]:
    """Seconds per step of something that takes steps, in each of a few segments, after a short one to warm up."""
    size = max(1, steps // SEGMENTS)
    take(size)
    return [timed(lambda: take(size), device) / size for _ in range(SEGMENTS)]


def each_logged_step(fit: Callable[[Callable[[Mapping[str, Any]], None]], object]) -> list[float]:
    """Seconds per step of a run through the public door, in each of a few segments of it, from its own records.

    To make a record the run waits for its device, so that the time of a record is the time of the work before it.
    The first part of the run and the last record, at which samples are taken home, are left out.
    """
    stamps: list[tuple[int, float]] = []
    fit(lambda record: stamps.append((record["step"], time.perf_counter())))
    kept = stamps[int(WARM * len(stamps)) : -1]
    if len(kept) < 2:
        raise ValueError(f"a run of {len(stamps)} records is too short to be timed; take more steps")
    ends = kept[:: max(1, (len(kept) - 1) // SEGMENTS)]
    return [(after - before) / (last - first) for (first, before), (last, after) in pairwise(ends)]


class Peak:
    """The most memory taken inside a `with`, beyond what was taken before, in MiB; None where nothing tells.

    On a GPU that of tensors, on the CPU the resident memory of the process.
    """

    def __init__(self, device: str) -> None:
        self.device, self.mib = device, None

    def __enter__(self) -> "Peak":
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            _give_back()
            self._resets = _reset_peak()
            self._before = _status("VmRSS")
        return self

    def __exit__(self, *exc: object) -> None:
        if self.device == "cuda":
            self.mib: float | None = (torch.cuda.max_memory_allocated() - self._before) / (1 << 20)
        elif self._resets:
            self.mib = max(0, _status("VmHWM") - self._before) / (1 << 20)


def _give_back() -> None:
    """Have the allocator return what it holds without using it, so that what is taken next shows."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _reset_peak() -> bool:
    """Have the kernel forget the process's peak, where it can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return True
    except OSError:
        return False


def _status(name: str) -> int:
    """Bytes that the kernel tells of this process."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(name)), 0)


def report(
    where: Where,
    name: str,
    title: str,
    unit: str,
    values: Mapping[str, list[float]],
    claims: list[Claim],
    *,
    memory: Mapping[str, float | None] | None = None,
    curves: Mapping[str, Any] | None = None,
    notes: Any = None,
) -> bool:
    """Print medians with their spread and the claims, write JSON; returns whether every claim holds."""
    print(f"\n{title}")
    wide = max(map(len, values), default=0)
    for label, numbers in values.items():
        print(f"  {label:{wide}}  {median(numbers):12,.4g} {unit}   ({spread(numbers)}{_memory(memory, label)})")
    for claim in claims:
        print(f"  {claim}")
    record = {
        "title": title,
        "unit": unit,
        "values": dict(values),
        "claims": [{**asdict(c), "holds": c.holds} for c in claims],
        "memory MiB": dict(memory or {}),
        "curves": dict(curves or {}),
        "notes": notes,
    }
    write(where, name, record)
    return all(claim.holds for claim in claims)


def spread(numbers: list[float]) -> str:
    """From where to where they go, for people."""
    return f"from {min(numbers):,.4g} to {max(numbers):,.4g} in {len(numbers)} rounds"


def _memory(memory: Mapping[str, float | None] | None, label: str) -> str:
    peak = (memory or {}).get(label)
    return "" if peak is None else f"; peak {peak:,.0f} MiB"


def write(where: Where, name: str, record: Mapping[str, Any]) -> None:
    """A benchmark's file, with the machine and the versions."""
    where.folder.mkdir(parents=True, exist_ok=True)
    plain = {"name": dashed(name), **record, **machine(where)}
    path_of(where, name).write_text(json.dumps(plain, indent=1))


def path_of(where: Where, name: str) -> Path:
    """NAME-DEVICE.json."""
    return where.folder / f"{dashed(name)}-{where.device}.json"


def dashed(name: str) -> str:
    """A module's name as that of a file."""
    return name.replace("_", "-")


def machine(where: Where) -> dict[str, Any]:
    """What a number depends on beside the code."""
    gpu = {}
    if where.device == "cuda":
        gpu = {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    peers = {peer: version for peer in PEERS if (version := _version(peer))}
    return {
        "device": where.device,
        "quick": where.quick,
        "threads": torch.get_num_threads(),
        "environment": {**environment(), **gpu, **peers},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def median_ratio(values: Mapping[str, list[float]], above: str, below: str) -> float:
    """The median over rounds of one candidate's number over another's in the same round."""
    return median(a / b for a, b in zip(values[above], values[below], strict=True))


def rates(seconds: list[float], work: int) -> list[float]:
    """Units of work per second in each round."""
    return [work / s for s in seconds]


class Tally:
    """What candidates measured, one after another, printed as they end; one that fails is noted and the rest go on."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self.values: dict[str, list[float]] = {}
        self.memory: dict[str, float | None] = {}
        self.failures: dict[str, str] = {}

    def add(self, name: str, measure: Callable[..., list[float]], prepare: Callable[[], Any] | None = None) -> None:
        """Measure a candidate; what `prepare` makes is handed to it and does not count as its memory."""
        gc.collect()
        start = time.perf_counter()
        try:
            given = () if prepare is None else (prepare(),)
            with Peak(self.where.device) as peak:
                self.values[name] = measure(*given)
            self.memory[name] = peak.mib
            said = f"{median(self.values[name]):.4g}"
        except Exception as error:
            self.failures[name] = said = f"failed, {explained(error)}"
        print(f"    {name}: {said} ({time.perf_counter() - start:.1f} s in all)", flush=True)

    def median(self, name: str) -> float:
        """A candidate's median; not a number where it failed."""
        return median(self.values.get(name, [float("nan")]))

    def ratio(self, above: str, below: str) -> float:
        """The ratio of two candidates' medians."""
        return self.median(above) / self.median(below)

    def report(self, name: str, title: str, unit: str, claims: list[Claim], notes: Any = None) -> bool:
        """The table and the file."""
        told = {"failed": self.failures, **(notes or {})}
        return report(self.where, name, title, unit, self.values, claims, memory=self.memory, notes=told)


def explained(error: Exception) -> str:
    """What went wrong, in a line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"


def fcnn2(quick: bool = False) -> torch.nn.Module:
    """784-400-400-10, from a fixed seed."""
    return seeded([784, 8, 8, 10] if quick else [784, 400, 400, 10])


def fcnn1(quick: bool = False) -> torch.nn.Module:
    """784-100-10, from a fixed seed."""
    return seeded([20, 4, 10] if quick else [784, 100, 10])


def seeded(sizes: list[int]) -> torch.nn.Module:
    """An MLP from a fixed seed."""
    from dubito.nn import mlp

    torch.manual_seed(0)
    return mlp(sizes)


def images(n: int, device: str, shape: tuple[int, ...] = (784,)) -> tuple[torch.Tensor, torch.Tensor]:
    """Made images and labels, of MNIST's shape unless told; speed does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, *shape, generator=generator)
    return x.to(device), torch.randint(0, 10, (n,), generator=generator).to(device)
