"""Thompson sampling on a contextual bandit: act by a draw from the posterior, learn from what comes back.

A context is shown, an action chosen, and the reward of that action alone is seen (Blundell et al. 2015, section 4 and
5.3, https://arxiv.org/abs/1505.05424, after Thompson 1933). A network of [context, one-hot action] predicts the reward;
an agent takes the action that is best under its own draws, or by chance with probability epsilon. Regret is what the
best action would have brought on average, less what the chosen one does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dubito import plots
from dubito.config import is_number, whole
from dubito.loop import History, Record, run
from dubito.results import Cell, Figure, Result, Table, environment
from dubito.rng import generator
from dubito.runs import RunFolder
from dubito.runtime import Precision
from dubito.tick import Tick

BUFFER = 4096  # the latest interactions that are learned from, as in the paper
POINTS = 200  # on a curve of regret


class Learner(Protocol):
    """What predicts rewards for several runs side by side, such as `dubito.online.Online`."""

    runs: int
    state: Any
    device: torch.device

    def values(self, x: Tensor, moment: int) -> Tensor:
        """The reward expected at x (runs, rows, ...) under draws of each run's own, (runs, rows)."""

    def learn(self, n: int, take: Callable[[Tensor], tuple[Tensor, Tensor]], moment: int) -> Tensor:
        """Learn from n rows a run, taken by index (runs, B); returns the loss of each run."""

    def describe(self) -> dict[str, Any]:
        """Settings as plain values."""


@dataclass(frozen=True, eq=False)
class Bandit:
    """Contexts (N, F) and, for each and every action, two rewards that are equally likely, (N, A) each."""

    contexts: Tensor
    low: Tensor
    high: Tensor

    def __post_init__(self) -> None:
        if self.low.shape != self.high.shape or len(self.low) != len(self.contexts):
            found = f"{tuple(self.contexts.shape)}, {tuple(self.low.shape)} and {tuple(self.high.shape)}"
            raise ValueError(f"contexts (N, F) need rewards (N, actions), got {found}; give one row of each")
        if not all(bool(part.isfinite().all()) for part in (self.contexts, self.low, self.high)):
            raise ValueError("contexts or rewards hold NaN or infinity; give finite ones")

    @property
    def expected(self) -> Tensor:
        """The mean reward of every action, (N, A)."""
        return (self.low + self.high) / 2

    @property
    def actions(self) -> int:
        """How many there are."""
        return self.low.shape[1]

    def to(self, device: torch.device) -> "Bandit":
        """The same on another device."""
        return Bandit(self.contexts.to(device), self.low.to(device), self.high.to(device))

    def inputs(self, rows: Tensor, actions: Tensor) -> Tensor:
        """[context, one-hot action] for rows and actions of one shape."""
        chosen = torch.nn.functional.one_hot(actions, self.actions).to(self.contexts)
        return torch.cat([self.contexts[rows], chosen], dim=-1)


def mushrooms(x: Tensor, poisonous: Tensor, unit: float = 1.0) -> Bandit:
    """Skip (0) or eat (1): nothing; 5 for an edible one, and -35 or 5 for a poisonous one, in multiples of `unit`."""
    x, poisonous = torch.as_tensor(x), torch.as_tensor(poisonous)
    if not bool(((poisonous == 0) | (poisonous == 1)).all()):
        raise ValueError(
            f"poisonous holds {poisonous.unique().tolist()[:5]}; give 1 for a poisonous one and 0 for others"
        )
    poison = poisonous.to(x.dtype)
    skip = torch.zeros_like(poison)
    return Bandit(x, torch.stack([skip, 5 - 40 * poison], 1) * unit, torch.stack([skip, 5 + skip], 1) * unit)


class Played(NamedTuple):
    """The learner's state, and of every interaction, (runs, interactions): row, action, reward and regret."""

    learner: Any
    rows: Tensor
    actions: Tensor
    rewards: Tensor
    regrets: Tensor


class Told(NamedTuple):
    """What an interaction tells the loop, (runs,) each."""

    fit: Tensor
    complexity: Tensor
    regret: Tensor


