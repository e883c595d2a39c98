"""Coordinates of an online game: what they are, and that both networks mean the same in new ones."""

from functools import partial

import pytest
import torch

from dubito.distill import Adversarial
from dubito.distill.frames import Frame, fit_, follow_
from dubito.distill.game import Game
from dubito.rng import Rng
from dubito.tick import Tick

SIZE, BUFFER = 6, 40


def vectors(seed: int, spread: float = 1.0) -> torch.Tensor:
    """A buffer whose coordinates have means and spreads of their own, and go together."""
    source = torch.Generator().manual_seed(seed)
    mixed = torch.randn(BUFFER, SIZE, generator=source) @ torch.randn(SIZE, SIZE, generator=source)
    return 3 + spread * mixed * torch.logspace(-1, 1, SIZE)


def played(settings: Adversarial, frame: Frame, buffer: torch.Tensor):
    """A game of a few steps on the coordinates of a buffer, all in double precision."""
    game = Game(settings, ((settings.directions or SIZE,),))
    state = game.init(Rng(0).child("game"), buffer)
    for step in range(5):
        inputs = game.inputs(Rng(0).at(step), BUFFER, buffer, Tick.at(step, 5))
        game.step(state, lambda rows: frame.inward(buffer[rows]), inputs)
    return game, state


def settings(directions: int | None, standardise: bool = True) -> Adversarial:
    return Adversarial(noise=3, widths=(8,), batch_size=7, directions=directions, standardise=standardise)


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("directions", [None, SIZE])
def test_networks_mean_the_same_in_new_coordinates(directions, standardise):
    """Where directions hold everything: the weights emitted, and the scores of weights up to a common constant."""
    chosen, buffer = settings(directions, standardise), vectors(0).double()
    frame = Frame.before(buffer, directions)
    fit_(frame, buffer, chosen, Rng(0))
    game, state = played(chosen, frame, buffer)
    z, asked = torch.randn(9, 3, dtype=torch.float64), vectors(2).double()

    def meant():
        made = [frame.outward(game.generator(held, z)) for held in (state.generator, state.averaged)]
        return [*made, game.critic.scores(state.critic, game.critic.first(state.critic, frame.inward(asked)))]

    before, later = meant(), 5 + vectors(1, 3.0).double()
    follow_(frame, state, later, chosen, Rng(1))
    for now, then in zip(meant(), before, strict=True):
        torch.testing.assert_close(now, then, rtol=1e-8, atol=1e-6)
    moved = frame.inward(later)
    if directions is None and standardise:
        torch.testing.assert_close(moved.std(0), torch.ones(SIZE, dtype=torch.float64))
    if directions or standardise:
        torch.testing.assert_close(moved.mean(0), torch.zeros(SIZE, dtype=torch.float64), atol=1e-8, rtol=0)
    if directions:
        torch.testing.assert_close(frame.axes.rows, moved)
        inner = moved.T @ moved
        assert float((inner - inner.diag().diag()).abs().max()) < 1e-6 * float(inner.max())


@pytest.mark.parametrize("directions", [None, SIZE])
def test_moments_follow_as_gradients_do(directions):
    """By autograd in both coordinates; second moments exactly where no sum is squared."""
    chosen, buffer = settings(directions), vectors(0).double()
    frame = Frame.before(buffer, directions)
    fit_(frame, buffer, chosen, Rng(0))
    game, state = played(chosen, frame, buffer)
    z, asked = torch.randn(9, 3, dtype=torch.float64), vectors(2).double()

    def gradients():
        generator, critic = ({n: p.clone().requires_grad_() for n, p in held.items()}
                             for held in (state.generator, state.critic))  # fmt: skip
        first = partial(game.critic.first, critic)
        with torch.enable_grad():
            made = game.critic.scores(critic, first(game.generator(generator, z))).sum()
            judged = game.critic.scores(critic, first(frame.inward(asked))).square().sum()
            return (
                dict(zip(generator, torch.autograd.grad(made, list(generator.values())), strict=True)),
                dict(zip(critic, torch.autograd.grad(judged, list(critic.values())), strict=True)),
            )

    for moments, found in zip((state.by_generator, state.by_critic), gradients(), strict=True):
        for name, gradient in found.items():
            moments.first[name].copy_(gradient)
            moments.second[name].copy_(gradient.square())
    follow_(frame, state, vectors(1, 3.0).double(), chosen, Rng(1))
    for moments, found in zip((state.by_generator, state.by_critic), gradients(), strict=True):
        for name, gradient in found.items():
            torch.testing.assert_close(moments.first[name], gradient, rtol=1e-6, atol=1e-6)
            if directions is None and name != "0.weight":
                torch.testing.assert_close(moments.second[name], gradient.square(), rtol=1e-6, atol=1e-8)


def test_what_new_directions_do_not_hold_is_let_go():
    """The generator then emits the nearest that they hold."""
    chosen, buffer = settings(2), vectors(0).double()
    frame = Frame.before(buffer, 2)
    fit_(frame, buffer, chosen, Rng(0))
    game, state = played(chosen, frame, buffer)
    z = torch.randn(9, 3, dtype=torch.float64)
    before = frame.outward(game.generator(state.averaged, z))
    follow_(frame, state, vectors(1).double(), chosen, Rng(1))
    nearest = frame.outward(frame.inward(before))
    torch.testing.assert_close(frame.outward(game.generator(state.averaged, z)), nearest, rtol=1e-8, atol=1e-8)
    assert not torch.allclose(nearest, before)
