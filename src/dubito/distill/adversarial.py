"""Adversarial distillation of a posterior that is there already."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dubito import runtime, schedules
from dubito.distill.bank import Bank, standard, teacher
from dubito.distill.game import Adversarial, Game, GameInfo, GameState
from dubito.distill.work import Distillation, Held, Order, chosen, describe, expect, prints
from dubito.loop import Record
from dubito.posteriors.base import Posterior
from dubito.posteriors.generator import GeneratorPosterior, weight_shapes
from dubito.rng import Rng
from dubito.runs import carry_out
from dubito.runtime import Precision, check_precision, pick_device
from dubito.tick import Tick


class AdversarialDistillation(Distillation):
    """A game played on the rows of a bank."""

    call = "distill.adversarial"

    def __init__(self, order: Order, game: Game, bank: Bank) -> None:
        super().__init__(order)
        self.game, self.bank = game, bank

    def begin(self, seed: int) -> GameState:
        return self.game.init(Rng(seed).child("game"), self.bank.standard.shift)

    def step(self, state: GameState, tick: Tick) -> tuple[GameState, GameInfo]:
        with torch.no_grad(), runtime.precision(self.precision, self.device):
            inputs = self.game.inputs(tick.rng.child("game"), self.bank.n, self.bank.standard.shift, tick)
            return state, self.game.step(state, self.bank.take, inputs)

    def obstacle(self) -> str | None:
        return None if self.bank.resident is not None else "the teacher does not fit the device and is read from disk"

    @property
    def extendable(self) -> bool:
        return not schedules.parse(self.game.settings.schedule).depends_on_steps

    def made(self, state: GameState) -> GeneratorPosterior:
        parameters = self.game.generator.standardised(state.averaged, *self.bank.standard)
        copies = {name: p.detach().clone() for name, p in parameters.items()}
        return GeneratorPosterior(self.net, self.likelihood, self.game.generator, copies)


def adversarial(
    posterior: Posterior,
    distiller: Adversarial | None = None,
    *,
    steps: int = 100_000,
    validation: Any = None,
    check_every: int = 1_000,
    callback: Callable[[Record], None] | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    folder: str | Path | None = None,
    checkpoint_every: int | None = None,
    precision: Precision = "float32",
    compiled: bool | None = None,
    progress: bool = True,
) -> GeneratorPosterior:
    """A generator of networks like those of a posterior over weights: a chain, an ensemble, a Gaussian.

    steps: of the generator. validation: (x, y) on which generated networks are scored every `check_every` steps.
    folder: where the run is kept; the same call resumes it. precision: how a GPU rounds in matrix products.
    compiled: whether a GPU's steps are fused by torch.compile; by default where it pays.
    """
    check_precision(precision)
    settings = chosen(distiller, Adversarial)
    samples = teacher(posterior, seed)
    net = posterior.net.to(pick_device(device))
    bank = Bank(samples, standard(samples, net.device, settings.standardise))
    game = Game(settings, weight_shapes(net, posterior.likelihood))
    described = {**describe(settings, posterior, seed), "precision": precision}
    order = Order(net, posterior.likelihood, steps, described, Held.of(validation, check_every))
    work = AdversarialDistillation(order, game, bank)
    told = prints(posterior, order.held)
    return expect(
        carry_out(work, work.begin(seed), told, seed, folder, callback, checkpoint_every, progress, compiled),
        GeneratorPosterior,
        folder,
    )
