"""Dark knowledge from a posterior that is there already."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dubito import forward
from dubito.batches import Batches
from dubito.distill.bank import room
from dubito.distill.student import DarkKnowledge, Lesson, LessonInfo, LessonState
from dubito.distill.work import Distillation, Held, Order, chosen, describe, expect, prints
from dubito.inputs import Inputs, move, n_rows, rows, tensors
from dubito.layout import Layout
from dubito.loop import Record
from dubito.posteriors.base import Posterior, check_posterior
from dubito.posteriors.samples import SamplesPosterior
from dubito.posteriors.storage import MemorySamples
from dubito.posteriors.student import StudentPosterior
from dubito.rng import Rng
from dubito.runs import carry_out
from dubito.runtime import pick_device
from dubito.sources import open_source
from dubito.tick import Tick


class DarkKnowledgeDistillation(Distillation):
    """Lessons at the rows of some inputs."""

    call = "distill.dark_knowledge"

    def __init__(self, order: Order, lesson: Lesson, teacher: Posterior, feed: Batches) -> None:
        super().__init__(order)
        self.lesson, self.teacher, self.feed = lesson, teacher, feed
        self.near = _at_hand(teacher)

    def begin(self, seed: int) -> LessonState:
        return self.lesson.init()

    def step(self, state: LessonState, tick: Tick) -> tuple[LessonState, LessonInfo]:
        with torch.no_grad():
            recorded = tick.recorder is not None
            batch = self.feed.gather(tick.step) if recorded else self.feed(int(tick.step))
            x = self.lesson.perturbed(batch.x, tick.rng)
            outputs, own = self._taught(x, tick.rng)
            return state, LessonInfo(self.lesson.step(state, x, outputs, own, tick))

    def obstacle(self) -> str | None:
        if self.near is None:
            return "the teacher's networks are not all at hand on the device"
        return None if self.feed.gathers else "the inputs are read as it goes"

    def ready(self, step: int) -> None:
        """Have the order of the step's epoch in place."""
        self.feed.index(step)

    def _taught(self, x: Inputs, rng: Rng) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs (draws, B, ...) of some of the teacher's networks, and their noise."""
        draws = self.lesson.settings.draws
        if self.near is None:
            functions = self.teacher.draw(draws, rng.key("teacher"))
            return functions(x), functions.noise()
        like = self.near.new_empty(0, dtype=torch.float64)
        index = (rng.uniform((1, draws), "teacher", like)[0] * len(self.near)).long()
        theta, size = self.near[index], self.teacher.net.layout.size
        noise = Layout.of(self.teacher.likelihood.parameters())
        return self.teacher.net.many(theta[:, :size], x), noise.split(theta[:, size:])

    def made(self, state: LessonState) -> StudentPosterior:
        return self.lesson.posterior(state)

    @property
    def extendable(self) -> bool:
        return not self.lesson.settings.rates.depends_on_steps


def dark_knowledge(
    posterior: Posterior,
    x: Any,
    distiller: DarkKnowledge | None = None,
    *,
    steps: int = 20_000,
    validation: Any = None,
    check_every: int = 1_000,
    callback: Callable[[Record], None] | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    folder: str | Path | None = None,
    checkpoint_every: int | None = None,
    progress: bool = True,
) -> StudentPosterior:
    """A single network that predicts at inputs like x what the whole posterior predicts; any posterior can teach.

    x: inputs without labels; they should cover where the student will be asked. validation: (x, y) on which it is
    scored every `check_every` steps. folder: where the run is kept; the same call resumes it.
    """
    settings = chosen(distiller, DarkKnowledge)
    check_posterior(posterior)
    teacher = _near(posterior.to(pick_device(device)))
    lesson = Lesson(settings, teacher.net, teacher.likelihood)
    inputs = tensors(x)
    lesson.check(rows(move(inputs, teacher.net.device, teacher.net.dtype), slice(1)), teacher.net)
    source = open_source((inputs, torch.zeros(n_rows(inputs))), teacher.net.device, teacher.net.dtype)
    feed = Batches(source, min(settings.batch_size, source.n), seed, teacher.net.device)
    described = describe(settings, posterior, seed)
    order = Order(lesson.net, lesson.likelihood, steps, described, Held.of(validation, check_every))
    work = DarkKnowledgeDistillation(order, lesson, teacher, feed)
    told = prints(posterior, order.held)
    told["fingerprints"]["data"] = source.fingerprint()
    first, _, _ = source.take(torch.arange(min(source.n, forward.ROWS)))
    told["forward"] = {"student": forward.outputs(lesson.net, first), "teacher": forward.outputs(teacher.net, first)}
    found = carry_out(work, work.begin(seed), told, seed, folder, callback, checkpoint_every, progress)
    return expect(found, StudentPosterior, folder)


def _at_hand(teacher: Posterior) -> Tensor | None:
    """All weight vectors (n, D), where they are stored and lie on the device without statistics of their own."""
    if not isinstance(teacher, SamplesPosterior) or not isinstance(teacher.samples, MemorySamples):
        return None
    return None if teacher.samples.buffers else teacher.samples.theta.flatten(0, 1)


def _near(posterior: Posterior) -> Posterior:
    """Stored networks brought to the device, where they fit."""
    if not isinstance(posterior, SamplesPosterior) or not posterior.samples.on_disk:
        return posterior
    samples, device = posterior.samples, posterior.net.device
    first, buffers = samples.get([0])
    row = first.nbytes + sum(b.nbytes for b in buffers.values())
    if row * len(samples) > room(device):
        return posterior
    theta, held = samples.get(range(len(samples)))
    shape = (samples.rows, samples.chains)
    moved = {n: b.to(device).unflatten(0, shape) for n, b in held.items()}
    return replace(posterior, samples=MemorySamples(theta.to(device).unflatten(0, shape), moved))
