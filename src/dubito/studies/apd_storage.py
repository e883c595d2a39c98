"""What a posterior costs to keep: stored samples, mixtures and generators at equal bytes.

One SGLD chain of fcNN1, 2,000 samples as in the paper's analysis: every fifth of the first chain of `apd-accuracy`,
taken from its folders where it has run, as is the single network. Generators of last width h cost about as much as
h + 1 networks, mixtures of K diagonal Gaussians as much as 2 K.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from dubito import plots
from dubito.distill import Mixture, adversarial, mixture
from dubito.posteriors.base import Posterior
from dubito.posteriors.samples import SamplesPosterior
from dubito.posteriors.storage import MemorySamples
from dubito.results import Figure, Result, Table
from dubito.studies import apd_accuracy, digits
from dubito.studies.base import Settings, Study, against_published
from dubito.studies.digits import Held, Quality
from dubito.studies.pieces import answers

FAMILIES = ("chain", "single network", "samples", "mixtures", "generators")
SAMPLES = (2, 6, 11, 21, 51, 101)
COMPONENTS = (1, 3, 5, 10, 25, 50, 60)
WIDTHS = (5, 10, 20, 50, 100)
FEWER, DRAWS = 5, 100
MEASURES = {
    "accuracy": "accuracy",
    "nll": "NLL, nats a row",
    "variation": "total variation to the teacher",
    "bald_auroc": "AUROC of BALD",
}
PUBLISHED = {"60 Gaussians": 0.993, "width 20": 0.998}  # accuracy as a share of SGLD's


def run(settings: Settings) -> Result:
    """Everything at every size against the whole chain."""
    held = digits.load(settings)
    compared = sizes(settings)
    each = answers(measured, {name: (family, count) for name, (family, count) in compared.items()}, settings)
    found: dict[str, dict[str, Quality]] = {}
    for name in sorted(compared, key=lambda name: FAMILIES.index(compared[name][0])):
        found.setdefault(compared[name][0], {})[name] = Quality(**each[name])
    families = {family: members for family, members in found.items() if family != "chain"}
    return Result(
        STUDY.name,
        STUDY.title,
        summary=" ".join(filter(None, (_verdict(families), held.note))),
        numbers={family: {n: asdict(q) for n, q in members.items()} for family, members in found.items()},
        tables=[_published(found), _table(found)],
        figures=[_figure(measure, families) for measure in MEASURES if _has(measure, families)],
        settings={"steps": apd_accuracy.steps(settings), "generator steps": digits.GAMES, "draws": DRAWS},
    )


def sizes(settings: Settings) -> dict[str, tuple[str, int]]:
    """Family and size of all that is compared, what takes longest first; a quick run has two sizes of each family."""
    most = 2 if settings.quick else len(COMPONENTS)
    return {
        "all": ("chain", 0),
        **{f"width {width}": ("generators", width) for width in WIDTHS[:most]},
        "SGD": ("single network", 1),
        **{"1 Gaussian" if k == 1 else f"{k} Gaussians": ("mixtures", k) for k in COMPONENTS[:most]},
        **{f"{count} samples": ("samples", count) for count in SAMPLES[:most]},
    }


def measured(family: str, count: int, settings: Settings) -> dict[str, Any]:
    """The quality of one of them; the chain is the teacher of all others."""
    held = digits.load(settings)
    chain = apd_accuracy.chain("fcNN1", held, settings).thinned(FEWER)
    if family == "chain":
        return asdict(digits.quality(chain, held, 200))
    taught = chain.predict(held.test.x, draws=200)
    return asdict(digits.quality(_made(family, count, chain, held, settings), held, DRAWS, taught, settings.seed))


def _made(family: str, count: int, chain: SamplesPosterior, held: Held, settings: Settings) -> Posterior:
    if family == "single network":
        return apd_accuracy.posteriors("fcNN1", ("SGD",), held, settings)["SGD"]
    if family == "samples":
        return replace(chain, samples=MemorySamples(chain.thetas(count, settings.seed).unsqueeze(1)))
    if family == "mixtures":
        return mixture(chain, Mixture(components=count), **digits.options(settings))
    game = apd_accuracy.distiller("fcNN1", settings)
    distiller = replace(game, widths=(count, count, count), critic_widths=(100, 100, 100))
    return adversarial(chain, distiller, steps=3 if settings.quick else digits.GAMES, **digits.game(settings))


def _published(found: Mapping[str, Mapping[str, Quality]]) -> Table:
    whole = found["chain"]["all"].accuracy
    named = {name: quality for members in found.values() for name, quality in members.items()}
    rows = [
        (f"{name}, accuracy / SGLD's", old, named[name].accuracy / whole if name in named else None, "")
        for name, old in PUBLISHED.items()
    ]
    return against_published("The paper's analysis", rows)


def _table(found: Mapping[str, Mapping[str, Quality]]) -> Table:
    columns = ("family", "posterior", "bytes", "accuracy", "nll", "total variation", "AUROC entropy", "AUROC BALD")
    rows = [
        (family, name, q.bytes, q.accuracy, q.nll, q.variation, q.entropy_auroc, q.bald_auroc)
        for family, members in found.items()
        for name, q in members.items()
    ]
    note = f"Up to {DRAWS} networks drawn of each, 200 of the chain."
    return Table("Quality and bytes", columns, rows, note, {"bytes": ",d", "accuracy": ".4f"})


def _verdict(families: Mapping[str, Mapping[str, Quality]]) -> str:
    """At each size of a generator: which family is nearest to the teacher for at most as many bytes."""
    parts = []
    for name, one in families["generators"].items():
        limit = 1.02 * one.bytes  # a generator of width h is a little more than h + 1 networks
        best = {
            family: min((q.variation or 0.0 for q in members.values() if q.bytes <= limit), default=float("inf"))
            for family, members in families.items()
        }
        winner = min(best, key=lambda family: best[family])
        parts.append(f"{one.bytes / 1e6:.3g} MB ({name}): {winner} ({best[winner]:.4f})")
    return "Least total variation to the chain for at most as many bytes: " + "; ".join(parts) + "."


def _has(measure: str, families: Mapping[str, Mapping[str, Quality]]) -> bool:
    return any(getattr(q, measure) is not None for members in families.values() for q in members.values())


def _figure(measure: str, families: Mapping[str, Mapping[str, Quality]]) -> Figure:
    series = []
    for family, members in families.items():
        points = [(q.bytes, getattr(q, measure)) for q in members.values() if getattr(q, measure) is not None]
        if points:
            x, y = zip(*sorted(points), strict=True)
            single = len(points) == 1
            series.append(plots.Series(family, np.array(y), np.array(x), style="points" if single else "line"))
    label = MEASURES[measure]
    title, small = f"{label} over bytes", measure in ("nll", "variation")
    return plots.lines(measure, title, series, x_label="bytes", y_label=label, log_x=True, log_y=small)


STUDY = Study(
    "apd-storage",
    "Samples, mixtures and generators at equal bytes",
    "Wang et al. (ICML 2018, arXiv 1806.10317): 60 Gaussians (9.54 M numbers) reach 99.3 % of SGLD's accuracy, a "
    "generator of width 20 (1.67 M) 99.8 %.",
    "which representation of a posterior is best at which size",
    run,
)
