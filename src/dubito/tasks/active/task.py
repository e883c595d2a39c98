"""Active learning: fit, ask for the labels that would tell most, fit again.

The randomness of a round is a function of (seed, round), so that a run killed at any moment goes on with the same
choices (bit for bit on the CPU); where a fit starts from the one before, the earlier ones are made again first.
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import index
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dubito import metrics, plots
from dubito.config import check_count, is_number, suggestion
from dubito.inputs import check_finite
from dubito.posteriors.base import Posterior, check_posterior
from dubito.results import Figure, Result, Table, environment
from dubito.rng import derive, generator
from dubito.sources import check_rows
from dubito.tasks.active.acquire import Acquisition, acquire
from dubito.tasks.active.journal import Block, Journal
from dubito.tasks.active.oracle import Known, Oracle
from dubito.tasks.base import Data, Labelled, Refit, check_names, named

ERRORS = (0.1, 0.05)  # for which the number of labels is told


@dataclass(frozen=True, kw_only=True)
class Active:
    """Choose what to label, round by round.

    `run(refit, {"pool": (x, y), "test": (x, y)}, folder=...)` with refit(data, previous, seed) -> posterior. Without
    labels in the pool, `oracle=` answers, for example `Person(folder, classes)`. With a folder, the same call goes on
    where it was stopped.
    """

    acquisition: Acquisition = "bald"
    batch: int = 10
    """Labels a round."""
    rounds: int = 10
    """Times that labels are asked for after the first."""
    start: int = 20
    """Labels before the first choice: as many of each class where the pool's labels are known, else at random."""
    pool_subset: int | None = None
    """Rows of the pool, drawn anew each round, among which to choose; all when left out."""
    sharpness: float | None = None
    """Choose at random in proportion to score ^ sharpness; None: the best."""
    draws: int = 100
    warm_start: bool = False
    """Give `refit` the posterior of the round before as `previous`, which is None otherwise."""
    until: float | None = None
    """The test error with which a run has reached its end, before all rounds are over."""
    seed: int = 0
    progress: bool = False

    def __post_init__(self) -> None:
        if self.acquisition not in get_args(Acquisition):
            known = get_args(Acquisition)
            raise ValueError(f"there is no acquisition {self.acquisition!r}; {suggestion(self.acquisition, known)}")
        for name, least in (("batch", 1), ("start", 1), ("rounds", 0), ("draws", 1)):
            check_count(self, name, getattr(self, name), least)
        if self.pool_subset is not None:
            check_count(self, "pool_subset", self.pool_subset, 1)
            if self.pool_subset < self.batch:
                raise ValueError(f"pool_subset={self.pool_subset} holds no batch of {self.batch}; give more rows")
        if self.until is not None and not (is_number(self.until) and 0 <= self.until < 1):
            raise ValueError(f"until={self.until!r} must be a share of wrong answers, at least 0 and below 1")
        if self.sharpness is not None and not (is_number(self.sharpness) and self.sharpness > 0):
            raise ValueError(
                f"sharpness={self.sharpness!r} must be positive and finite; 0 would be acquisition='random', and "
                "without it the best are taken"
            )
        if self.sharpness is not None and self.acquisition in ("random", "batch_bald"):
            raise ValueError(f"sharpness belongs to acquisition by a score, not to {self.acquisition}; leave it out")

    def run(
        self,
        refit: Refit,
        data: Mapping[str, Data],
        *,
        folder: str | Path | None = None,
        oracle: Oracle | None = None,
        recipe: Mapping[str, Any] | None = None,
    ) -> Result:
        """Run, or go on; raises `Waiting` where a person has to answer first.

        recipe: what refit does, in plain values; a folder is gone on with only by the same.
        """
        check_names(data, ("pool", "test"))
        pool = named(data, "pool")
        if not isinstance(pool.x, Tensor):
            raise ValueError("the pool's inputs are several tensors, and rows are chosen from one; join them in one")
        check_finite(pool.x, "the pool")
        test = named(data, "test") if "test" in data else None
        if test is not None:
            check_rows(test.x, test.labels)
        if self.until is not None and test is None:
            raise ValueError(f"until={self.until} is an error on test rows, and there are none; give some")
        _check_asked(refit, oracle)
        if recipe is not None and not isinstance(recipe, Mapping):
            raise ValueError(f"recipe={recipe!r} is no mapping; give what refit does as {{name: plain value}}")
        if oracle is None and pool.y is None:
            raise ValueError("nobody knows the labels of the pool; give (x, y), or oracle=Person(folder, classes)")
        if self.start + self.rounds * self.batch > pool.size:
            wanted = self.start + self.rounds * self.batch
            raise ValueError(f"{wanted} labels are asked for but the pool has {pool.size} rows; ask for fewer")
        journal = Journal.open(folder, {**self._settings(pool), "recipe": dict(recipe or {})})
        if test is not None:
            journal.judge_on(_digest(test.x, test.labels))
        asked = oracle or Known(pool.labels)
        if isinstance(asked, Known):
            asked.confirm(journal.rows, journal.labels)
        return self._result(self._rounds(journal, pool, test, refit, asked), pool, test)

    def _rounds(
        self, journal: Journal, pool: Labelled, test: Labelled | None, refit: Refit, asked: Oracle
    ) -> Sequence[Block]:
        """Every round until the run is over, as far as the journal lacks it."""
        for number in range(min(len(journal.blocks), self._last(journal) + 1)):  # open questions before long work
            self._answer(number, journal, pool, asked)
        posterior: Posterior | None = None
        number = 0
        while number <= self._last(journal):
            block = self._block(number, journal, pool, posterior)
            self._answer(number, journal, pool, asked)
            if self._needed(number, journal):
                posterior = self._fit(number, journal, pool, refit, posterior)
            if block.scores is None and posterior is not None:
                block.scores = self._scored(posterior, test)
                journal.save()
                self._tell(number, journal)
            number += 1
        return journal.blocks[:number]

    def _last(self, journal: Journal) -> int:
        """The round after which the run is over, as far as is known."""
        reached = (i for i, block in enumerate(journal.blocks[: self.rounds]) if self._reached(block))
        return next(reached, self.rounds)

    def _reached(self, block: Block) -> bool:
        return self.until is not None and block.scores is not None and 1 - block.scores["accuracy"] <= self.until

    def _needed(self, number: int, journal: Journal) -> bool:
        """Whether a round's posterior is asked: for scores, for the next rows, or to go on from in a later round."""
        last, there = self._last(journal), len(journal.blocks)
        later = range(number, min(last + 1, there)) if self.warm_start else [number]
        return any(journal.blocks[i].scores is None or i + 1 == there < last + 1 for i in later)

    def _settings(self, pool: Labelled) -> dict[str, Any]:
        """What must be the same for a run to go on; more rounds may be asked for."""
        free = ("rounds", "until", "progress")
        mine = {name: value for name, value in asdict(self).items() if name not in free}
        return {**mine, "pool": pool.size, "pool_digest": _digest(pool.x)}

    def _block(self, number: int, journal: Journal, pool: Labelled, posterior: Posterior | None) -> Block:
        """The rows of a round; new ones are noted before anybody is asked about them."""
        if number == len(journal.blocks):
            chosen = self._best(number, journal, pool, posterior) if posterior else first(pool, self.start, self.seed)
            journal.blocks.append(Block(chosen))
            journal.save()
        return journal.blocks[number]

    def _answer(self, number: int, journal: Journal, pool: Labelled, asked: Oracle) -> None:
        """Ask for the labels of a round where they are missing."""
        block = journal.blocks[number]
        if block.labels is None:
            block.labels = answered(asked(block.chosen, pool.x[block.chosen], number), len(block.chosen))
            journal.save()

    def _best(self, number: int, journal: Journal, pool: Labelled, posterior: Posterior) -> list[int]:
        free = torch.ones(pool.size, dtype=torch.bool)
        free[journal.rows] = False
        rows = free.nonzero().flatten()
        if self.pool_subset is not None and self.pool_subset < len(rows):
            order = torch.randperm(len(rows), generator=generator("cpu", self.seed, "subset", number))
            rows = rows[order[: self.pool_subset]]
        x, seed = pool.x[rows.to(pool.x.device)], derive(self.seed, "acquire", number)
        found = acquire(posterior, x, self.batch, self.acquisition, self.draws, self.sharpness, seed)
        return [int(rows[i]) for i in found]

    def _fit(self, number: int, journal: Journal, pool: Labelled, refit: Refit, before: Posterior | None) -> Posterior:
        """A posterior from all labels up to a round."""
        rows = [i for block in journal.blocks[: number + 1] for i in block.chosen]
        y = torch.tensor([label for block in journal.blocks[: number + 1] for label in block.labels or ()])
        data, seed = (pool.x[rows], y.to(pool.x.device)), derive(self.seed, "fit", number) % (1 << 31)
        made = refit(data, before if self.warm_start else None, seed)
        check_posterior(made, "what refit returned")
        return made

    def _scored(self, posterior: Posterior, test: Labelled | None) -> dict[str, float]:
        if test is None:
            return {}
        found = metrics.evaluate(posterior.predict(test.x, self.draws, self.seed, keep_draws=False), test.labels)
        if self.until is not None and "accuracy" not in found:
            raise ValueError(f"until={self.until} is a share of wrong classes, and this posterior names none")
        return found

    def _tell(self, number: int, journal: Journal) -> None:
        if self.progress:
            shown = ", ".join(f"{name} {value:.4g}" for name, value in (journal.blocks[number].scores or {}).items())
            print(f"{len(journal.labels)} labels: {shown or 'fitted'}", file=sys.stderr, flush=True)

    # -- out ---------------------------------------------------------------------------------------------------

    def _result(self, blocks: Sequence[Block], pool: Labelled, test: Labelled | None) -> Result:
        counts = [len(block.chosen) for block in blocks]
        labels = [sum(counts[: i + 1]) for i in range(len(counts))]
        names = [name for name in blocks[0].scores or {} if all(name in (block.scores or {}) for block in blocks)]
        curves = {name: [(block.scores or {})[name] for block in blocks] for name in names}
        needed = (
            {f"{e:g}": labels_needed(labels, curves["accuracy"], e) for e in ERRORS} if "accuracy" in curves else {}
        )
        return Result(
            name="active",
            title=f"Active learning by {self.acquisition}",
            summary=f"{self.batch} labels a round by {self.acquisition}, from {self.start} to {labels[-1]} of a pool "
            f"of {pool.size:,}" + (f"; scores on {test.size:,} other rows." if test else "."),
            numbers={
                "labels": labels,
                **curves,
                "labels needed": needed,
                "chosen": [block.chosen for block in blocks],
                "answers": [block.labels for block in blocks],
            },
            tables=[Table("Round by round", ("labels", *names), [*zip(labels, *curves.values(), strict=True)])],
            figures=[_curve(name, self.acquisition, labels, values) for name, values in curves.items()],
            settings=asdict(self),
            environment=environment(),
        )


