"""The only loop: steps, progress, history, validation, kept samples, checkpoints, and a clean stop on Ctrl-C."""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor

from dubito.capture import Advance, Recordable
from dubito.posteriors.files import explain, write_atomically
from dubito.progress import make_bar

Record = dict[str, Any]
NEVER = 1 << 62
SPOKEN = {"fit": "the log-likelihood", "complexity": "the log-prior"}
DIVERGED = 1e8  # nats per datum that no model of data in reasonable units has


class Interrupted(KeyboardInterrupt):
    """A run stopped by Ctrl-C; `posterior` is what it had reached, or None."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.posterior: Any = None


class Diverged(ArithmeticError):
    """A run whose numbers left the finite."""


class Stepper(Recordable, Protocol):
    """What the loop drives: a method, or the training of a distillation."""

    def after(self, state: Any, step: int) -> None:
        """Between updates: keep samples."""

    def save(self, state: Any, step: int) -> None:
        """Write a checkpoint after `step` updates."""

    def validate(self, state: Any, step: int) -> tuple[Record, bool]:
        """Measure on validation data where due; also whether to stop."""


@dataclass
class Watch:
    """Running sums of what steps tell, on the device, without a copy to the host per step."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    count: int = 0
    bad: Tensor | None = None

    def add(self, info: Any, step: Tensor) -> None:
        """Take in one step."""
        if self.bad is None:
            self.bad = torch.full((), NEVER, device=info[0].device)
            self.sums = {name: torch.zeros_like(value) for name, value in info._asdict().items()}
        self.note_(self.held, info, step)

    @property
    def held(self) -> list[Tensor]:
        """All it holds on the device."""
        return [*self.sums.values(), *([] if self.bad is None else [self.bad])]

    @staticmethod
    def note_(held: Sequence[Tensor], info: Any, step: Tensor) -> None:
        """Take in one step, in place: this may be part of a recording. Who drives the steps counts them."""
        *sums, bad = held
        for total, value in zip(sums, info, strict=True):
            total.add_(value)
        loss = sum(info)
        bad.clamp_max_(torch.where(loss.abs() < DIVERGED, NEVER, step.to(loss.device)).min())

    def read(self) -> Record:
        """Averages since the last reading, over members."""
        record = {name: float((value / self.count).mean()) for name, value in self.sums.items()}
        self.check(record)
        for value in self.sums.values():
            value.zero_()
        self.count = 0
        return record

    def check(self, record: Record | None = None) -> None:
        """Stop where a loss was not finite, naming the step and what to try."""
        if self.bad is None or int(self.bad) == NEVER:
            return
        means = record or {name: float((value / max(1, self.count)).mean()) for name, value in self.sums.items()}
        first = next((name for name, value in means.items() if not abs(value) < DIVERGED), "complexity")
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
        unit = " nats/datum" if "fit" in means else ""
        raise Diverged(
            f"at step {int(self.bad)} {SPOKEN.get(first, first)} left the finite ({numbers}{unit}); "
            "try a smaller step_size or learning_rate, clip_norm=1.0, or inputs and targets scaled to about 1"
        )


class History:
    """Records as JSON lines, and to a callback."""

    def __init__(self, path: Path | None, callback: Callable[[Record], None] | None, start: int) -> None:
        self.path, self.callback = path, callback
        self.records: list[Record] = []
        if path is not None and path.exists():
            self.records = [r for r in written(path) if r["step"] <= start]
            write_atomically(path, "".join(json.dumps(r) + "\n" for r in self.records).encode())

    def add(self, record: Record) -> None:
        """Note one record."""
        self.records.append(record)
        if self.path is not None:
            try:
                with self.path.open("a") as file:
                    file.write(json.dumps(record) + "\n")
            except OSError as error:
                raise explain(error, self.path.parent) from error
        if self.callback is not None:
            self.callback(record)


def written(path: Path) -> list[Record]:
    """The records in a file of history, none where there is none; the last line of a killed run may be cut short."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        with suppress(ValueError):
            records.append(json.loads(line))
    return records


class _Brake(AbstractContextManager["_Brake"]):
    """Turns Ctrl-C into a flag that is read between steps; a second one stops at once."""

    def __init__(self) -> None:
        self.pulled = False
        self._main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "_Brake":
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._pull)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)

    def _pull(self, number: int, frame: FrameType | None) -> None:
        if self.pulled:
            raise KeyboardInterrupt
        self.pulled = True


def run(
    stepper: Stepper,
    state: Any,
    *,
    start: int,
    steps: int,
    seed: int,
    history: History,
    label: str,
    progress: bool,
    log_every: int,
    checkpoint_every: int | None,
    compiled: bool | None = None,
) -> tuple[Any, int]:
    """Take the steps from `start` to `steps`; returns the last state and the number of updates made."""
    watch, clock = Watch(), _Clock(checkpoint_every)
    advance = Advance(stepper, steps, seed, watch, compiled)
    bar = make_bar(label) if progress and sys.stderr.isatty() else None
    with _Brake() as brake, bar or nullcontext():
        task = bar.add_task(label, total=steps, completed=start, text="") if bar else None
        for step in range(start, steps):
            state = advance(state, step)
            watch.count += 1
            stop = _between(stepper, state, step + 1, steps, watch, history, log_every, clock)
            if bar and (step + 1) % max(1, log_every // 10) == 0:
                bar.update(task, completed=step + 1, text=clock.text(step + 1 - start, history))
            if stop:
                return state, step + 1
            if brake.pulled:
                watch.check()
                stepper.save(state, step + 1)
                raise Interrupted(f"stopped by the user after {step + 1} of {steps} steps")
    return state, max(start, steps)


def _between(
    stepper: Stepper, state: Any, done: int, steps: int, watch: Watch, history: History, log_every: int, clock: "_Clock"
) -> bool:
    """What happens between two updates; returns whether to stop."""
    stepper.after(state, done)
    measured, stop = stepper.validate(state, done)
    if done % log_every == 0 or done == steps or measured or stop:
        history.add({"step": done, **watch.read(), **measured, "seconds": clock.seconds()})
    if clock.due(done) and done < steps:
        watch.check()
        stepper.save(state, done)
    return stop


class _Clock:
    """When checkpoints are due: every so many steps, or every half minute."""

    def __init__(self, every: int | None, pause: float = 30.0) -> None:
        self.every, self.pause = every, pause
        self.began = self.last = time.monotonic()

    def due(self, done: int) -> bool:
        if self.every is not None:
            return done % self.every == 0
        if time.monotonic() - self.last < self.pause:
            return False
        self.last = time.monotonic()
        return True

    def seconds(self) -> float:
        return round(time.monotonic() - self.began, 3)

    def text(self, steps: int, history: History) -> str:
        rate = steps / max(1e-9, time.monotonic() - self.began)
        return f"{rate:,.0f} steps/s{_latest(history.records[-1]) if history.records else ''}"


def _latest(record: Record) -> str:
    """The latest numbers for the bar: nats per datum of a fit, whatever is measured of a distillation."""
    if "fit" in record:
        return f" {record['fit']:.4g} nats/datum"
    return "".join(f" {name} {value:.4g}" for name, value in record.items() if name not in ("step", "seconds"))
