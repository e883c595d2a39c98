"""The report on weight uncertainty in neural networks asks networks for digits about clothes and foreign letters.

100 weight draws an image: how often each class comes first, and the score of the predicted class in each draw.
"""

from collections.abc import Mapping
from dataclasses import replace

import dubito
from dubito import metrics
from dubito.data import Split
from dubito.results import Result, Table
from dubito.studies import images, wunn
from dubito.studies.base import Settings, Study
from dubito.tasks import OOD

SETS = ("fashion-mnist", "kmnist", "omniglot")
CLASSES = 10


def run(settings: Settings) -> Result:
    """Fit the networks, and look at every set."""
    digits = images.digits(settings)
    chosen = wunn.plans(settings, len(digits.train.x))
    fitted = wunn.fitted(chosen, digits, settings)
    count, draws, rounds = (40, 10, 20) if settings.quick else (10_000, 100, 1000)
    test = images.few(digits.test, count, settings.seed)
    others = images.others(SETS, count, settings)
    flat = {name: x.flatten(1) for name, (x, _) in others.sets.items()}
    task = OOD(draws=draws, seed=settings.seed, bootstrap=rounds, shown=0, progress=settings.progress)
    found = task.run(fitted, {"inside": (test.x.flatten(1), test.y), **flat})
    few = {"inside": (test.x[:6].flatten(1), test.y[:6]), **{name: x[:6] for name, x in flat.items()}}
    seen = replace(task, shown=6, bootstrap=0).run({wunn.BNN: fitted[wunn.BNN]}, few)
    views = [figure for figure in seen.figures if figure.name.startswith(("votes", "scores"))]
    spread = [figure for figure in found.figures if figure.name in ("doubt-entropy", "doubt-bald")]
    right = {name: accuracies(posterior, test, others.sets, draws) for name, posterior in fitted.items()}
    return Result(
        STUDY.name,
        STUDY.title,
        summary=" ".join(filter(None, (found.summary, others.note))),
        numbers={**found.numbers, "accuracy by set": right},
        tables=[_table(right), *found.tables],
        figures=[*spread, *views],
        settings={"task": found.settings, "methods": {name: plan.describe() for name, plan in chosen.items()}},
    )


def accuracies(
    posterior: dubito.Posterior, test: Split, sets: Mapping[str, Split], draws: int
) -> dict[str, float | None]:
    """How often the answer is the label, as if a label of another set meant the digit of that number."""
    judged = {"digits": test, **sets}
    return {
        name: None if int(y.max()) >= CLASSES
        else metrics.accuracy(posterior.predict(x.flatten(1), draws, keep_draws=False).probs, y)
        for name, (x, y) in judged.items()
    }  # fmt: skip


def _table(right: Mapping[str, Mapping[str, float | None]]) -> Table:
    sets = list(next(iter(right.values())))
    return Table(
        "Share of answers that equal the label",
        ("network", *sets),
        [(name, *by.values()) for name, by in right.items()],
        "Labels of other sets mean nothing here, so a tenth is chance; the report has 10 % or less on all of them. A "
        "dash: more than ten classes.",
    )


STUDY = Study(
    name="wunn-ood",
    title="Digits' networks asked about other things",
    source="a student report on Blundell et al., 2015, Weight uncertainty in neural networks (arXiv 1505.05424); its "
    "figures have no numbers but the accuracies.",
    shows="how the draws of a Bayesian network vote on clothes and foreign letters, and how well that tells them apart",
    run=run,
)
