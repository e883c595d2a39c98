"""Distilling while sampling: what is lost without a stored chain, and what ten times as many samples bring.

Offline generators learn from a thousand and from ten thousand samples of one chain; online ones from a buffer of a
thousand, fed by the same chain or by ten chains side by side, with as many generator steps.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import NamedTuple

import dubito
from dubito.compare import stored_bytes
from dubito.distill import Adversarial, adversarial
from dubito.posteriors.base import Posterior
from dubito.results import Result, Table
from dubito.studies import digits
from dubito.studies.base import Plan, Settings, Study
from dubito.studies.digits import Held, Quality

STEPS, GENERATOR_STEPS, BUFFER, CHAINS = 200_000, 16_000, 1_000, 10


class Row(NamedTuple):
    """One way to a generator: samples it saw, bytes of samples held at a time, and how good it is."""

    seen: int
    held: int
    quality: Quality


def run(settings: Settings) -> Result:
    """Two chains and four generators."""
    held = digits.load(settings)
    quick = settings.quick
    steps, games = (160, 5) if quick else (STEPS, GENERATOR_STEPS)
    many = digits.chain("fcNN1", held, settings, steps, 2 if quick else 20)
    few = digits.chain("fcNN1", held, settings, steps, 20 if quick else 200)
    taught = many.predict(held.test.x, draws=200)
    rows = {"SGLD, the teacher": Row(len(many), stored_bytes(many), digits.quality(many, held, 200))}
    for name, chain in {"offline": few, "offline, ten times as many samples": many}.items():
        made = adversarial(chain, Adversarial(), steps=games, **digits.options(settings))
        rows[name] = Row(len(chain), stored_bytes(chain), digits.quality(made, held, 100, taught))
    network = stored_bytes(many) // len(many)
    several = 2 if quick else CHAINS
    for name, members in {"online": 1, f"online, {several} chains": several}.items():
        made_online, buffer = _online(held, settings, members, steps, games, 10 if quick else BUFFER)
        seen = len(many) * members
        rows[name] = Row(seen, buffer * network, digits.quality(made_online, held, 100, taught))
    return Result(
        STUDY.name,
        STUDY.title,
        summary=" ".join(filter(None, (_summary(rows), held.note))),
        numbers={name: {**asdict(row.quality), "seen": row.seen, "held": row.held} for name, row in rows.items()},
        tables=[_table(rows)],
        settings={"steps": steps, "generator steps": games},
    )


def _online(held: Held, settings: Settings, members: int, steps: int, games: int, buffer: int) -> tuple[Posterior, int]:
    n = len(held.train.y)
    sampler = dubito.SGLD(step_size=digits.RATE / n, burn_in=min(500, steps // 4), thin=2 if settings.quick else 20)
    method = dubito.OnlineDistillation(
        sampler=sampler, distiller=Adversarial(), every=max(1, steps // games), buffer=buffer
    )
    plan = Plan(method, digits.network("fcNN1", settings), steps, members, 100)
    return plan.fit(held.train, settings, dubito.Categorical(), digits.paper_prior(n)), buffer


def _summary(rows: Mapping[str, Row]) -> str:
    def gap(a: str, b: str) -> str:
        return f"{100 * (rows[a].quality.accuracy - rows[b].quality.accuracy):+.2f} points"

    more = "offline, ten times as many samples"
    return (
        f"Ten times as many samples bring {gap(more, 'offline')} of accuracy offline; online, with "
        f"{rows['online'].held / 1e6:.3g} MB of samples at a time and not {rows[more].held / 1e6:.3g}, is "
        f"{gap('online', more)} from that."
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
