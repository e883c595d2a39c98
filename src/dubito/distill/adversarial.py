"""Adversarial distillation of a posterior that is there already."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dubito.distill.bank import Bank, standard, teacher
from dubito.distill.directions import check_directions
from dubito.distill.game import Adversarial, Game
from dubito.distill.offline import AdversarialDistillation, AlongDirections
from dubito.distill.work import Held, Order, chosen, describe, expect, prints
from dubito.loop import Record
from dubito.posteriors.base import Posterior
from dubito.posteriors.generator import GeneratorPosterior, weight_shapes
from dubito.runs import carry_out
from dubito.runtime import Precision, check_precision, pick_device


def adversarial(
    posterior: Posterior,
    distiller: Adversarial | None = None,
    *,
    steps: int = 100_000,
    validation: Any = None,
    check_every: int = 1_000,
    callback: Callable[[Record], None] | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    folder: str | Path | None = None,
    checkpoint_every: int | None = None,
    precision: Precision = "float32",
    compiled: bool | None = None,
    progress: bool = True,
) -> GeneratorPosterior:
    """A generator of networks like those of a posterior over weights: a chain, an ensemble, a Gaussian.

    steps: of the generator. validation: (x, y) on which generated networks are scored every `check_every` steps.
    folder: where the run is kept; the same call resumes it. precision: how a GPU rounds in matrix products.
    compiled: whether a GPU's steps are fused by torch.compile; by default where it pays.
    """
    check_precision(precision)
    settings = chosen(distiller, Adversarial)
    samples = teacher(posterior, seed)
    net = posterior.net.to(pick_device(device))
    along = settings.directions
    bank = Bank(samples, standard(samples, net.device, settings.standardise, centred=along is not None))
    described = {**describe(settings, posterior, seed), "precision": precision}
    order = Order(net, posterior.likelihood, steps, described, Held.of(validation, check_every))
    if along is None:
        work = AdversarialDistillation(order, Game(settings, weight_shapes(net, posterior.likelihood)), bank)
    else:
        check_directions(along, bank.n, bank.size)
        work = AlongDirections(order, Game(settings, ((along,),)), bank, seed, progress)
    told = prints(posterior, order.held)
    return expect(
        carry_out(work, work.begin(seed), told, seed, folder, callback, checkpoint_every, progress, compiled),
        GeneratorPosterior,
        folder,
    )
