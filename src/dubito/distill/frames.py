"""Coordinates that follow a growing chain: those of an online game, and how both networks go on in new ones.

theta = shift + scale * coordinates, by the mean and the spread of the samples held; along principal directions
theta = shift + scale * (basis coordinates). Early samples of a chain say little of its later ones, so coordinates are
found anew as samples come, and the networks are put in their terms: the generator emits what it emitted, as far as the
new directions hold it, and the critic scores that as it did.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from dubito.distill.bank import Bank, Standard
from dubito.distill.directions import HEAD, basis, coordinates
from dubito.distill.game import Adversarial, GameState
from dubito.posteriors.generator import Parameters
from dubito.posteriors.storage import MemorySamples
from dubito.rng import Rng

WEIGHT, BIAS = f"{HEAD}.weight", f"{HEAD}.bias"  # where the generator's coordinates come from
CRITIC_WEIGHT, CRITIC_BIAS = "0.weight", "0.bias"  # where they go in


class Axes(NamedTuple):
    """Principal directions (D, k), their inverse (k, D) of least squares, and the coordinates of the buffer, (n, k)."""

    basis: Tensor
    back: Tensor
    rows: Tensor


class Frame(NamedTuple):
    """The coordinates of a game; without directions there are no axes."""

    standard: Standard
    axes: Axes | tuple[()]

    @classmethod
    def before(cls, buffer: Tensor, directions: int | None) -> "Frame":
        """Weights as they are, until there is something to go by."""
        n, size = buffer.shape
        standard = Standard(buffer.new_zeros(size), buffer.new_ones(size))
        if directions is None:
            return cls(standard, ())
        like = (buffer.new_zeros(shape) for shape in ((size, directions), (directions, size), (n, directions)))
        return cls(standard, Axes(*like))

    def inward(self, theta: Tensor) -> Tensor:
        """Weights (n, D) as coordinates."""
        x = self.standard.inward(theta)
        return x @ self.axes.back.T if self.axes else x

    def outward(self, x: Tensor) -> Tensor:
        """Coordinates as weights."""
        return self.standard.outward(x @ self.axes.basis.T if self.axes else x)


def fit_(frame: Frame, buffer: Tensor, settings: Adversarial, rng: Rng) -> None:
    """Take the coordinates of a full buffer."""
    std, mean = torch.std_mean(buffer, 0, correction=min(1, len(buffer) - 1))  # one vector has no spread
    if settings.standardise or frame.axes:
        frame.standard.shift.copy_(mean)
    if settings.standardise:
        frame.standard.scale.copy_(torch.where(std > 0, std, 1.0))
    if frame.axes:
        bank = Bank(MemorySamples(buffer.unsqueeze(1)), frame.standard)
        axes = basis(bank, coordinates(bank, frame.axes.rows.shape[1], rng, show=False), show=False)
        frame.axes.basis.copy_(axes)
        frame.axes.back.copy_(torch.linalg.pinv((axes.T @ axes).double(), hermitian=True).to(axes.dtype) @ axes.T)
        frame.axes.rows.copy_(frame.inward(buffer))


def follow_(frame: Frame, game: GameState, buffer: Tensor, settings: Adversarial, rng: Rng) -> None:
    """Take the coordinates of a buffer that has changed, and put both networks in their terms."""
    old = tree_map(torch.clone, frame)
    fit_(frame, buffer, settings, rng)
    (there, offset), (again, behind) = _passage(old, frame), _passage(frame, old)
    for held in (game.generator, game.averaged):
        held[BIAS].copy_(_turned(there, held[BIAS].unsqueeze(1)).squeeze(1) + offset)
        held[WEIGHT].copy_(_turned(there, held[WEIGHT]))
    first = game.critic[CRITIC_WEIGHT]
    game.critic[CRITIC_BIAS].add_(first @ behind)
    first.copy_(_turned(_transposed(again), first.T).T)
    _gradients_follow_(game.by_generator.first, game.by_critic.first, there, offset, again)
    squares = there.square(), offset.square(), again.square()
    _gradients_follow_(game.by_generator.second, game.by_critic.second, *squares)


def _gradients_follow_(
    by_generator: Parameters, by_critic: Parameters, there: Tensor, offset: Tensor, again: Tensor
) -> None:
    """What was seen of gradients, in new terms; of their squares as though coordinates were unrelated."""
    back = _transposed(again)
    by_generator[BIAS].copy_(_turned(back, by_generator[BIAS].unsqueeze(1)).squeeze(1))
    by_generator[WEIGHT].copy_(_turned(back, by_generator[WEIGHT]))
    turned = _turned(there, by_critic[CRITIC_WEIGHT].T).T
    by_critic[CRITIC_WEIGHT].copy_(torch.addr(turned, by_critic[CRITIC_BIAS], offset))


def _passage(old: Frame, new: Frame) -> tuple[Tensor, Tensor]:
    """(turn, offset) such that new coordinates are turn (old ones) + offset; a turn (D,) multiplies one by one."""
    scale = new.standard.scale
    turn, offset = old.standard.scale / scale, (old.standard.shift - new.standard.shift) / scale
    if not (old.axes and new.axes):
        return turn, offset
    return new.axes.back @ (turn.unsqueeze(1) * old.axes.basis), new.axes.back @ offset


def _turned(turn: Tensor, columns: Tensor) -> Tensor:
    return turn @ columns if turn.dim() == 2 else turn.unsqueeze(1) * columns


def _transposed(turn: Tensor) -> Tensor:
    return turn.T if turn.dim() == 2 else turn
