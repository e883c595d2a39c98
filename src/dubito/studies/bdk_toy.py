"""Students of different sizes on a toy: how far are they from HMC over the whole plane?

Korattikara et al. give KL(HMC || q) averaged over a grid; students see the grid, and one chain of SGLD teaches all.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

import dubito
from dubito.data import toys
from dubito.distill import DarkKnowledge, dark_knowledge
from dubito.nn import mlp
from dubito.results import Result, Table
from dubito.studies.base import Settings, Study, against_published, built
from dubito.studies.digits import options
from dubito.studies.toy_2d import DECAY, plans

STUDENTS = {"distilled 2-10-2": (2, 10, 2), "distilled 2-100-2": (2, 100, 2), "distilled 2-10-10-2": (2, 10, 10, 2)}
PUBLISHED = {
    "SGD": 0.246,
    "SGLD": 0.007,
    "distilled 2-10-2": 0.031,
    "distilled 2-100-2": 0.014,
    "distilled 2-10-10-2": 0.009,
}
STEPS, DRAWS = 20_000, 500


def run(settings: Settings) -> Result:
    """HMC as the reference, SGLD as the teacher, students, and one network."""
    train = toys.blobs(seed=settings.seed)
    axis = np.linspace(-5, 5, 11 if settings.quick else 101)
    grid = torch.cartesian_prod(*[torch.tensor(axis, dtype=torch.float32)] * 2)
    prior = dubito.Normal(std=1 / math.sqrt(len(train.x) * DECAY))
    chosen = plans(settings, len(train.x))
    fitted = {n: chosen[n].fit(train, settings, dubito.Categorical(), prior) for n in ("HMC", "SGLD", "MAP")}
    steps = 20 if settings.quick else STEPS
    posteriors: dict[str, dubito.Posterior] = {"SGD": fitted["MAP"], "SGLD": fitted["SGLD"]}
    for name, sizes in STUDENTS.items():
        student = built(lambda sizes=sizes: mlp(sizes), settings)  # type: ignore[misc]
        distiller = DarkKnowledge(student=student, noise=0.05, draws=10, learning_rate=5e-3, schedule="cosine")
        posteriors[name] = dark_knowledge(fitted["SGLD"], grid, distiller, steps=steps, **options(settings))
    probs = {n: p.predict(grid, draws=DRAWS).probs.cpu() for n, p in {"HMC": fitted["HMC"], **posteriors}.items()}
    to_hmc = {name: kl(probs["HMC"], probs[name]) for name in posteriors}
    to_teacher = {name: kl(probs["SGLD"], probs[name]) for name in posteriors if name != "SGLD"}
    return Result(
        STUDY.name,
        STUDY.title,
        summary="The published toy has data of its own, which are not known here; the order of rows is what compares.",
        numbers={"to HMC": to_hmc, "to SGLD": to_teacher},
        tables=[_published(to_hmc), _table(to_teacher)],
        settings={"steps": steps, "prior std": prior.std},
    )


def kl(p: Tensor, q: Tensor) -> float:
    """KL(p || q) in nats, averaged over rows."""
    tiny = torch.finfo(torch.float32).tiny
    p, q = p.double(), q.double().clamp_min(tiny)
    return float((torch.special.xlogy(p, p) - p * q.log()).sum(-1).mean())


def _published(found: Mapping[str, float]) -> Table:
    return against_published("KL from HMC's predictive, nats", [(n, PUBLISHED[n], v, "") for n, v in found.items()])


def _table(found: Mapping[str, float]) -> Table:
    return Table("KL from the teacher's predictive, nats", ("posterior", "KL"), list(found.items()))


STUDY = Study(
    "bdk-toy",
    "Students of three sizes in the plane",
    "Korattikara, Rathod, Murphy and Welling, Bayesian Dark Knowledge (NIPS 2015, arXiv 1506.04416).",
    "how near to HMC a student comes, by its size",
    run,
)