def _check_asked(refit: object, oracle: object) -> None:
    """Refuse what cannot fit, and what cannot answer."""
    if not callable(refit):
        raise ValueError(f"refit={refit!r} is no function; give one, (data, previous, seed) -> posterior")
    if oracle is not None and (isinstance(oracle, type) or not callable(oracle)):
        raise ValueError(f"oracle={oracle!r} cannot be asked; give Known(y), Person(folder, classes) or a function")


def _digest(*values: Any) -> str:
    """Tells some rows from others."""
    found = hashlib.sha256()
    for leaf in tree_leaves(values):
        found.update(leaf.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def first(pool: Labelled, k: int, seed: int) -> list[int]:
    """k rows to begin with: as many of each class where labels are known, else at random."""
    order = torch.randperm(pool.size, generator=generator("cpu", seed, "start")).tolist()
    if pool.y is None:
        return order[:k]
    turns: dict[int, int] = {}
    ranked = []
    for place, i in enumerate(order):
        label = int(pool.y[i])
        turns[label] = turns.get(label, 0) + 1
        ranked.append((turns[label], place, i))
    return [i for _, _, i in sorted(ranked)[:k]]


def answered(labels: Sequence[Any], count: int) -> list[int]:
    """An oracle's labels as whole numbers, refused before they are noted where they do not fit the question."""
    try:
        found = [index(label) for label in labels]
    except TypeError as error:
        raise ValueError(f"the oracle answered {labels!r}; it must give whole numbers from 0 on") from error
    if len(found) != count or min(found) < 0:
        raise ValueError(f"the oracle answered {found} about {count} rows; it must give each a whole number from 0 on")
    return found


def labels_needed(labels: Sequence[int], accuracy: Sequence[float], error: float) -> int | None:
    """The least number of labels with which the error was at most so much; None where it never was."""
    return next((n for n, right in zip(labels, accuracy, strict=True) if 1 - right <= error), None)


def _curve(name: str, acquisition: str, labels: Sequence[int], values: Sequence[float]) -> Figure:
    series = [plots.Series(acquisition, values, labels)]
    return plots.lines(name, f"{name} over labels", series, x_label="labels", y_label=name)
