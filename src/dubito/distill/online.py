"""Distillation while a sampler runs: the chain is learnt from and forgotten, never stored.

After burn-in the sampler's positions enter a bounded buffer, and a generator is trained on the buffer between updates
of the chains (Wang et al., 2018, arXiv 1806.10317, "online"); or a student takes a lesson from the chains' present
positions (Korattikara et al., 2015, arXiv 1506.04416, algorithm 1). A full buffer stays an even sample of all positions
so far (Vitter, 1985, algorithm R): the nth enters with probability buffer / n, in the place of any other. The game is
played on coordinates that follow the buffer: they are found when it is full, and whenever twice as many have come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from dubito import schedules
from dubito.distill.directions import check_directions, spread
from dubito.distill.frames import Frame, fit_, follow_
from dubito.distill.game import Adversarial, Game, GameState
from dubito.distill.student import DarkKnowledge, Lesson, LessonState
from dubito.inputs import Inputs
from dubito.likelihoods import Likelihood
from dubito.methods.base import Fate, Method, Sampler, Weights, check_count
from dubito.methods.collect import Collect
from dubito.methods.sgld import SGLD
from dubito.net import Net
from dubito.posteriors.base import Posterior
from dubito.posteriors.generator import GeneratorPosterior, weight_shapes
from dubito.priors import Assigned
from dubito.rng import Rng, derive
from dubito.target import Batch, Target
from dubito.tick import Tick

SHOWN = 8  # generated networks that stand for the state, on validation data


class Buffered(NamedTuple):
    """A game, the vectors it is played on, (buffer, D), and the map to its coordinates."""

    game: GameState
    buffer: Tensor
    frame: Frame


class OnlineState(NamedTuple):
    """The sampler's state, what learns from it, and what that last told, (1,)."""

    chains: Any
    learner: Any
    told: Tensor


class Due(NamedTuple):
    """What an update does beside the sampler's."""

    enters: bool = False  # the chains' positions enter the buffer
    turn: int = 0  # which time since the buffer was full that coordinates are found, from 1
    learns: bool = False  # a round of the distiller
    restarts: bool = False  # chains go on from generated networks


class OnlineInfo(NamedTuple):
    """What a step tells of each chain, and the latest of the learner: the critic's estimate, or the student's loss."""

    fit: Tensor
    complexity: Tensor
    learner: Tensor


