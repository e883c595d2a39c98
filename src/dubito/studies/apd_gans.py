"""Which game teaches a generator of networks: GAN, WGAN or WGAN-GP? Accuracy of generated networks over iterations.

The teacher is the first chain of fcNN1 of `apd-accuracy`, taken from its folders where it has run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dubito import plots
from dubito.distill import Adversarial, adversarial
from dubito.loop import Record
from dubito.results import Figure, Result, Table
from dubito.studies import apd_accuracy, digits
from dubito.studies.base import Settings, Study
from dubito.studies.digits import Quality
from dubito.studies.pieces import answers

TEACHER = "SGLD, the teacher"
CHECKS = 32


def games(settings: Settings) -> dict[str, Adversarial]:
    """The three objectives on every standardised weight; the paper's WGAN-GP, on raw ones; and all along directions."""
    few = digits.along(1e-3, settings).directions
    return {
        "WGAN-GP": Adversarial(),
        "WGAN": Adversarial(objective="wgan"),
        "GAN": Adversarial(objective="gan"),
        "WGAN-GP, raw weights, last iterate": Adversarial(standardise=False, averaging=0.0),
        "WGAN-GP, falling": digits.falling(3e-4),
        "WGAN-GP along directions": Adversarial(directions=few),
        "WGAN along directions": Adversarial(objective="wgan", directions=few),
        "GAN along directions": Adversarial(objective="gan", directions=few),
        "WGAN-GP along directions, falling": digits.along(1e-3, settings),
    }


def run(settings: Settings) -> Result:
    """One chain, and every game on it."""
    held = digits.load(settings)
    pieces = {name: (name,) for name in (TEACHER, *games(settings))}
    each = answers(measured, pieces, settings)
    found = {name: Quality(**one["quality"]) for name, one in each.items()}
    scored = {name: each[name]["records"] for name in games(settings)}
    return Result(
        STUDY.name,
        STUDY.title,
        summary=" ".join(filter(None, (_summary(found), held.note))),
        numbers={"final": {n: asdict(q) for n, q in found.items()}, "validation": scored},
        tables=[_table(found)],
        figures=curves(scored),
        settings={"generator steps": apd_accuracy.games(settings), "steps": apd_accuracy.STEPS},
    )


def measured(name: str, settings: Settings) -> dict[str, Any]:
    """The quality of what one game made, or of the chain, and its scores on the way."""
    held, steps = digits.load(settings), apd_accuracy.games(settings)
    chain = apd_accuracy.chain("fcNN1", held, settings)
    if name == TEACHER:
        return {"quality": asdict(digits.quality(chain, held, 200)), "records": []}
    records: list[Record] = []
    made = adversarial(
        chain, games(settings)[name], steps=steps, validation=held.validation, check_every=max(1, steps // CHECKS),
        callback=records.append, **digits.game(settings),
    )  # fmt: skip
    taught = chain.predict(held.test.x, draws=200)
    return {
        "quality": asdict(digits.quality(made, held, 100, taught)),
        "records": [record for record in records if "accuracy" in record],
    }


def _summary(found: Mapping[str, Quality]) -> str:
    games = {name: one for name, one in found.items() if one.variation is not None}
    nearest = min(games, key=lambda name: games[name].variation or 0.0)
    best = max(games, key=lambda name: games[name].accuracy)
    return f"Nearest to the teacher's predictions: {nearest}; most accurate: {best}."


def _table(found: Mapping[str, Quality]) -> Table:
    columns = ("posterior", "accuracy", "nll", "total variation", "AUROC entropy", "AUROC BALD")
    rows = [(n, q.accuracy, q.nll, q.variation, q.entropy_auroc, q.bald_auroc) for n, q in found.items()]
    return Table("On the test digits, at the end", columns, rows, formats={"accuracy": ".4f"})


def curves(scored: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Figure]:
    """Error and loss of generated networks as games go on; games along directions are dashed."""
    title = "of 20 generated networks on validation digits"

    def drawn(name: str, label: str, what: Callable[[Mapping[str, Any]], float]) -> Figure:
        series = [
            plots.Series(game, [what(r) for r in records], [r["step"] for r in records], style=_style(game))
            for game, records in scored.items()
        ]
        return plots.lines(name, f"{label} {title}", series, x_label="generator steps", y_label=label, log_y=True)

    return [
        drawn("error", "Error", lambda record: 1 - record["accuracy"]),
        drawn("validation", "Nats per row", lambda record: record["validation"]),
    ]


def _style(game: str) -> plots.Style:
    return "dashed" if "along directions" in game else "line"


STUDY = Study(
    "apd-gans",
    "Three games for a generator of networks",
    "Wang et al. (ICML 2018, arXiv 1806.10317) compare the three objectives in a figure.",
    "how fast GAN, WGAN and WGAN-GP learn to emit good networks, with standardised and raw weights",
    run,
)
