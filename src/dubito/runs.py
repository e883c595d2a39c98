"""The folder of a run: what was asked for, how far it came, and whether it may go on."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from dubito import checkpoint, forward
from dubito.config import difference, whole
from dubito.loop import History, Interrupted, Record, Stepper, run, written
from dubito.posteriors.base import Posterior
from dubito.posteriors.files import make_folder, write_atomically
from dubito.posteriors.storage import Damaged


class Work(Stepper, Protocol):
    """A stepper that ends in a posterior: the fit of a method, or a distillation."""

    call: str  # the function to call again
    settings: Mapping[str, Any]
    steps: int

    @property
    def label(self) -> str:
        """What the progress bar says."""

    @property
    def log_every(self) -> int:
        """Steps between two records."""

    @property
    def extendable(self) -> bool:
        """Whether a longer run would have taken the same path."""

    def attach(self, home: "RunFolder | None", done: int, state: Any) -> None:
        """Say where it works, how many steps are behind it, and the state it goes on from."""

    def stopped(self, state: Any) -> bool:
        """Whether it has stopped by itself before the last step."""

    def so_far(self, state: Any) -> Posterior | None:
        """What is known now, if anything is."""

    def end(self, state: Any, done: int) -> Posterior:
        """The posterior, written where there is a folder."""

    def reopen(self, home: "RunFolder") -> Posterior:
        """The posterior of a finished run."""


HISTORY = "history.jsonl"
START = "; the network starts from other weights than then: make it after the same torch.manual_seed(...)"
FORWARD = "; the network makes other outputs of the same weights and rows than then: give the one the run began with"
LATER = ("augment", "dropout", "forward", "validation")  # what folders of earlier versions do not tell
NOTES = ("fit.toml", "data.json")  # how the command line was asked, written before the run so that none is without


class RunFolder:
    """`run.json` (settings and status), `history.jsonl`, `checkpoint.safetensors` and the posterior."""

    def __init__(self, path: str | Path) -> None:
        self.path = make_folder(path)
        self.history = self.path / HISTORY
        self.posterior = self.path / "posterior"
        self._run, self._checkpoint = self.path / "run.json", self.path / "checkpoint.safetensors"

    def is_new(self) -> bool:
        """Whether no run has begun here; a folder with other things in it is refused."""
        return self._read() is None

    def open(self, settings: Mapping[str, Any], steps: int, extendable: bool) -> bool:
        """Claim the folder for these settings; returns whether such a run has finished here already."""
        before = self._read()
        if before is None:
            self._write(settings, steps, finished=False)
            return False
        self._check_same(before["settings"], settings)
        if steps != before["steps"]:
            self._check_steps(before["steps"], steps, extendable)
            self._write(settings, steps, finished=False)
            return False
        return bool(before["finished"])

    def finish(self, steps: int) -> None:
        """Note that all is done."""
        before = self._read()
        if before is not None:
            self._write(before["settings"], steps, finished=True)

    def save(self, state: Any, step: int) -> None:
        """Write a checkpoint after `step` updates."""
        checkpoint.write(self._checkpoint, state, {"step": step})

    def restore(self, state: Any) -> tuple[Any, int]:
        """The state to go on from and the number of updates behind it; the given one where nothing was saved."""
        if not self._checkpoint.exists():
            return state, 0
        found, notes = checkpoint.read(self._checkpoint, state)
        return found, int(notes["step"])

    def replace_posterior(self, posterior: Posterior) -> None:
        """Write a posterior in place of an earlier one."""
        fresh = self.path / "posterior.partial"
        shutil.rmtree(fresh, ignore_errors=True)
        posterior.save(fresh)
        shutil.rmtree(self.posterior, ignore_errors=True)
        fresh.replace(self.posterior)

    def _check_same(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        known = {name: value for name, value in now.items() if name in before or name not in LATER}
        seen = before.get("forward", {})
        hint, found = "", difference(before, {**known, "forward": seen} if seen else known)
        if any(line.startswith("fingerprints.start:") for line in found):
            hint = START if all(line.startswith("fingerprints.") for line in found) else ""
        elif not found:
            hint, found = FORWARD, forward.difference(seen, known.get("forward", {}))
        if found:
            raise ValueError(
                f"{self.path} holds another run; {'; '.join(found)} — use the same settings or another folder{hint}"
            )

    def _check_steps(self, before: int, now: int, extendable: bool) -> None:
        if now < before:
            raise ValueError(
                f"{self.path} holds a run of {before} steps; it cannot be cut to {now}: use another folder"
            )
        if not extendable:
            raise ValueError(
                f"{self.path} holds a run of {before} steps whose schedule depends on their number; it cannot "
                f"be extended to {now}: use another folder"
            )

    def _read(self) -> dict[str, Any] | None:
        if not self._run.exists():
            if any(found.name not in NOTES and found.suffix != ".partial" for found in self.path.iterdir()):
                raise ValueError(f"{self.path} is not empty and holds no run; choose an empty or a new folder")
            return None
        try:
            found: dict[str, Any] = json.loads(self._run.read_text())
            return {"settings": found["settings"], "steps": found["steps"], "finished": found["finished"]}
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged(f"{self._run} is damaged ({error}); choose another folder") from error

    def _write(self, settings: Mapping[str, Any], steps: int, finished: bool) -> None:
        text = json.dumps({"settings": dict(settings), "steps": steps, "finished": finished}, indent=1)
        write_atomically(self._run, text.encode(), durable=True)


def history(folder: str | Path) -> list[Record]:
    """All records of a run, those of earlier sittings too, of which a callback is not told again."""
    return written(Path(folder) / HISTORY)


def carry_out(
    work: Work,
    state: Any,
    prints: Mapping[str, Any],
    seed: int,
    folder: str | Path | None,
    callback: Callable[[Record], None] | None,
    checkpoint_every: int | None,
    progress: bool,
    compiled: bool | None = None,
) -> Posterior:
    """Run from the start, or from where the folder left off; prints tell one run's data from another's."""
    if checkpoint_every is not None and whole("checkpoint_every", checkpoint_every) < 1:
        raise ValueError(f"checkpoint_every is {checkpoint_every}; give 1 step or more, or leave it out")
    home, done = None if folder is None else RunFolder(folder), 0
    if home is not None:
        if home.open({**work.settings, **prints}, work.steps, work.extendable):
            return work.reopen(home)
        state, done = home.restore(state)
    work.attach(home, done, state)
    records = History(home.history if home else None, callback, done)
    if work.stopped(state):
        return work.end(state, done)
    try:
        state, done = run(
            work,
            state,
            start=done,
            steps=work.steps,
            seed=seed,
            history=records,
            label=work.label,
            progress=progress,
            log_every=work.log_every,
            checkpoint_every=checkpoint_every,
            compiled=compiled,
        )
    except Interrupted as stopped:
        stopped.posterior = work.so_far(state)
        again = f"; call {work.call} again with folder={str(folder)!r} to go on"
        stopped.args = (stopped.args[0] + (again if folder else "; its .posterior is what it reached"),)
        raise
    return work.end(state, done)
