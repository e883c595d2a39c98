"""Steps recorded once as a CUDA graph and replayed: gather, noise, gradient and update without the host in between.

What changes from step to step lies on the device before a replay: the number of the step, a table of the numbers that
rules give for the steps to come, and the seed of the step's one generator. Steps that do different things are of
different kinds, and each kind is recorded by itself. Where many steps are to come the recorded step is also compiled:
its operations are traced, its random numbers drawn before it, and the rest fused. Very many random numbers are drawn
inside the fused step instead, by its own generator from a seed: such a run equals an eager one in distribution only.
"""

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from dubito import runtime
from dubito.fusing import fused
from dubito.layout import like
from dubito.rng import Asked, Prepared, Rng, Stream
from dubito.runtime import Precision
from dubito.tick import Rule, Tick

WARM = 3  # steps of a kind taken before one is recorded: they fill caches that a recording may not fill
WORTH = 20  # steps left that make a recording worth while
AHEAD = 1024  # steps whose numbers are uploaded at once
RULES = 256  # different numbers in a step
TIMED = 100  # replays that are timed to decide about compiling
COMPILING = 30.0  # seconds of work ahead that make compiling worth while: it takes 4 s or more and halves the rest
MANY = 1 << 22  # normals from which on a compiled step draws them itself
PATIENCE = 1000  # the same in multiples of the time of recording: both grow with the number of a step's operations


class Recordable(Protocol):
    """What can take steps: eagerly, or under a recording."""

    device: torch.device

    @property
    def precision(self) -> Precision:
        """How products round."""

    def step(self, state: Any, tick: Tick) -> tuple[Any, Any]:
        """One update; returns the state and an info of per-member tensors."""

    def obstacle(self) -> str | None:
        """Why steps cannot be recorded; None where they can."""

    def kind(self, state: Any, step: int) -> Hashable:
        """What tells a step from others: those of one kind do the same things, with other numbers."""

    def ready(self, step: int) -> None:
        """Put the data of a step where a recorded one reads them."""


class Told(Protocol):
    """Where what steps tell is summed up, in tensors that stay where they are."""

    def add(self, info: Any, step: Tensor) -> None:
        """Take in one step."""

    @property
    def held(self) -> list[Tensor]:
        """The tensors, once a step has been taken in."""

    @staticmethod
    def note_(held: Sequence[Tensor], info: Any, step: Tensor) -> None:
        """Take in one step by those tensors."""


class Numbers:
    """The numbers of a recorded step, as 0-d tensors: a table of those to come lies on the device."""

    def __init__(self, steps: int, device: torch.device, rules: Sequence[Rule] = ()) -> None:
        self.steps, self.rules = steps, list(rules)
        self.step, self._first = (torch.zeros(1, dtype=torch.long, device=device) for _ in range(2))
        self._table = torch.zeros(AHEAD, RULES, device=device)
        self._row = self._table[0]
        self._next, self._filled = -1, range(0)

    def begin(self) -> None:
        """The first thing in a recorded step: read this step's row."""
        self._row = self._table.index_select(0, self.step - self._first)[0]

    def __call__(self, rule: Rule) -> Tensor:
        """A number of the step being recorded."""
        if len(self.rules) == RULES:
            raise RuntimeError(f"a step has more than {RULES} changing numbers")
        self.rules.append(rule)
        return self._row[len(self.rules) - 1]

    @property
    def row(self) -> list[Tensor]:
        """All numbers of the step being recorded, once its rules are known."""
        return list(self._row[: len(self.rules)].unbind())

    def end(self) -> None:
        """The last thing in a recorded step: move on to the next."""
        self.step.add_(1)

    def seek(self, step: int) -> None:
        """Have everything in place for a replay of this step."""
        if step != self._next:
            self.step.fill_(step)
        if step not in self._filled:
            self._fill(range(step, min(step + AHEAD, self.steps)))
        self._next = step + 1

    def _fill(self, steps: range) -> None:
        rows = torch.tensor([[rule(s, self.steps) for rule in self.rules] for s in steps])
        self._table[: len(steps), : len(self.rules)].copy_(rows)
        self._first.fill_(steps.start)
        self._filled = steps