def play(
    learner: Learner,
    bandit: Bandit,
    policies: Mapping[str, float],
    interactions: int,
    *,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: bool = True,
) -> Result:
    """Let a learner's runs interact, in equal shares under each policy {name: epsilon}; the same folder goes on.

    Run i of every policy meets the same contexts in the same order.
    """
    if whole("interactions", interactions) < 1:
        raise ValueError(f"interactions is {interactions}; play at least 1")
    _check_policies(policies, learner.runs)
    game = _Game(learner, bandit.to(learner.device), list(policies.values()), seed)
    state, done = game.begin(interactions), 0
    if folder is not None:
        game.home = RunFolder(folder)
        described = {**learner.describe(), "policies": dict(policies), "contexts": len(bandit.contexts)}
        game.home.open(described, interactions, extendable=False)
        state, done = game.home.restore(state)
        learner.state = state.learner
    history = History(game.home.history if game.home else None, None, done)
    state, done = run(
        game, state, start=done, steps=interactions, seed=seed, history=history, label="bandit", progress=progress,
        log_every=max(1, interactions // 100), checkpoint_every=None,
    )  # fmt: skip
    game.save(state, done)
    return _result(state, list(policies), learner.describe(), interactions)


def _check_policies(policies: object, runs: int) -> None:
    if not isinstance(policies, Mapping):
        raise ValueError(
            f"policies come by name, and {policies!r} has none; give {{name: epsilon}}, such as {{'a': 0.0}}"
        )
    if not policies or runs % len(policies):
        raise ValueError(f"{runs} runs cannot be shared out to {len(policies)} policies; use a multiple")
    if bad := [f"{name}={value}" for name, value in policies.items() if not (is_number(value) and 0 <= value <= 1)]:
        raise ValueError(f"epsilon is a probability, got {bad[0]}; choose it between 0 and 1")


class _Game:
    """One interaction of every run as a step of the loop."""

    precision: Precision = "float32"

    def __init__(self, learner: Learner, bandit: Bandit, epsilons: Sequence[float], seed: int) -> None:
        self.learner, self.bandit, self.seed, self.device = learner, bandit, seed, learner.device
        self.each = learner.runs // len(epsilons)
        self.epsilon = torch.tensor(epsilons, device=learner.device).repeat_interleave(self.each)
        self.best = bandit.expected.amax(1)
        self.home: RunFolder | None = None

    def begin(self, interactions: int) -> Played:
        """Nothing has been played."""
        numbers = torch.zeros(self.learner.runs, interactions, device=self.learner.device)
        whole = torch.zeros_like(numbers, dtype=torch.long)
        return Played(self.learner.state, whole, whole.clone(), numbers, numbers.clone())

    def step(self, state: Played, tick: Tick) -> tuple[Played, Told]:
        """Show a context to each run, act, and learn."""
        step, device, runs = int(tick.step), self.device, self.learner.runs
        source = generator("cpu", self.seed, "bandit", step)
        rows = torch.randint(len(self.bandit.contexts), (self.each,), generator=source)
        rows = rows.repeat(runs // self.each).to(device)
        chances, coins, other = (torch.rand(runs, generator=source).to(device) for _ in range(3))
        by_chance = (other * self.bandit.actions).long()
        actions = torch.where(chances < self.epsilon, by_chance, self._best_action(rows, step))
        rewards = torch.where(coins < 0.5, self.bandit.low[rows, actions], self.bandit.high[rows, actions])
        regrets = self.best[rows] - self.bandit.expected[rows, actions]
        for kept, new in zip(state[1:], (rows, actions, rewards, regrets), strict=True):
            kept[:, step] = new
        loss = self._learn(state, step)
        return state._replace(learner=self.learner.state), Told(loss, torch.zeros_like(loss), regrets)

    def _best_action(self, rows: Tensor, step: int) -> Tensor:
        """Of each run, under its own draws."""
        every = torch.arange(self.bandit.actions, device=rows.device).expand(len(rows), -1)
        x = self.bandit.inputs(rows.unsqueeze(1).expand_as(every), every)
        return self.learner.values(x, step).argmax(1)

    def _learn(self, state: Played, step: int) -> Tensor:
        first = max(0, step + 1 - BUFFER)

        def take(index: Tensor) -> tuple[Tensor, Tensor]:
            rows, actions, rewards = (t.gather(1, index + first) for t in (state.rows, state.actions, state.rewards))
            return self.bandit.inputs(rows, actions), rewards

        return self.learner.learn(step + 1 - first, take, step)

    def obstacle(self) -> str:
        """Why interactions cannot be recorded and replayed."""
        return "what a learner does depends on how many data it has seen"

    def kind(self, state: Played, step: int) -> None:
        """What tells an interaction from others: nothing that could be replayed."""

    def ready(self, step: int) -> None:
        """Nothing is replayed."""

    def after(self, state: Played, step: int) -> None:
        """Nothing is kept between interactions."""

    def save(self, state: Played, step: int) -> None:
        """A checkpoint, where there is a folder."""
        if self.home is not None:
            self.home.save(state, step)

    def validate(self, state: Played, step: int) -> tuple[Record, bool]:
        """There is nothing to validate on."""
        return {}, False


def _result(state: Played, names: Sequence[str], settings: Mapping[str, Any], interactions: int) -> Result:
    regret = state.regrets.double().cumsum(1).cpu().numpy().reshape(len(names), -1, interactions)
    at = np.unique(np.linspace(1, interactions, min(POINTS, interactions)).astype(int))
    curves = {name: runs[:, at - 1] for name, runs in zip(names, regret, strict=True)}
    return Result(
        name="bandit",
        title="Thompson sampling",
        numbers={
            "interactions": at,
            "regret": {name: runs.tolist() for name, runs in curves.items()},
            "final": {name: runs[:, -1] for name, runs in curves.items()},
        },
        tables=[table(curves)],
        figures=[figure(at, curves)],
        settings={**settings, "interactions": interactions},
        environment=environment(),
    )


Curves = Mapping[str, "np.ndarray[Any, np.dtype[np.float64]]"]  # (runs, points)


def table(curves: Curves) -> Table:
    """Cumulative regret at the end, and in the last tenth, over runs."""
    rows: list[tuple[Cell, ...]] = []
    for name, runs in curves.items():
        last, before = runs[:, -1], runs[:, -1 - max(1, runs.shape[1] // 10)]
        error = float(last.std(ddof=1) / len(last) ** 0.5) if len(last) > 1 else None
        rows.append(
            (name, float(last.mean()), error, float(last.min()), float(last.max()), float((last - before).mean()))
        )
    columns = ("agent", "regret", "standard error", "least", "most", "in the last tenth")
    return Table("Cumulative regret", columns, rows, formats=dict.fromkeys(columns[1:], ",.1f"))


def figure(at: Sequence[int] | Any, curves: Curves) -> Figure:
    """Mean cumulative regret, and its range over runs."""
    series = [
        plots.Series(name, runs.mean(0), np.asarray(at, float), runs.min(0), runs.max(0))
        for name, runs in curves.items()
    ]
    title = "Cumulative regret, mean and range over runs"
    return plots.lines("regret", title, series, x_label="interactions", y_label="regret", log_y=True)
