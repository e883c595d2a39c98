"""Two classes in the plane: where do distilled posteriors doubt? SGLD and, learnt from it, a generator and students."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

import dubito
from dubito.data import toys
from dubito.distill import Adversarial, DarkKnowledge, adversarial, dark_knowledge
from dubito.nn import mlp
from dubito.results import Cell, Result, Table
from dubito.studies.base import Settings, Study, built
from dubito.studies.digits import options
from dubito.studies.toy_2d import DECAY, FAR, Plane, entropy_fields, plans

STEPS = 20_000


def run(settings: Settings) -> Result:
    """A chain, what is learnt from it, and MC dropout beside it."""
    train, fresh = toys.blobs(seed=settings.seed), toys.blobs(per_class=100, seed=settings.seed + 1)
    axis = np.linspace(-5, 5, 21 if settings.quick else 101)
    grid = torch.cartesian_prod(*[torch.tensor(axis, dtype=torch.float32)] * 2).flip(1)
    prior = dubito.Normal(std=1 / math.sqrt(len(train.x) * DECAY))
    chosen = plans(settings, len(train.x))
    chain, dropped = (chosen[n].fit(train, settings, dubito.Categorical(), prior) for n in ("SGLD", "MC dropout"))
    steps = 20 if settings.quick else STEPS
    student = built(lambda: mlp([2, 10, 10, 2]), settings)
    distiller = Adversarial(noise=100, widths=(50, 50, 50))
    plain = _pupil(student)
    heads = {"BDK": plain, "Dirichlet student": replace(plain, head="dirichlet")}
    pupils = {n: dark_knowledge(chain, grid, one, steps=steps, **options(settings)) for n, one in heads.items()}
    posteriors: dict[str, dubito.Posterior] = {
        "SGLD": chain,
        "APD": adversarial(chain, distiller, steps=steps, **options(settings)),
        **pupils,
        "MC dropout": dropped,
    }
    planes = {name: Plane(posterior, grid, fresh) for name, posterior in posteriors.items()}
    far = torch.cdist(grid, train.x).amin(1) > FAR
    rows = {name: plane.row(far, planes["SGLD"]) for name, plane in planes.items()}
    return Result(
        STUDY.name,
        STUDY.title,
        numbers={"rows": rows},
        tables=[_table(rows)],
        figures=[entropy_fields(planes, axis, train)],
        settings={"distillation steps": steps, "prior std": prior.std},
    )


def _pupil(student: torch.nn.Module) -> DarkKnowledge:
    return DarkKnowledge(student=student, noise=0.1, draws=10, learning_rate=5e-3, schedule="cosine")


def _table(rows: Mapping[str, list[Cell]]) -> Table:
    columns = ("posterior", "accuracy", "entropy: data", "far", "BALD: data", "far ", "total variation", "agreement")
    return Table(
        "Doubt at the data and far from it, in nats",
        columns,
        [(name, *row) for name, row in rows.items()],
        note=f"Far: more than {FAR:g} from every training point. Total variation and agreement are with SGLD, over the "
        "whole plane. A plain student has no BALD.",
        formats=dict.fromkeys(columns[1:], ".3f"),
    )


STUDY = Study(
    "apd-toy",
    "Two classes in the plane, distilled",
    "Wang et al. (ICML 2018, arXiv 1806.10317), a figure without numbers; settings of its released code.",
    "the doubt of SGLD, a generator, two students and MC dropout over the whole plane",
    run,
)
