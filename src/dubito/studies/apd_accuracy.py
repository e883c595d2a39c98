"""Adversarial posterior distillation on MNIST: are generated networks as good as the chain they were learnt from?

SGLD as released (epsilon 1e-6, batches of 100, 200,000 iterations, burn-in 500), 200 of its samples; a generator
trained on all of them, and 100 of its networks; SGD and MC dropout with the same rate and decay, at their best state on
validation rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import mean
from typing import Any

import dubito
from dubito.distill import Adversarial, adversarial
from dubito.posteriors.base import Posterior
from dubito.results import Result, Table
from dubito.runtime import alone
from dubito.studies import digits
from dubito.studies.base import Plan, Settings, Study, against_published
from dubito.studies.digits import Held, Quality
from dubito.studies.pieces import ahead, answers

PUBLISHED = {  # Wang et al. 2018, as in their slides; the column of SGD is not known
    ("fcNN1", "MC dropout"): 0.973,
    ("fcNN1", "SGLD"): 0.979,
    ("fcNN1", "APD"): 0.978,
    ("fcNN2", "MC dropout"): 0.983,
    ("fcNN2", "SGLD"): 0.980,
    ("fcNN2", "APD"): 0.981,
}
THIN = {"fcNN1": 20, "fcNN2": 100}  # ten thousand samples of fcNN1, two thousand of fcNN2
DRAWS = {"SGD": 1, "MC dropout": 200, "SGLD": 200, "APD": 100}
MAKING = ("SGLD", "APD", "MC dropout", "SGD")  # in which order: what waits for a chain, and what takes longest, early
STEPS, SEEDS = 200_000, 3


def run(settings: Settings) -> Result:
    """Every method on both networks over several seeds."""
    held = digits.load(settings)
    seeds = [settings.seed + i for i in range(1 if settings.quick else SEEDS)]
    pieces = {f"{m} {name} {seed}": (name, m, seed) for m in MAKING for name in reversed(THIN) for seed in seeds}
    scored = dict(zip(pieces.values(), answers(measured, pieces, settings).values(), strict=True))
    found = {name: [{m: Quality(**scored[name, m, seed]) for m in DRAWS} for seed in seeds] for name in THIN}
    return Result(
        STUDY.name,
        STUDY.title,
        summary=" ".join(filter(None, (_verdict(found), held.note))),
        numbers={name: [{m: asdict(q) for m, q in one.items()} for one in runs] for name, runs in found.items()},
        tables=[_published(found), _table(found)],
        settings={
            "steps": STEPS,
            "generator steps": digits.GAMES,
            "precision": digits.PRECISION,
            "seeds": seeds,
            "draws": DRAWS,
        },
    )


def measured(name: str, method: str, seed: int, settings: Settings) -> dict[str, Any]:
    """The quality of one method on one network; the chain is the teacher of all others."""
    held, at = digits.load(settings), replace(settings, seed=seed)
    mine = posterior(name, method, held, at)
    if method == "SGLD":
        return asdict(digits.quality(mine, held, DRAWS[method], None, seed))
    teacher = posterior(name, "SGLD", held, at).predict(held.test.x, draws=DRAWS["SGLD"], seed=seed)
    return asdict(digits.quality(mine, held, DRAWS[method], teacher, seed))


def posterior(name: str, method: str, held: Held, settings: Settings) -> Posterior:
    """SGD, MC dropout, the chain or what is distilled from it, for fcNN1 or fcNN2; kept by network, method and seed."""
    folder = settings.folder(f"{name} {method} {settings.seed}")
    steps, generator_steps = (100, 4) if settings.quick else (STEPS, digits.GAMES[name])
    if method == "SGLD":
        return digits.chain(name, held, settings, steps, 10 if settings.quick else THIN[name], folder)
    if method == "APD":
        chain = posterior(name, "SGLD", held, settings)
        with alone(folder):
            return adversarial(
                chain, Adversarial(), steps=generator_steps, validation=held.validation, folder=folder,
                **digits.game(settings),
            )  # fmt: skip
    descent: dict[str, Any] = {"learning_rate": digits.RATE, "optimiser": "sgd", "momentum": 0.0}
    fits: dict[str, tuple[dubito.Method[Any], float]] = {
        "SGD": (dubito.MAP(**descent), 0.0),
        "MC dropout": (dubito.MCDropout(**descent), 0.5),
    }
    made, dropout = fits[method]
    plan = Plan(made, digits.network(name, settings, dropout), steps, None, 100, digits.PRECISION)
    prior = digits.paper_prior(len(held.train.y))
    return plan.fit(held.train, settings, dubito.Categorical(), prior, held.validation, folder)


def posteriors(name: str, methods: Sequence[str], held: Held, settings: Settings) -> dict[str, Posterior]:
    """Several on one network, in this study's folders and from them where they are there already."""
    shared = settings.beside(STUDY.name)
    ahead(_made, {method: (name, method) for method in MAKING if method in methods}, shared)
    return {method: posterior(name, method, held, shared) for method in methods}


def _made(name: str, method: str, settings: Settings) -> None:
    posterior(name, method, digits.load(settings), settings)


def _average(runs: Sequence[Mapping[str, Quality]], method: str, what: str) -> float | None:
    values = [getattr(one[method], what) for one in runs]
    return None if None in values else mean(values)


def _published(found: Mapping[str, Sequence[Mapping[str, Quality]]]) -> Table:
    rows = [
        (f"{name}, {method}", PUBLISHED.get((name, method)), _average(runs, method, "accuracy"), "")
        for name, runs in found.items()
        for method in runs[0]
    ]
    return against_published("Accuracy on the test digits", rows)


def _table(found: Mapping[str, Sequence[Mapping[str, Quality]]]) -> Table:
    measures = ("accuracy", "nll", "ece", "variation", "entropy_auroc", "bald_auroc", "bytes")
    rows = [
        (name, method, *(_average(runs, method, what) for what in measures))
        for name, runs in found.items()
        for method in runs[0]
    ]
    columns = ("network", "method", *measures[:3], "total variation to SGLD", "AUROC entropy", "AUROC BALD", "bytes")
    note = "Averages over seeds; AUROC of doubt for notMNIST letters against test digits, pixels in the same range."
    return Table("Quality", columns, rows, note, {"accuracy": ".4f", "bytes": ",.0f"})


def _verdict(found: Mapping[str, Sequence[Mapping[str, Quality]]]) -> str:
    parts = []
    for name, runs in found.items():
        gap = 100 * mean(one["APD"].accuracy - one["SGLD"].accuracy for one in runs)
        parts.append(f"{name}: generated networks are {gap:+.2f} points from their SGLD teacher")
    return "; ".join(parts) + f", over {len(next(iter(found.values())))} seeds."


STUDY = Study(
    "apd-accuracy",
    "Adversarial posterior distillation on MNIST",
    "Wang, Vicol, Lucas, Gu, Grosse and Zemel, Adversarial Distillation of Bayesian Neural Network Posteriors (ICML "
    "2018, arXiv 1806.10317), with the settings of its released code.",
    "whether generated networks are as good as the SGLD chain, SGD and MC dropout, on two networks",
    run,
)
