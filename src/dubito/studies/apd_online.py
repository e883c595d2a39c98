"""Distilling while sampling: what is lost without a stored chain, and what ten times as many samples bring.

Offline generators learn from a thousand and from ten thousand samples of one chain; online ones from a buffer of a
thousand, fed by the same chain or by ten chains side by side, with as many generator steps.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import dubito
from dubito.compare import stored_bytes
from dubito.distill import Adversarial, adversarial
from dubito.posteriors.base import Posterior
from dubito.results import Result, Table
from dubito.studies import digits
from dubito.studies.base import Plan, Settings, Study
from dubito.studies.digits import Held, Quality
from dubito.studies.pieces import answers

STEPS, BUFFER, CHAINS = 200_000, 1_000, 10
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
    """Two chains and four generators."""
    held = digits.load(settings)
    several = 2 if settings.quick else CHAINS
    pieces = {  # in which order: all wait for the teacher
        TEACHER: ("teacher", 1),
        MORE: ("many", 1),
        f"online, {several} chains": ("online", several),
        "online": ("online", 1),
        "offline": ("few", 1),
    }
    each = answers(measured, pieces, settings)
    order = (TEACHER, "offline", MORE, "online", f"online, {several} chains")
    rows = {name: Row(each[name]["seen"], each[name]["held"], Quality(**each[name]["quality"])) for name in order}
    steps, games = _lengths(settings)
    return Result(
        STUDY.name,
        STUDY.title,
        summary=" ".join(filter(None, (_summary(rows), held.note))),
        numbers={name: {**asdict(row.quality), "seen": row.seen, "held": row.held} for name, row in rows.items()},
        tables=[_table(rows)],
        settings={"steps": steps, "generator steps": games},
    )


def measured(way: str, members: int, settings: Settings) -> dict[str, Any]:
    """The row of the teacher, of a generator learnt from many or few samples, or of one learnt online."""
    held, (steps, games) = digits.load(settings), _lengths(settings)
    many = _chain("many", held, settings)
    if way == "teacher":
        return Row(len(many), stored_bytes(many), digits.quality(many, held, 200)).plain()
    taught = many.predict(held.test.x, draws=200)
    if way == "online":
        buffer = 10 if settings.quick else BUFFER
        made: Posterior = _online(held, settings, members, steps, games, buffer)
        seen, size = len(many) * members, buffer * (stored_bytes(many) // len(many))
    else:
        chain = _chain(way, held, settings)
        made = adversarial(chain, Adversarial(), steps=games, **digits.game(settings))
        seen, size = len(chain), stored_bytes(chain)
    return Row(seen, size, digits.quality(made, held, 100, taught)).plain()


def _lengths(settings: Settings) -> tuple[int, int]:
    """Steps of a chain and of a generator."""
    return (160, 5) if settings.quick else (STEPS, digits.GAMES["fcNN1"])


def _chain(way: str, held: Held, settings: Settings) -> Posterior:
    """Many samples of a chain, or a tenth of them."""
    thin = {"many": 2, "few": 20} if settings.quick else {"many": 20, "few": 200}
    return digits.chain("fcNN1", held, settings, _lengths(settings)[0], thin[way], settings.folder(way))


def _online(held: Held, settings: Settings, members: int, steps: int, games: int, buffer: int) -> Posterior:
    n = len(held.train.y)
    sampler = dubito.SGLD(step_size=digits.RATE / n, burn_in=min(500, steps // 4), thin=2 if settings.quick else 20)
    method = dubito.OnlineDistillation(
        sampler=sampler, distiller=Adversarial(), every=max(1, steps // games), buffer=buffer
    )
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
)
