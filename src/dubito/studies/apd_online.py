"""Distilling while sampling: what is lost without a stored chain, and what ten times as many samples bring.

Offline generators learn from a thousand and from ten thousand samples of one chain; online ones from a buffer of a
thousand, fed by a chain of the same length or by ten side by side, with as many generator steps. All games are played
along principal directions with rates that fall from 1e-3; online ones find these directions anew as the chain grows.
The chain is the first of `apd-accuracy`, taken from its folders where it has run.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import dubito
from dubito.compare import stored_bytes
from dubito.distill import adversarial
from dubito.posteriors.base import Posterior
from dubito.results import Result, Table
from dubito.studies import apd_accuracy, digits
from dubito.studies.base import Plan, Settings, Study
from dubito.studies.digits import Held, Quality
from dubito.studies.pieces import answers

BUFFER, CHAINS, FEWER = 1_000, 10, 10
RATE = 1e-3
TEACHER, MORE = "SGLD, the teacher", "offline, ten times as many samples"


class Row(NamedTuple):
    """One way to a generator: samples it saw, bytes of samples held at a time, and how good it is."""

    seen: int
    held: int
    quality: Quality

    def plain(self) -> dict[str, Any]:
        """As plain values."""
        return {"seen": self.seen, "held": self.held, "quality": asdict(self.quality)}


def run(settings: Settings) -> Result:
    """A chain and four generators."""
    held = digits.load(settings)
    several = 2 if settings.quick else CHAINS
    pieces = {  # in which order: what waits for the teacher comes last
        TEACHER: ("teacher", 1),
        f"online, {several} chains": ("online", several),
        "online": ("online", 1),
        MORE: ("many", 1),
        "offline": ("few", 1),
    }
    each = answers(measured, pieces, settings)
    order = (TEACHER, "offline", MORE, "online", f"online, {several} chains")
    rows = {name: Row(each[name]["seen"], each[name]["held"], Quality(**each[name]["quality"])) for name in order}
    return Result(
        STUDY.name,
        STUDY.title,
        summary=" ".join(filter(None, (_summary(rows), held.note))),
        numbers={name: {**asdict(row.quality), "seen": row.seen, "held": row.held} for name, row in rows.items()},
        tables=[_table(rows)],
        settings={"steps": apd_accuracy.steps(settings), "generator steps": apd_accuracy.games(settings)},
    )


def measured(way: str, members: int, settings: Settings) -> dict[str, Any]:
    """The row of the teacher, of a generator learnt from many or few samples, or of one learnt online."""
    held = digits.load(settings)
    made = _online(members, held, settings) if way == "online" else _offline(way, held, settings)
    chain = apd_accuracy.chain("fcNN1", held, settings)
    many, size = len(chain), stored_bytes(chain) // len(chain)
    if way == "teacher":
        return Row(many, many * size, digits.quality(made, held, 200)).plain()
    few = many // _fewer(settings)
    seen, kept = {"many": (many, many), "few": (few, few), "online": (many * members, _buffer(settings))}[way]
    taught = chain.predict(held.test.x, draws=200)
    return Row(seen, kept * size, digits.quality(made, held, 100, taught)).plain()


def _buffer(settings: Settings) -> int:
    return 10 if settings.quick else BUFFER


def _fewer(settings: Settings) -> int:
    return 4 if settings.quick else FEWER


def _offline(way: str, held: Held, settings: Settings) -> Posterior:
    """The chain, or what is learnt from all of its samples or from a tenth."""
    chain = apd_accuracy.chain("fcNN1", held, settings)
    if way == "teacher":
        return chain
    learnt = chain if way == "many" else chain.thinned(_fewer(settings))
    game = digits.along(RATE, settings)
    return adversarial(learnt, game, steps=apd_accuracy.games(settings), **digits.game(settings))


def _online(members: int, held: Held, settings: Settings) -> Posterior:
    n, steps, thin = len(held.train.y), apd_accuracy.steps(settings), apd_accuracy.thin("fcNN1", settings)
    method = dubito.OnlineDistillation(
        sampler=digits.sampler(n, steps, thin), distiller=digits.along(RATE, settings),
        every=max(1, steps // apd_accuracy.games(settings)), buffer=_buffer(settings),
    )  # fmt: skip
    plan = Plan(method, digits.network("fcNN1", settings), steps, members, 100, digits.PRECISION)
    folder = settings.folder(f"online {members}")
    return plan.fit(held.train, settings, dubito.Categorical(), digits.paper_prior(n), folder=folder)


def _summary(rows: Mapping[str, Row]) -> str:
    def gap(a: str, b: str) -> str:
        return f"{100 * (rows[a].quality.accuracy - rows[b].quality.accuracy):+.2f} points"

    return (
        f"Ten times as many samples bring {gap(MORE, 'offline')} of accuracy offline; online, with "
        f"{rows['online'].held / 1e6:.3g} MB of samples at a time and not {rows[MORE].held / 1e6:.3g}, is "
        f"{gap('online', MORE)} from that."
    )


def _table(rows: Mapping[str, Row]) -> Table:
    columns = (
        "posterior",
        "samples seen",
        "bytes held",
        "bytes stored",
        "accuracy",
        "nll",
        "total variation",
        "AUROC BALD",
    )
    cells = [
        (
            n,
            r.seen,
            r.held,
            r.quality.bytes,
            r.quality.accuracy,
            r.quality.nll,
            r.quality.variation,
            r.quality.bald_auroc,
        )
        for n, r in rows.items()
    ]
    note = "Held: weight samples at a time, on disk or in memory, beside the networks that learn."
    formats = {"samples seen": ",d", "bytes held": ",d", "bytes stored": ",d", "accuracy": ".4f"}
    return Table("Quality and what had to be held for it", columns, cells, note, formats)


STUDY = Study(
    "apd-online",
    "Distilling while sampling",
    "Wang et al. (ICML 2018, arXiv 1806.10317), whose online settings were not released.",
    "a generator learnt from a bounded buffer against one learnt from a stored chain",
    run,
    "Ten chains from their own first weights are ten modes, and networks that one generator makes lie between them "
    "too: their averaged answers are less sure. The teacher in the table is one chain, to which they need not be "
    "close.",
)
