"""Adversarial distillation of a bank of rows, at work: on every weight, or along principal directions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dubito import runtime, schedules
from dubito.distill.bank import Bank
from dubito.distill.directions import basis, coordinates, spread
from dubito.distill.game import Game, GameInfo, GameState
from dubito.distill.work import Distillation, Order
from dubito.posteriors.generator import Generator, GeneratorPosterior, Parameters, weight_shapes
from dubito.rng import Rng
from dubito.runs import RunFolder
from dubito.tick import Tick


class AdversarialDistillation(Distillation):
    """A game played on the rows of a bank."""

    call = "distill.adversarial"

    def __init__(self, order: Order, game: Game, bank: Bank) -> None:
        super().__init__(order)
        self.game, self.bank = game, bank

    def begin(self, seed: int) -> Any:
        return self.game.init(Rng(seed).child("game"), self.bank.standard.shift)

    def step(self, state: Any, tick: Tick) -> tuple[Any, GameInfo]:
        game, take = self.played(state)
        with torch.no_grad(), runtime.precision(self.precision, self.device):
            inputs = self.game.inputs(tick.rng.child("game"), self.bank.n, self.bank.standard.shift, tick)
            return state, self.game.step(game, take, inputs)

    def played(self, state: Any) -> tuple[GameState, Callable[[Tensor], Tensor]]:
        """The game of a state, and what gives its rows."""
        return state, self.bank.take

    def obstacle(self) -> str | None:
        return None if self.bank.resident is not None else "the teacher does not fit the device and is read from disk"

    @property
    def extendable(self) -> bool:
        return not schedules.parse(self.game.settings.schedule).depends_on_steps

    def made(self, state: Any) -> GeneratorPosterior:
        generator, averaged = self.emitting(state)
        parameters = generator.standardised(averaged, *self.bank.standard)
        copies = {name: p.detach().clone() for name, p in parameters.items()}
        return GeneratorPosterior(self.net, self.likelihood, generator, copies)

    def emitting(self, state: Any) -> tuple[Generator, Parameters]:
        """A generator of standardised vectors, averaged over the path of the game's."""
        return self.game.generator, state.averaged


class Directed(NamedTuple):
    """A game, and the coordinates that it is played on, (n, directions)."""

    game: GameState
    rows: Tensor


class AlongDirections(AdversarialDistillation):
    """A game played on the principal coordinates of a bank's rows."""

    def __init__(self, order: Order, game: Game, bank: Bank, seed: int, show: bool) -> None:
        super().__init__(order, game, bank)
        self.rng, self.show = Rng(seed).child("directions"), show
        self._basis: Tensor | None = None

    def begin(self, seed: int) -> Directed:
        like = self.bank.standard.shift
        return Directed(super().begin(seed), like.new_zeros(self.bank.n, self.game.critic.size))

    def attach(self, home: RunFolder | None, done: int, state: Directed) -> None:
        super().attach(home, done, state)
        if not done:
            state.rows.copy_(coordinates(self.bank, self.game.critic.size, self.rng, self.show))

    def played(self, state: Directed) -> tuple[GameState, Callable[[Tensor], Tensor]]:
        return state.game, state.rows.__getitem__

    def obstacle(self) -> str | None:
        return None

    def emitting(self, state: Directed) -> tuple[Generator, Parameters]:
        if self._basis is None:
            self._basis = basis(self.bank, state.rows, self.show)
        shapes = weight_shapes(self.net, self.likelihood)
        return spread(self.game.generator, state.game.averaged, self._basis, shapes)