@dataclass(frozen=True, kw_only=True)
class OnlineDistillation(Method[OnlineState]):
    """A sampler and a distiller in turn; `steps` of a fit are the sampler's updates."""

    sampler: Sampler[Any] = field(default_factory=SGLD)
    distiller: Adversarial | DarkKnowledge = field(default_factory=Adversarial)
    every: int = 20  # updates of the sampler between two rounds of the distiller
    rounds: int = 1  # steps of the distiller in each
    buffer: int = 1_000  # weight vectors held, for Adversarial: an even sample of those that `thin` lets through
    restart: int | None = None  # every so many updates chains go on from generated networks, for Adversarial

    _lessons: WeakKeyDictionary[Target, Lesson] = field(
        default_factory=WeakKeyDictionary, init=False, compare=False, repr=False
    )
    _examples: WeakKeyDictionary[Net, Inputs] = field(  # a row for each network that was prepared
        default_factory=WeakKeyDictionary, init=False, compare=False, repr=False
    )

    answer = "exact"
    shares = True
    selects = False

    def __post_init__(self) -> None:
        _check_parts(self.sampler, self.distiller)
        for name in ("every", "rounds", "buffer"):
            check_count(self, name, getattr(self, name), 1)
        if self.restart is not None:
            check_count(self, "restart", self.restart, 1)
            if not isinstance(self.distiller, Adversarial):
                raise ValueError("restart needs a generator of networks, and a student is none; leave it out")
        if type(self.sampler).keeps is not Sampler.keeps:
            raise ValueError(
                f"every state after burn-in is learnt from, but {type(self.sampler).__name__} explores in between; use "
                "SGLD or SGHMC"
            )

    @property
    def needs_all_rows(self) -> bool:
        return self.sampler.needs_all_rows

    # -- as a method -------------------------------------------------------------------------------------------

    def init(self, theta: Tensor, target: Target, tick: Tick) -> OnlineState:
        learner: Any = self._novice(target, tick) if self._teaches else self._empty(theta, target, tick)
        return OnlineState(self.sampler.init(theta, target, tick), learner, theta.new_zeros(1))

    def step(self, state: OnlineState, batch: Batch, target: Target, tick: Tick) -> tuple[OnlineState, OnlineInfo]:
        due = self.kind(state, int(tick.step), tick.steps) if tick.recorder is None else tick.kind
        chains, told = self.sampler.step(state.chains, batch, target, tick)
        theta = self.sampler.weights(chains).theta
        if not self._teaches:
            self._play(state, theta, target, tick, due)
        elif due.learns:
            self._teach(state, theta, batch, target, tick)
        latest = state.told.expand(len(theta)).clone()
        return state._replace(chains=chains), OnlineInfo(told.fit, told.complexity, latest)

    def kind(self, state: OnlineState, step: int, steps: int) -> Due:
        """A function of the step alone."""
        done, turn = step + 1, (step + 1) % self.every == 0
        if self._teaches:
            return Due(learns=turn and done > self.sampler.burn_in)
        chains = len(self.weights(state).theta)
        before, now = (self._reached(updates, chains) for updates in (step, done))
        full = now >= self.buffer
        again = self.restart is not None and done % self.restart == 0
        enters = now > before and self._place(now, chains) is not None
        return Due(enters, self._turn(before, now), full and turn, full and again)

    def weights(self, state: OnlineState) -> Weights:
        """The chains' positions."""
        return self.sampler.weights(state.chains)

    def shown(self, state: OnlineState, target: Target) -> Weights:
        """A few generated networks; the chains themselves while a student learns from them."""
        if self._teaches:
            return self.weights(state)
        return Weights(self._generated(state.learner, target, SHOWN, Rng(0).child("shown")), {})

    def posterior(self, state: OnlineState, target: Target) -> Posterior:
        if self._teaches:
            return self._lesson(target).posterior(state.learner)
        generator, frame = self._game(target).generator, state.learner.frame
        parameters = state.learner.game.averaged
        if frame.axes:
            shapes = weight_shapes(target.net, target.likelihood)
            generator, parameters = spread(generator, parameters, frame.axes.basis, shapes)
        parameters = generator.standardised(parameters, *frame.standard)
        copies = {n: p.detach().clone() for n, p in parameters.items()}
        return GeneratorPosterior(target.net, target.likelihood, generator, copies)

    def prepare(self, net: Net, x: Inputs) -> Net:
        prepared = self.sampler.prepare(net, x)
        self._examples[prepared] = x
        return prepared

    def check(self, net: Net, assigned: Mapping[str, Assigned], likelihood: Likelihood) -> None:
        self.sampler.check(net, assigned, likelihood)
        if isinstance(self.distiller, DarkKnowledge) and net in self._examples:
            Lesson(self.distiller, net, likelihood).check(self._examples[net], net)

    def fates(self, net: Net, names: Sequence[str], x: Inputs | None) -> dict[str, Fate]:
        return self.sampler.fates(net, names, x)

    def resolve(self, n_data: int) -> "OnlineDistillation":
        resolved = self.sampler.resolve(n_data)
        return replace(self, sampler=resolved) if isinstance(resolved, Sampler) else self

    @property
    def depends_on_steps(self) -> bool:
        own = schedules.parse(self.distiller.schedule).depends_on_steps
        return own or self.sampler.depends_on_steps

    # -- a generator -------------------------------------------------------------------------------------------

    def _empty(self, theta: Tensor, target: Target, tick: Tick) -> Buffered:
        """A game that has not begun, and an empty buffer, which the run must be able to fill."""
        kept = self._reached(tick.steps, len(theta))
        if not len(theta) <= self.buffer <= kept:
            raise ValueError(
                f"a buffer of {self.buffer} does not fit a run that keeps {kept} samples of {len(theta)} chains; "
                f"choose one between {len(theta)} and {kept}, take more steps, or a smaller burn_in or thin"
            )
        if self._reached(tick.steps // self.every * self.every, len(theta)) < self.buffer:
            raise ValueError(
                f"a buffer of {self.buffer} is full after the last round of the generator, which has one every "
                f"{self.every} of {tick.steps} updates; take more steps, or a smaller buffer or every"
            )
        along = self._adversarial.directions
        if along is not None:
            check_directions(along, self.buffer, theta.shape[1])
        buffer = theta.new_zeros(self.buffer, theta.shape[1])
        game = self._game(target).init(tick.rng.child("game"), theta)
        return Buffered(game, buffer, Frame.before(buffer, along))

    def _play(self, state: OnlineState, theta: Tensor, target: Target, tick: Tick, due: Due) -> None:
        """Take in what the chains have reached; once the buffer is full, let the generator learn from it."""
        learner: Buffered = state.learner
        if due.enters:
            self._enter(learner, theta, tick)
        if due.turn:
            self._find(learner, tick, due.turn)
        if due.learns:
            self._rounds(state, target, tick)
        if due.restarts:
            theta.copy_(self._generated(learner, target, len(theta), tick.rng.child("restart")))

    def _enter(self, learner: Buffered, theta: Tensor, tick: Tick) -> None:
        """Let the chains' positions take places next to each other."""
        first = tick.number(lambda step, _: float(self._place(self._reached(step + 1, len(theta)), len(theta)) or 0))
        places = (torch.arange(len(theta), device=theta.device) + first).long() % self.buffer
        learner.buffer.index_copy_(0, places, theta)
        if learner.frame.axes:
            learner.frame.axes.rows.index_copy_(0, places, learner.frame.inward(theta))

    def _rounds(self, state: OnlineState, target: Target, tick: Tick) -> None:
        game, learner = self._game(target), state.learner
        for number in range(self.rounds):
            inputs = game.inputs(tick.rng.child(f"round {number}"), self.buffer, learner.buffer, tick)
            info = game.step(learner.game, lambda rows: _rows(learner, rows), inputs)
            state.told.copy_(info.estimate)

    def _find(self, learner: Buffered, tick: Tick, turn: int) -> None:
        """Coordinates by the buffer: first ones, or others that the networks go on in."""
        settings, rng = self._adversarial, tick.rng.child("directions")
        if turn == 1:
            fit_(learner.frame, learner.buffer, settings, rng)
        else:
            follow_(learner.frame, learner.game, learner.buffer, settings, rng)

    def _turn(self, before: int, now: int) -> int:
        """Which time coordinates are found as so many vectors become so many; 0 where they are not.

        Factors have no other coordinates than those they began with.
        """
        times = [(reached // self.buffer).bit_length() for reached in (before, now)]
        return times[1] if times[0] < times[1] and (times[0] == 0 or self._adversarial.rank is None) else 0

    def _generated(self, learner: Buffered, target: Target, n: int, rng: Rng) -> Tensor:
        generator = self._game(target).generator
        z = rng.normal_(learner.buffer.new_empty(1, n, generator.noise), "z")[0]
        return learner.frame.outward(generator(learner.game.averaged, z))

    def _game(self, target: Target) -> Game:
        along = self._adversarial.directions
        shapes = weight_shapes(target.net, target.likelihood) if along is None else ((along,),)
        return Game(self._adversarial, shapes)

    @property
    def _adversarial(self) -> Adversarial:
        if not isinstance(self.distiller, Adversarial):
            raise ValueError(f"{self.distiller!r} makes no generator")
        return self.distiller

    # -- a student ---------------------------------------------------------------------------------------------

    def _novice(self, target: Target, tick: Tick) -> LessonState:
        """A student before its first lesson, of which the run must hold at least one."""
        if not self._lessons_after(tick.steps):
            raise ValueError(
                f"a student learns nothing in {tick.steps} steps with a lesson every {self.every} after a burn-in of "
                f"{self.sampler.burn_in}; take more steps, or a smaller burn_in or every"
            )
        return self._lesson(target).init()

    def _teach(self, state: OnlineState, theta: Tensor, batch: Batch, target: Target, tick: Tick) -> None:
        """A lesson from the chains' present positions, at the inputs of the batch."""
        lesson = self._lesson(target)
        own = target.noise_layout.split(theta[:, target.net.layout.size :])
        for number in range(self.rounds):
            x = lesson.perturbed(batch.x, tick.rng.child(f"round {number}"))
            outputs = target.outputs(theta, x)
            state.told.copy_(lesson.step(state.learner, x, outputs, own, self._school_time(tick, number)))

    def _school_time(self, tick: Tick, number: int) -> Tick:
        """The time of a lesson, counted in lessons."""
        return tick.on(
            lambda step: self._lessons_after(step + 1 - self.every) + number, self._lessons_after(tick.steps)
        )

    def _lessons_after(self, updates: int) -> int:
        """How many lessons the first so many updates hold."""
        return max(0, updates // self.every - self.sampler.burn_in // self.every) * self.rounds

    def _lesson(self, target: Target) -> Lesson:
        """The lesson for a target, made once: it holds a copy of the student."""
        if not isinstance(self.distiller, DarkKnowledge):
            raise ValueError(f"{self.distiller!r} has no student")
        if target not in self._lessons:
            self._lessons[target] = Lesson(self.distiller, target.net, target.likelihood)
        return self._lessons[target]

    @property
    def _teaches(self) -> bool:
        return isinstance(self.distiller, DarkKnowledge)

    def _reached(self, updates: int, chains: int) -> int:
        """How many vectors could have entered the buffer after so many updates."""
        return Collect.of(self.sampler).kept(updates) * chains

    def _place(self, reached: int, chains: int) -> int | None:
        """The first place of the latest vectors in the buffer; None where they do not enter it."""
        if reached - chains < self.buffer:
            return reached - chains
        lot = derive(0, "buffer", reached) % reached
        return lot if lot < self.buffer else None


def _check_parts(sampler: object, distiller: object) -> None:
    """Refuse what does not sample, and what cannot learn from a chain as it goes."""
    if not isinstance(sampler, Sampler):
        raise ValueError(f"OnlineDistillation: {sampler!r} is no sampler; give one, such as SGLD(burn_in=500)")
    if not isinstance(distiller, Adversarial | DarkKnowledge):
        raise ValueError(
            f"OnlineDistillation: {distiller!r} cannot learn while a sampler runs; give distill.Adversarial(...) or "
            "distill.DarkKnowledge(...)"
        )


def _rows(learner: Buffered, rows: Tensor) -> Tensor:
    """Some vectors of the buffer as coordinates."""
    return learner.frame.axes.rows[rows] if learner.frame.axes else learner.frame.inward(learner.buffer[rows])
