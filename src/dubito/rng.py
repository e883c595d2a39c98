"""Randomness as a function: every number drawn depends on (seed, name, member, step) and on nothing else.

No generator state is ever saved: a run resumes bit for bit because the noise of step t can be made again, members
can be spread over machines without changing a number, and the global generator is left as it was found.
"""

import contextlib
import hashlib
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

BLOCK = 1 << 17  # normals per generator on the CPU: hides the seeding, and can be shared out to threads


def derive(*key: int | str) -> int:
    """A 63-bit seed from any mixture of numbers and names."""
    digest = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(device: torch.device | str, *key: int | str) -> torch.Generator:
    """A fresh generator whose stream is determined by the key."""
    return torch.Generator(device=device).manual_seed(derive(*key))


@contextlib.contextmanager
def isolated(*key: int | str) -> Iterator[None]:
    """Run code that can only use the global generator: seeded by the key inside, untouched outside."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(derive(*key))
        if devices:  # torch.manual_seed would also leave a seed behind for a CUDA that starts later
            torch.cuda.manual_seed_all(derive(*key))
        yield


@contextlib.contextmanager
def isolated_everywhere(*key: int | str) -> Iterator[None]:
    """`isolated` for users' data sets, which may also draw from the generators of Python and numpy."""
    python, array = random.getstate(), np.random.get_state()
    random.seed(derive(*key))
    np.random.seed(derive(*key) % (1 << 32))
    try:
        with isolated(*key):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(array)


def drew(device: torch.device, f: Callable[[], object]) -> bool:
    """Whether f draws from a global generator, of torch, Python or numpy; they are left as they were found."""

    def states() -> tuple[Any, ...]:
        held = [torch.get_rng_state()]  # on the CPU too, where a network on a GPU may choose its layers
        held += [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
        return [state.tolist() for state in held], random.getstate(), repr(np.random.get_state(legacy=False))

    with isolated_everywhere("trace"):
        before = states()
        f()
        return states() != before


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="dubito-noise")


if hasattr(os, "register_at_fork"):  # a forked process inherits the pool without its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


Kind = Literal["normal", "uniform", "seed"]
Job = tuple[Tensor, int]  # what to fill, and the seed


class Asked(NamedTuple):
    """Random numbers that were asked for: standard normals, uniforms in [0, 1), or seeds of a compiler's own."""

    kind: Kind
    shape: torch.Size
    dtype: torch.dtype


