"""Dark knowledge on MNIST: does one network of 784-400-400-10 predict like the whole chain that taught it?

Pixels over 126, SGLD with epsilon 4e-6 and prior precision 1, as in a public re-implementation whose settings are near
the paper's. Beside the paper's student: one with a Dirichlet head, and a generator learnt from the same chain.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import dubito
from dubito.distill import DarkKnowledge, adversarial, dark_knowledge
from dubito.posteriors.base import Posterior
from dubito.results import Result, Table
from dubito.runtime import alone
from dubito.studies import digits
from dubito.studies.base import Plan, Settings, Study, against_published
from dubito.studies.digits import Held, Quality
from dubito.studies.pieces import answers

PUBLISHED = {"SGD": 1.536, "SGLD": 1.271, "distilled": 1.307}  # test error in per cent
HIGH = 255 / 126
STEPS, THIN = 1_000_000, 1_000
LESSONS = {"distilled": 200_000, "Dirichlet student": 100_000}
NAMES = ("SGD", "SGLD", "distilled", "Dirichlet student", "generator")
MAKING = ("SGLD", "SGD", "generator", "distilled", "Dirichlet student")  # in which order: most wait for the chain
STUDENTS = {
    "distilled": DarkKnowledge(noise=0.1, draws=4, schedule="cosine"),
    "Dirichlet student": DarkKnowledge(noise=0.1, draws=4, schedule="cosine", head="dirichlet"),
}


def run(settings: Settings) -> Result:
    """One network, a chain, and what is learnt from it."""
    held = digits.load(settings, 0.0, HIGH)
    each = answers(measured, {name: (name,) for name in MAKING}, settings)
    found = {name: Quality(**each[name]) for name in NAMES}
    return Result(
        STUDY.name,
        STUDY.title,
        summary=" ".join(filter(None, (_summary(found), held.note))),
        numbers={name: asdict(one) for name, one in found.items()},
        tables=[_published(found), _table(found)],
        settings={"steps": STEPS, "thin": THIN, "lessons": LESSONS, "generator steps": digits.GAMES},
    )


def measured(name: str, settings: Settings) -> dict[str, Any]:
    """The quality of one posterior; the chain is the teacher of all others."""
    held = digits.load(settings, 0.0, HIGH)
    mine = posterior(name, held, settings)
    if name == "SGLD":
        return asdict(digits.quality(mine, held, 200))
    return asdict(digits.quality(mine, held, 200, posterior("SGLD", held, settings).predict(held.test.x, draws=200)))


def posterior(name: str, held: Held, settings: Settings) -> Posterior:
    """One of those that are compared; kept."""
    steps, thin, games = (200, 10, 5) if settings.quick else (STEPS, THIN, digits.GAMES)
    folder, net = settings.folder(name), digits.network("fcNN2", settings)
    descent = dubito.MAP(learning_rate=0.05, optimiser="sgd", momentum=0.0)
    fits = {
        "SGD": Plan(descent, net, min(steps, 200_000), None, 100, digits.PRECISION),
        "SGLD": Plan(_sampler(len(held.train.y), steps, thin), net, steps, None, 100, digits.PRECISION),
    }
    if name in fits:
        prior = dubito.Normal(std=1.0)
        return fits[name].fit(held.train, settings, dubito.Categorical(), prior, held.validation, folder)
    chain = posterior("SGLD", held, settings)
    kept: dict[str, Any] = {"validation": held.validation, "folder": folder}
    with alone(folder):
        if name == "generator":
            return adversarial(chain, digits.along(1e-3, settings), steps=games, **kept, **digits.game(settings))
        lessons = 10 if settings.quick else LESSONS[name]
        return dark_knowledge(chain, held.train.x, STUDENTS[name], steps=lessons, **kept, **digits.options(settings))


def _sampler(n: int, steps: int, thin: int) -> dubito.SGLD:
    return dubito.SGLD(step_size=0.2 / n, burn_in=min(1_000, steps // 4), thin=thin)


def _published(found: Mapping[str, Quality]) -> Table:
    rows = [(name, PUBLISHED.get(name), 100 * (1 - one.accuracy), "") for name, one in found.items()]
    return against_published("Test error, per cent", rows)


def _table(found: Mapping[str, Quality]) -> Table:
    columns = ("posterior", "accuracy", "nll", "ece", "total variation", "AUROC entropy", "AUROC BALD", "bytes")
    rows = [
        (n, q.accuracy, q.nll, q.ece, q.variation, q.entropy_auroc, q.bald_auroc, q.bytes) for n, q in found.items()
    ]
    note = "Total variation to SGLD's predictions; AUROC of doubt for notMNIST letters; a plain student has no BALD."
    return Table("Quality", columns, rows, note, {"accuracy": ".4f", "bytes": ",d"})


def _summary(found: Mapping[str, Quality]) -> str:
    gap = 100 * (found["distilled"].accuracy - found["SGLD"].accuracy)
    return f"The student is {gap:+.2f} points of accuracy from its teacher."


STUDY = Study(
    "bdk-mnist",
    "Dark knowledge on MNIST",
    "Korattikara, Rathod, Murphy and Welling, Bayesian Dark Knowledge (NIPS 2015, arXiv 1506.04416): means of 10 runs.",
    "a student against the chain that taught it, one plain network, a Dirichlet student and a generator",
    run,
    "The SGD of the paper has settings of its own, which are not known. Students were taught on digits with a little "
    "noise and are sure of letters, of which they have seen none; a generator keeps the doubt of its teacher.",
)
