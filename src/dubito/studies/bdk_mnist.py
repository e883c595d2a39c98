"""Dark knowledge on MNIST: does one network of 784-400-400-10 predict like the whole chain that taught it?

Pixels over 126, SGLD with epsilon 4e-6 and prior precision 1, as in a public re-implementation whose settings are near
the paper's. Beside the paper's student: one with a Dirichlet head, and a generator learnt from the same chain.
"""

from collections.abc import Mapping
from dataclasses import asdict

import dubito
from dubito.distill import Adversarial, DarkKnowledge, adversarial, dark_knowledge
from dubito.posteriors.base import Posterior
from dubito.results import Result, Table
from dubito.studies import digits
from dubito.studies.base import Plan, Settings, Study, against_published
from dubito.studies.digits import Held, Quality

PUBLISHED = {"SGD": 1.536, "SGLD": 1.271, "distilled": 1.307}  # test error in per cent
HIGH = 255 / 126
STEPS, THIN, LESSONS, GAMES = 1_000_000, 1_000, 200_000, 16_000


def run(settings: Settings) -> Result:
    """One network, a chain, and what is learnt from it."""
    held = digits.load(settings, 0.0, HIGH)
    posteriors = _posteriors(held, settings)
    taught = posteriors["SGLD"].predict(held.test.x, draws=200)
    found = {n: digits.quality(p, held, 200, None if n == "SGLD" else taught) for n, p in posteriors.items()}
    return Result(
        STUDY.name,
        STUDY.title,
        summary=" ".join(filter(None, (_summary(found), held.note))),
        numbers={name: asdict(one) for name, one in found.items()},
        tables=[_published(found), _table(found)],
        settings={"steps": STEPS, "thin": THIN, "lessons": LESSONS, "generator steps": GAMES},
    )


def _posteriors(held: Held, settings: Settings) -> dict[str, Posterior]:
    quick, n = settings.quick, len(held.train.y)
    steps, thin, lessons, games = (200, 10, 10, 5) if quick else (STEPS, THIN, LESSONS, GAMES)
    sampler = dubito.SGLD(step_size=0.2 / n, burn_in=min(1_000, steps // 4), thin=thin)
    descent = dubito.MAP(learning_rate=0.05, optimiser="sgd", momentum=0.0)
    net = digits.network("fcNN2", settings)
    fits = {
        "SGD": Plan(descent, net, min(steps, 200_000), batch_size=100),
        "SGLD": Plan(sampler, net, steps, batch_size=100),
    }
    prior, options = dubito.Normal(std=1.0), digits.options(settings)
    fitted = {
        name: plan.fit(held.train, settings, dubito.Categorical(), prior, held.validation)
        for name, plan in fits.items()
    }
    x = held.train.x
    plain = DarkKnowledge(noise=0.1, draws=4, schedule="cosine")
    second = DarkKnowledge(noise=0.1, draws=4, schedule="cosine", head="dirichlet")
    return {
        **fitted,
        "distilled": dark_knowledge(fitted["SGLD"], x, plain, steps=lessons, validation=held.validation, **options),
        "Dirichlet student": dark_knowledge(
            fitted["SGLD"], x, second, steps=lessons, validation=held.validation, **options
        ),
        "generator": adversarial(fitted["SGLD"], Adversarial(), steps=games, validation=held.validation, **options),
    }


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
)