class Stream:
    """One generator for all random numbers of a step on a GPU, all members at once, in the order of asking."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.generator = device, torch.Generator(device)
        self.asked: list[Asked] = []

    def seed(self, key: int) -> None:
        """Begin a step."""
        self.generator.manual_seed(key)
        self.asked.clear()

    def draw(self, kind: Kind, out: Tensor) -> Tensor:
        """Fill with the numbers of a kind."""
        self.asked.append(Asked(kind, out.shape, out.dtype))
        if kind == "seed":
            return out.random_(generator=self.generator)
        return out.normal_(generator=self.generator) if kind == "normal" else out.uniform_(generator=self.generator)


class Prepared(Stream):
    """Random numbers that have been drawn before, handed out in the order of asking.

    A whole number among them is a seed: the compiler of the step that asks is to draw those itself.
    """

    def __init__(self, numbers: Sequence[Tensor]) -> None:
        self.numbers = iter(numbers)

    def draw(self, kind: Kind, out: Tensor) -> Tensor:
        """The next of the numbers, in place of `out`."""
        given = next(self.numbers)
        return given if given.is_floating_point() else _drawn_inside(out, given)


def _drawn_inside(like: Tensor, seed: Tensor) -> Tensor:
    """Standard normals of this shape as an operation that Inductor fuses with those that use them."""
    from torch._inductor.inductor_prims import random as fused

    normals: Tensor = fused(list(like.shape), seed, "randn")
    return normals


@dataclass(frozen=True)
class Rng:
    """The random numbers of one step; `Rng(seed).at(step)` moves to another.

    Where it has a `stream`, what is drawn depends on (seed, step) and on the order of drawing, which a recorded step
    on a GPU can do.
    """

    seed: int
    step: int = 0
    member: int = 0  # the number of the first member it serves
    stream: Stream | None = None

    def at(self, step: int) -> "Rng":
        """The same source at another step; its stream, if any, is put at the beginning of that step."""
        self.begin(step)
        return replace(self, step=step)

    def begin(self, step: int) -> None:
        """Put the stream, if any, at the beginning of a step."""
        if self.stream is not None:
            self.stream.seed(derive(self.seed, "stream", step))

    def of_member(self, member: int) -> "Rng":
        """The same source for members from this one on."""
        return replace(self, member=member)

    def child(self, name: str) -> "Rng":
        """An independent source for one purpose."""
        return replace(self, seed=derive(self.seed, name))

    def key(self, name: str, member: int = 0) -> int:
        """The seed of one named quantity of one member at this step."""
        return derive(self.seed, name, self.member + member, self.step)

    def normal_(self, out: Tensor, name: str, first_member: int = 0) -> Tensor:
        """Fill (members, ...) with standard normals, each member from its own stream."""
        if self.stream is not None:
            return self.stream.draw("normal", out)
        _draw(self._jobs(out, name, first_member))
        return out

    def normals(self, empty: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Standard normals in several tensors at once, each what `normal_` would make of it under its name."""
        if self.stream is not None:
            return {name: self.stream.draw("normal", out) for name, out in empty.items()}
        _draw([job for name, out in empty.items() for job in self._jobs(out, name, 0)])
        return dict(empty)

    def normal_meanwhile(self, like: Tensor, name: str) -> Callable[[], Tensor]:
        """Standard normals of this shape, drawn beside whatever comes next where there are cores; called, it waits."""
        out = torch.empty_like(like)
        jobs = [] if self.stream is not None else self._jobs(out, name, 0)
        if not _pays_to_share(jobs):
            return partial(self.normal_, out, name)
        begun = [_pool(torch.get_num_threads()).submit(_fill, job) for job in jobs]

        def drawn() -> Tensor:
            for block in begun:
                block.result()
            return out

        return drawn

    def uniform(self, shape: Sequence[int], name: str, like: Tensor, first_member: int = 0) -> Tensor:
        """(members, ...) uniforms in [0, 1), each member from its own stream."""
        out = like.new_empty(*shape)
        if self.stream is not None:
            return self.stream.draw("uniform", out)
        for m, row in enumerate(out):
            row.uniform_(generator=generator(like.device, self.key(name, first_member + m)))
        return out

    def _jobs(self, out: Tensor, name: str, first_member: int) -> list[Job]:
        return [job for m, row in enumerate(out) for job in self._blocks(row, name, first_member + m)]

    def _blocks(self, row: Tensor, name: str, member: int) -> list[Job]:
        key = self.key(name, member)
        if row.device.type != "cpu" or row.numel() <= BLOCK or not row.is_contiguous():
            return [(row, key)]
        return [(part, derive(key, i)) for i, part in enumerate(row.view(-1).split(BLOCK))]


def _draw(jobs: Sequence[Job]) -> None:
    if _pays_to_share(jobs):
        list(_pool(torch.get_num_threads()).map(_fill, jobs))
    elif jobs:
        source = torch.Generator(device=jobs[0][0].device)  # made once: many small members would pay for it each
        for part, key in jobs:
            part.normal_(generator=source.manual_seed(key))


def _pays_to_share(jobs: Sequence[Job]) -> bool:
    several = len(jobs) > 1 and torch.get_num_threads() > 1 and jobs[0][0].device.type == "cpu"
    return several and sum(part.numel() for part, _ in jobs) >= BLOCK


def _fill(job: Job) -> None:
    part, key = job
    part.normal_(generator=torch.Generator(device=part.device).manual_seed(key))


def choose(n: int, k: int, seed: int) -> list[int]:
    """k of n indices without replacement, all of them in order when k >= n."""
    if k >= n:
        return list(range(n))
    return sorted(torch.randperm(n, generator=generator("cpu", seed, "choose", n))[:k].tolist())
