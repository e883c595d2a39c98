"""Attacks made on one method and noticed by another, as in adversarial posterior distillation: a 3 x 3 table.

fcNN1 (784-100-10) on digits in [-1, 1], fitted as in `apd-accuracy`. 6,000 validation digits are attacked through one
posterior sample, MC dropout through its network without dropout; doubt about them is compared with that about the first
6,000 test digits, 1,000 samples each. PGD has epsilon 0.15, 40 steps of 0.01, in units of [0, 1] pixels.

Two things are not as published: the released FGSM searches for the least epsilon that works and keeps the closest
adversarial image, where epsilon is fixed here at that of PGD; and which score made the table is not stated, so
entropy and BALD are both shown.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dubito.results import Cell, Result, Table
from dubito.studies import apd_accuracy, digits
from dubito.studies.base import Settings, Study
from dubito.tasks import FGSM, PGD, Attack, Robustness

METHODS = ("MC dropout", "SGLD", "APD")
SCORES = {"entropy": "entropy", "bald": "BALD"}
EPSILON = 0.15

# AUROC in per cent by attacked and judging method, both in the order of METHODS.
PUBLISHED: dict[str, tuple[tuple[float, ...], ...]] = {
    "FGSM": ((89.53, 94.01, 91.70), (54.99, 83.76, 75.93), (54.51, 83.05, 86.02)),
    "PGD": ((88.37, 93.95, 91.63), (56.91, 84.98, 82.80), (54.98, 88.01, 93.15)),
}


def attacks(settings: Settings) -> dict[str, Attack]:
    """Both through one draw."""
    steps = 2 if settings.quick else 40
    return {"FGSM": FGSM(epsilon=EPSILON), "PGD": PGD(epsilon=EPSILON, steps=steps, step_size=0.01)}


def run(settings: Settings) -> Result:
    """Fit, attack each through one draw, and let all judge."""
    held = digits.load(settings)
    count, draws, rounds = (30, 10, 20) if settings.quick else (6000, 1000, 1000)
    fitted = apd_accuracy.posteriors("fcNN1", METHODS, held, settings)
    data = {"test": tuple(t[:count] for t in held.validation), "negatives": held.test.x[:count]}
    found = {
        name: Robustness(
            attack=attack, epsilons=(), bounds=(-1.0, 1.0), scores=tuple(SCORES), draws=draws, seed=settings.seed,
            bootstrap=rounds, sources={"MC dropout": fitted["MC dropout"].mean_network()}, progress=settings.progress,
        ).run(fitted, data)
        for name, attack in attacks(settings).items()
    }  # fmt: skip
    figures = [f for name, one in found.items() for f in one.figures if name == "FGSM"]
    return Result(
        STUDY.name,
        STUDY.title,
        summary=" ".join(f"{name}: {verdict(one.numbers['detection'])}" for name, one in found.items()),
        numbers={name: one.numbers for name, one in found.items()},
        tables=[*_tables({name: one.numbers for name, one in found.items()})],
        figures=figures,
        settings={"epsilon": EPSILON, "methods": {name: dict(one.about) for name, one in fitted.items()}},
    )


def verdict(detection: Mapping[str, Mapping[str, Any]]) -> str:
    """Which judge notices most of the attacks on each."""
    best = {}
    for source, judges in detection.items():
        cells = {(j, s): by[s]["auroc"][0] for j, by in judges.items() for s in by}
        judge, score = max(cells, key=lambda key: cells[key])
        best[source] = f"on {source} best by {judge} with {SCORES[score]}, {100 * cells[judge, score]:.1f} %"
    return f"attacks noticed {'; '.join(best.values())}."


def _tables(numbers: Mapping[str, Mapping[str, Any]]) -> Iterator[Table]:
    columns = (
        "attacked",
        "judged by",
        "published",
        *SCORES.values(),
        *(f"{label} interval" for label in SCORES.values()),
    )
    for attack, published in PUBLISHED.items():
        found = numbers[attack]["detection"]
        rows: list[tuple[Cell, ...]] = []
        for i, source in enumerate(METHODS):
            for j, judge in enumerate(METHODS):
                cells = [found.get(source, {}).get(judge, {}).get(score, {}).get("auroc") for score in SCORES]
                values = [None if c is None else 100 * c[0] for c in cells]
                ends = [None if c is None else f"{100 * c[1]:.1f} to {100 * c[2]:.1f}" for c in cells]
                rows.append((source, judge, published[i][j], *values, *ends))
        formats = dict.fromkeys(("published", *SCORES.values()), ".1f")
        note = "AUROC in per cent; 95 % bootstrap intervals. A dash: a method that is not here."
        yield Table(f"{attack}: attacked images against clean ones", columns, rows, note, formats)


STUDY = Study(
    name="apd-adversarial",
    title="Who notices whose adversarial images",
    source="Wang et al., 2018, Adversarial distillation of Bayesian neural network posteriors (arXiv 1806.10317); "
    "figures from the authors' slides, recipe from their released code.",
    shows="how well doubt notices FGSM and PGD, on the attacked method and by transfer",
    run=run,
    why="The attacks are not quite the published ones, and with the better of two scores more is noticed here wherever "
    "SGLD or APD is attacked.",
)