@dataclass
class _Kind:
    """The steps of a kind: how many were taken, their recording, after which step it was made, and times of replays."""

    taken: int = 0
    replay: "_Replay | None" = None
    since: int = 0
    times: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)

    def take(self, replay: "_Replay", step: int) -> None:
        """Replay a step; the first ones are timed, on the device."""
        if len(self.times) == TIMED:
            replay(step)
            return
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay(step)
        end.record()
        self.times.append((start, end))

    def seconds_ahead(self, step: int, left: int) -> float:
        """What its replays would take in the steps that are left, if they come as often as since it was recorded."""
        self.times[-1][1].synchronize()
        milliseconds = sum(float(start.elapsed_time(end)) for start, end in self.times)
        return milliseconds / 1000 * left / (step - self.since)


class Advance:
    """Takes a stepper's steps: eagerly at first, by replay once their kind is recorded, compiled where that pays."""

    def __init__(self, stepper: Recordable, steps: int, seed: int, told: Told, compiled: bool | None = None) -> None:
        self.stepper, self.steps, self.told, self.compiled = stepper, steps, told, compiled
        self.stream = Stream(stepper.device) if stepper.device.type == "cuda" else None
        self.rng = Rng(seed, stream=self.stream)
        self._kinds: dict[Hashable, _Kind] = {}
        self._said: set[str] = set()

    def __call__(self, state: Any, step: int) -> Any:
        """The state after one more step; what the step told is taken in."""
        if self.stream is None:
            return self._eagerly(state, step)
        kind = self.stepper.kind(state, step)
        own = self._kinds.setdefault(kind, _Kind())
        if own.replay is not None:
            self.rng.begin(step)
            self.stepper.ready(step)
            own.take(own.replay, step)
        else:
            state = self._eagerly(state, step)
        own.taken += 1
        self._improve(own, _Subject(state, kind, self.stream), step)
        return state

    def _eagerly(self, state: Any, step: int) -> Any:
        clock = torch.tensor(step)
        state, info = self.stepper.step(state, Tick(clock, self.steps, self.rng.at(step)))
        self.told.add(info, clock)
        return state

    def _improve(self, own: _Kind, subject: "_Subject", step: int) -> None:
        """Record a step when it is warm; compile it when asked to, or when a stopwatch says that it pays."""
        left = self.steps - step - 1
        if own.taken == WARM and left >= WORTH:
            own.replay, own.since = self._tried("recorded", lambda: _Replay(self, subject)), step
            if own.replay and self.compiled:
                self._compile(own, subject, own.replay)
        elif own.replay and self.compiled is None and own.taken == WARM + TIMED:
            enough = max(COMPILING, PATIENCE * own.replay.seconds)
            if own.seconds_ahead(step, left) > enough:
                self._compile(own, subject, own.replay)

    def _compile(self, own: _Kind, subject: "_Subject", plain: "_Replay") -> None:
        own.replay = self._tried("compiled", lambda: _Compiled(self, subject, plain)) or plain

    def _tried(self, what: str, make: "Callable[[], _Replay]") -> "_Replay | None":
        """A recording, or None, said aloud, where it cannot be made."""
        why = self.stepper.obstacle()
        if why is None:
            try:
                return make()
            except RuntimeError as error:
                why = str(error).partition("\n")[0]
        said = f"dubito: the step cannot be {what}, so this run is slower than it could be: {why}"
        if said not in self._said:
            print(said, file=sys.stderr)
        self._said.add(said)
        return None


class _Subject(NamedTuple):
    """What is recorded: a step of a kind, on a state, with the stream of its random numbers."""

    state: Any
    kind: Hashable
    stream: Stream


