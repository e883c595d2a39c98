"""A method at work on its data: what the loop drives when a posterior is fitted."""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from dubito import __version__, runtime
from dubito.checkpoint import copy_rows
from dubito.layout import aligned
from dubito.loop import Diverged, Record
from dubito.methods.base import Method
from dubito.methods.collect import Collect
from dubito.posteriors import files
from dubito.posteriors.base import Posterior
from dubito.posteriors.load import load
from dubito.posteriors.samples import SamplesPosterior, stored
from dubito.posteriors.storage import MemorySamples
from dubito.rng import Rng
from dubito.runs import RunFolder
from dubito.runtime import Precision, check_precision
from dubito.sources import Source
from dubito.target import Batch, Target
from dubito.tick import Tick

MEMORY_LIMIT = 4 << 30  # bytes of samples kept without a folder
VALIDATION_ROWS = 1024
VALIDATION_STEPS = 10  # at least so many steps between two checks, where an epoch is shorter


class Progress(NamedTuple):
    """The state of a method, its best members on validation data, their scores, and checks since they improved."""

    state: Any
    best: Any
    score: Tensor
    since: Tensor


class Training:
    """Steps of a method, kept samples, validation and checkpoints."""

    call = "fit"

    def __init__(
        self,
        method: Method[Any],
        target: Target,
        feed: Any,
        steps: int,
        settings: Mapping[str, Any],
        patience: int | None,
        validation: Source | None,
    ) -> None:
        if patience is not None and (validation is None or patience < 1):
            raise ValueError("patience counts checks on validation data: give validation= and a patience of at least 1")
        if patience is not None and not method.selects:
            raise ValueError(f"{type(method).__name__} ends where its schedule ends; leave patience={patience} out")
        self.method, self.target, self.feed, self.steps, self.settings = method, target, feed, steps, settings
        self.patience, self.validation = patience, validation
        self.keeps_samples = any(method.keeps(s, steps) for s in range(steps))
        if isinstance(method, Collect) and not self.keeps_samples:
            raise ValueError(f"no sample would be kept in {steps} steps; take more, or a smaller burn_in or thin")
        self.kept: list[tuple[Tensor, dict[str, Tensor]]] = []
        self.home: RunFolder | None = None
        self.shelf: files.SampleFolder | None = None
        self.device = target.net.device
        self._batch: Batch | None = None
        self._place: Batch | None = None  # where recorded steps find rows that they cannot pick themselves
        self._apart: bool | None = None

    @property
    def label(self) -> str:
        """The method's name."""
        bare = self.method.method if isinstance(self.method, Collect) else self.method
        return type(bare).__name__

    @property
    def precision(self) -> Precision:
        """How a GPU rounds in matrix products."""
        return check_precision(self.settings["precision"])

    @property
    def log_every(self) -> int:
        """Once an epoch, or a hundred times."""
        return max(1, min(int(self.feed.per_epoch), self.steps // 100))

    @property
    def extendable(self) -> bool:
        """Whether more steps would only continue the same path."""
        return not self.method.depends_on_steps

    # -- before ------------------------------------------------------------------------------------------------

    def begin(self, theta: Tensor, seed: int) -> Progress:
        """The state before the first step."""
        state = tree_map(aligned, self.method.init(theta, self.target, Tick(torch.tensor(0), self.steps, Rng(seed))))
        best = tree_map(torch.clone, state) if self._selects else ()
        empty = torch.full((len(theta),), torch.inf, device=theta.device)
        return Progress(state, best, empty, torch.zeros(len(theta), dtype=torch.long))

    def attach(self, home: RunFolder | None, done: int, state: Progress) -> None:
        """Say where kept samples go, and how many the first `done` steps have kept."""
        self.home = home
        if home is not None and self.keeps_samples:
            rows = sum(self.method.keeps(s, self.steps) for s in range(done))
            files.save_constants(files.make_folder(home.posterior), self.target.net)
            self.shelf = files.SampleFolder(home.posterior, self._manifest(), rows)

    # -- during ------------------------------------------------------------------------------------------------

    def step(self, progress: Progress, tick: Tick) -> tuple[Progress, Any]:
        """One update."""
        with torch.no_grad(), runtime.precision(self.precision, self.device):
            batch = self._rows(tick)
            if self._steps_one_by_one(progress, batch):
                return progress, self._one_by_one(progress.state, batch, tick, len(progress.score))
            state, info = self.method.step(progress.state, batch, self.target, tick)
        return progress._replace(state=state), info

    def obstacle(self) -> str | None:
        """Why steps cannot be recorded."""
        if self._batch is not None and self.method.drops and self.target.net.draws(self._batch.x):
            return "the network draws from the global generator"
        return None

    def kind(self, progress: Progress, step: int) -> Hashable:
        """What tells a step from others."""
        return self.method.kind(progress.state, step, self.steps)

    def ready(self, step: int) -> None:
        """Put the rows of a step where a recorded one reads them."""
        if self.feed.gathers:
            self.feed.index(step)
        else:
            tree_map(_overwrite, self._place, self.feed(step))

    def _rows(self, tick: Tick) -> Batch:
        """The rows of a step; a recorded one finds them on the device, or where `ready` puts them."""
        if tick.recorder is not None and self.feed.gathers:
            gathered: Batch = self.feed.gather(tick.step)
            return gathered
        if tick.recorder is not None and self._place is not None:
            return self._place
        self._batch = self.feed(int(tick.step))
        self._place = self._place or self._batch
        return self._batch

    def _steps_one_by_one(self, progress: Progress, batch: Batch) -> bool:
        """Whether members take their steps apart, because each keeps the cores busy by itself."""
        if self._apart is None:
            worth = len(progress.score) == 1 or self.target.side_by_side(batch)
            self._apart = not worth and not self.method.shares
        return self._apart

    def _one_by_one(self, state: Any, batch: Batch, tick: Tick, members: int) -> Any:
        def step(part: Any, member: int) -> tuple[Any, Any]:
            own = tick._replace(rng=tick.rng.of_member(member))
            return self.method.step(part, batch, self.target, own)

        return runtime.one_by_one(step, state, members)

    def after(self, progress: Progress, done: int) -> None:
        """Keep a sample where one is due; what is not finite is never kept."""
        if not self.method.keeps(done - 1, self.steps):
            return
        theta, buffers = self.method.weights(progress.state)
        _check_finite(theta, done)
        if self.shelf is not None:
            self.shelf.append(theta, buffers)
            self.shelf.publish()
            return
        self._check_memory(theta)
        self.kept.append((theta.detach().cpu().clone(), {n: b.detach().cpu().clone() for n, b in buffers.items()}))

    def save(self, progress: Progress, step: int) -> None:
        """Write a checkpoint, where there is a folder."""
        if self.home is not None:
            self.home.save(progress, step)

    def validate(self, progress: Progress, done: int) -> tuple[Record, bool]:
        """Nats per validation datum, once an epoch; members that improved become the best."""
        if not self._due(done) and done != self.steps:
            return {}, False
        noted = self.method.noted(progress.state, self.target)
        if self.validation is None:
            return noted, False
        nll = self._validation_nll(progress.state)
        if self._selects and self._due(done):
            self._select(progress, nll)
        return {**noted, "validation": float(nll.mean())}, self.stopped(progress)

    def stopped(self, progress: Progress) -> bool:
        """Whether every member has been without progress for as long as patience lasts."""
        return self.patience is not None and self._selects and bool((progress.since >= self.patience).all())

    # -- after -------------------------------------------------------------------------------------------------

    def end(self, progress: Progress, done: int) -> Posterior:
        """The posterior, written where there is a folder."""
        _check_finite(self.method.weights(progress.state).theta, done)
        self.save(progress, done)
        if self._selects and not self._due(done):  # a longer run has no check here, so the checkpoint knows of none
            self._select(progress, self._validation_nll(progress.state))
        if self.shelf is not None:
            self.shelf.finish()
        posterior = self.so_far(progress)
        if posterior is None:
            raise ValueError(f"no sample was kept in {done} steps; take more, or a smaller burn_in or thin")
        if self.home is not None:
            if self.shelf is None:
                self.home.replace_posterior(posterior)
            self.home.finish(self.steps)
        return posterior

    def so_far(self, progress: Progress) -> Posterior | None:
        """What is known now; None where samples are to be kept and none has been."""
        if not self.keeps_samples:
            state = progress.best if self._selects and bool(torch.isfinite(progress.score).all()) else progress.state
            made = self.method.posterior(state, self.target)
            return replace(made, about={**made.about, **self._about()})  # type: ignore[type-var]
        if self.shelf is not None:
            return None if not self.shelf.rows else self._on_disk(self.shelf.folder)
        if not self.kept:
            return None
        theta = torch.stack([t for t, _ in self.kept])
        buffers = {n: torch.stack([b[n] for _, b in self.kept]) for n in self.kept[0][1]}
        device = self.target.net.device
        samples = MemorySamples(theta.to(device), {n: b.to(device) for n, b in buffers.items()})
        return SamplesPosterior(self.target.net, self.target.likelihood, samples, self._form, self._about())

    def reopen(self, home: RunFolder) -> Posterior:
        """The posterior of a finished run."""
        device = str(self.target.net.device)
        return load(home.posterior, self.target.net.tidied(), likelihood=self.target.likelihood, device=device)

    # -- inside ------------------------------------------------------------------------------------------------

    @property
    def _selects(self) -> bool:
        """Whether validation data choose among states: for methods that optimise, not for those that sample."""
        return self.validation is not None and self.method.selects and not self.keeps_samples

    def _due(self, done: int) -> bool:
        """Whether validation is due, which must not depend on the number of steps: a run may be extended."""
        return done % max(int(self.feed.per_epoch), VALIDATION_STEPS) == 0

    def _select(self, progress: Progress, nll: Tensor) -> None:
        """Members that improved become the best, in place."""
        better = nll < progress.score
        copy_rows(progress.best, progress.state, better.cpu())
        progress.score.copy_(torch.where(better, nll, progress.score))
        progress.since.add_(1).masked_fill_(better.cpu(), 0)

    @property
    def _form(self) -> Any:
        return "chains" if isinstance(self.method, Collect) else "ensemble"

    def _validation_nll(self, state: Any) -> Tensor:
        theta, buffers = self.method.shown(state, self.target)
        total = torch.zeros(len(theta), device=theta.device)
        if self.validation is None:
            return total
        for index in torch.arange(self.validation.n).split(VALIDATION_ROWS):
            x, y, _ = self.validation.take(index)
            with torch.no_grad():
                held = {n: b.clone() for n, b in buffers.items()}
                total -= self.target.log_probs(theta, Batch(x, y, index), "eval", held).sum(1)
        return total / self.validation.n

    def _check_memory(self, theta: Tensor) -> None:
        if self.kept:
            return
        rows = sum(self.method.keeps(s, self.steps) for s in range(self.steps))
        if rows * theta.nbytes > MEMORY_LIMIT:
            raise ValueError(
                f"{rows} samples of {theta.nbytes:,} bytes do not fit the {MEMORY_LIMIT >> 30} GiB allowed in "
                "memory; give fit(folder=...) to keep them on disk, or a larger thin"
            )

    def _about(self) -> dict[str, Any]:
        return {**self.settings, "steps": self.steps, "dubito": __version__}

    def _manifest(self) -> dict[str, Any]:
        about = {k: v for k, v in self._about().items() if k != "layout"}
        return {**files.describe(self.target.net, self.target.likelihood, "samples", about), "form": self._form}

    def _on_disk(self, folder: Any) -> Posterior:
        _, manifest = files.read_manifest(folder)
        return stored(folder, manifest, self.target.net, self.target.likelihood)


def _overwrite(held: Any, new: Any) -> None:
    if isinstance(held, Tensor):  # the rest of a batch is the same in every step
        held.copy_(new)


def _check_finite(theta: Tensor, done: int) -> None:
    if not bool(torch.isfinite(theta).all()):
        raise Diverged(f"at step {done} a weight left the finite; try a smaller step_size or learning_rate")