class _Replay:
    """A recorded step."""

    def __init__(self, owner: Advance, subject: _Subject, rules: Sequence[Rule] = ()) -> None:
        device, stream = owner.stepper.device, subject.stream
        self.owner, self.state, self.kind, self.stream = owner, *subject
        self.numbers, self.graph = Numbers(owner.steps, device, rules), torch.cuda.CUDAGraph()
        with torch.no_grad():
            self.prepare()
            self.graph.register_generator_state(stream.generator)
            torch.cuda.synchronize(device)
            with _put_right(stream), _no_collection(), torch.cuda.graph(self.graph):
                self.numbers.begin()
                stream.asked.clear()
                began = time.perf_counter()
                self.body()
                self.seconds = time.perf_counter() - began
                self.asked = list(stream.asked)
                self.numbers.end()

    def prepare(self) -> None:
        """Whatever has to happen before the recording."""

    def body(self) -> None:
        """What is recorded."""
        tick = Tick(self.numbers.step[0], self.owner.steps, self.owner.rng, self.numbers, self.kind)
        _, info = self.owner.stepper.step(self.state, tick)
        self.owner.told.add(info, tick.step)

    def __call__(self, step: int) -> None:
        self.numbers.seek(step)
        self.graph.replay()


@contextlib.contextmanager
def _put_right(stream: Stream) -> Iterator[None]:
    """What a recording leaves behind that CUDA broke off, as where a number was read: its stream, and shut generators.

    Generators open again when a recording ends well, be it of next to nothing.
    """
    before = torch.cuda.current_stream(stream.device)
    try:
        yield
    except RuntimeError:
        torch.cuda.set_stream(before)
        with contextlib.suppress(RuntimeError):
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(stream.generator)
            with torch.cuda.graph(graph):
                torch.zeros(1, device=stream.device)
        raise


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage is collected inside: an older graph that is freed during a recording would spoil it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _drawn_before(asked: Asked) -> Asked:
    """What is drawn before a compiled step: the numbers it asks for, or of a great many normals only a seed.

    Laid down, those would take as much memory as the weights of all members.
    """
    many = asked.kind == "normal" and asked.dtype == torch.float32 and asked.shape.numel() >= MANY
    return Asked("seed", torch.Size(), torch.long) if many else asked


@contextlib.contextmanager
def _algorithms_sought() -> Iterator[None]:
    """Each convolution's fastest algorithm is found by trying, which only long runs are worth."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class _Compiled(_Replay):
    """A recorded step whose operations have been fused; all but very many random numbers are those of an eager one."""

    def __init__(self, owner: Advance, subject: _Subject, plain: _Replay) -> None:
        device = subject.stream.device
        self.drawn_before = [_drawn_before(asked) for asked in plain.asked]
        self.noise = [torch.zeros(asked.shape, dtype=asked.dtype, device=device) for asked in self.drawn_before]
        with _algorithms_sought(), runtime.products(owner.stepper.precision, device):
            super().__init__(owner, subject, plain.numbers.rules)

    def prepare(self) -> None:
        """Trace the step and fuse it, on copies of all that it changes."""
        self.numbers.begin()
        inputs, self.spec = tree_flatten(self._arguments())
        spare = [like(tensor, tensor) for tensor in inputs]
        self.fused = fused(lambda *flat: self._pure(*tree_unflatten(list(flat), self.spec)), spare)

    def body(self) -> None:
        for asked, out in zip(self.drawn_before, self.noise, strict=True):
            self.stream.draw(asked.kind, out)
        self.fused(*tree_flatten(self._arguments())[0])

    def _arguments(self) -> tuple[Any, ...]:
        """All that a step reads and changes, but for the data."""
        return self.state, self.owner.told.held, self.numbers.step[0], self.numbers.row, self.noise

    def _pure(self, state: Any, held: list[Tensor], clock: Tensor, row: list[Tensor], noise: list[Tensor]) -> Any:
        """The step as a function of its arguments; what is returned does not matter, but something must be."""
        given = iter(row)
        rng = replace(self.owner.rng, stream=Prepared(noise))
        _, info = self.owner.stepper.step(state, self._tick(clock, rng, given))
        self.owner.told.note_(held, info, clock)
        return (clock.clone(),)

    def _tick(self, clock: Tensor, rng: Rng, given: Iterator[Tensor]) -> Tick:
        return Tick(clock, self.owner.steps, rng, lambda rule: next(given), self.kind)
