"""Do quieter gradients learn faster? Gradient variance of three estimators at equal batch, and their learning curves.

Kingma et al. saw both less variance and faster convergence from local reparameterisation; a later report saw no faster
convergence. Variances are taken at one posterior, over the same batches for all estimators, layer by layer.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

import dubito
from dubito import plots
from dubito.data import Split
from dubito.layout import whole
from dubito.nn import mlp
from dubito.noisy import Estimator
from dubito.posteriors.gaussian import GaussianPosterior
from dubito.progress import track
from dubito.results import Cell, Figure, Result, Table
from dubito.rng import Rng
from dubito.studies.base import Settings, Study, built, gather
from dubito.studies.pieces import answers
from dubito.target import Batch, Target

ESTIMATORS: tuple[Estimator, ...] = ("weights", "flipout", "local")
PRIOR = dubito.Normal(std=0.1)
BATCH, SEEDS = 128, 3


def digits(settings: Settings) -> Split:
    """MNIST's training images, or in a quick run the embedded digits."""
    name = "digits" if settings.quick else "mnist"
    x, y = gather([name]).sets[name].part("train")
    return Split(x.flatten(1), y)


def fitted(data: Split, estimator: Estimator, epochs: int, members: int, settings: Settings) -> tuple[Any, list[Any]]:
    """The posterior by one estimator, and its history."""
    width, records = 16 if settings.quick else 400, list[Any]()
    net = built(lambda: mlp([data.x.shape[1], width, width, 10]), settings)
    posterior = dubito.fit(
        net, data, dubito.Variational(estimator=estimator), likelihood=dubito.Categorical(), prior=PRIOR,
        epochs=epochs, batch_size=BATCH, members=members, seed=settings.seed, device=settings.device,
        callback=records.append, progress=settings.progress,
    )  # fmt: skip
    return posterior, records


@torch.no_grad()
def variances(posterior: GaussianPosterior, data: Split, repeats: int, settings: Settings) -> dict[str, Tensor]:
    """For every estimator the variance of the gradient by means and by log stds, (2, D)."""
    net = posterior.net
    target = Target(net, posterior.likelihood, dict.fromkeys(net.layout.names, PRIOR), len(data.x))
    mean, std = posterior.mean[:1], posterior.std[:1]
    sums = {e: torch.zeros(2, 2, mean.shape[1], dtype=torch.float64, device=mean.device) for e in ESTIMATORS}
    for number in track(range(repeats), repeats, "gradients", settings.progress):
        rows = torch.randint(len(data.x), (BATCH,), generator=torch.Generator().manual_seed(number))
        batch = Batch(data.x[rows].to(mean.device), data.y[rows].to(mean.device), rows)
        for estimator, total in sums.items():
            found = gradient(target, mean, std, batch, estimator, Rng(settings.seed, number))
            total[0] += found
            total[1] += found.square()
    return {e: (t[1] / repeats - (t[0] / repeats).square()) * repeats / (repeats - 1) for e, t in sums.items()}


def gradient(target: Target, mean: Tensor, std: Tensor, batch: Batch, estimator: Estimator, rng: Rng) -> Tensor:
    """One estimate of the gradient of the mean log-likelihood by means and by log stds, (2, D), in double precision."""
    if estimator == "weights":
        eps = rng.normal_(torch.empty_like(mean), "weights")
        _, by_mean = target.lik_value_and_grad(mean + std * eps, batch, "live", {})
        by_std = by_mean * eps
    else:
        scheme = target.net.scheme(batch.x, target.random, estimator)
        noise = target.net.noise(scheme, batch.x, 1, 1, rng)
        found = target.noisy_value_and_grad(mean, std, batch, scheme, noise, "live", {})
        by_mean, by_std = whole(found[1]), whole(found[2])
    return torch.cat([by_mean, by_std * std]).double()


def run(settings: Settings) -> Result:
    """Variances early and late in training, and a learning curve for each estimator."""
    lengths, repeats = _lengths(settings)
    curves = answers(curve, {estimator: (estimator,) for estimator in ESTIMATORS}, settings)
    layers = answers(spread, {moment: (moment,) for moment in lengths}, settings)
    return Result(
        STUDY.name,
        STUDY.title,
        summary=_summary(layers, curves),
        numbers={
            "variance": layers,
            "curves": {e: [[r["step"], r["fit"], r["complexity"]] for r in rs] for e, rs in curves.items()},
        },
        tables=[*(_table(moment, by) for moment, by in layers.items()), _progress(curves)],
        figures=[_figure(curves)],
        settings={"batch_size": BATCH, "gradients": repeats, "epochs": lengths, "prior std": PRIOR.std},
    )


def curve(estimator: Estimator, settings: Settings) -> list[Any]:
    """The history of several seeds by one estimator."""
    epochs = _lengths(settings)[0]["late"]
    return fitted(digits(settings), estimator, epochs, 2 if settings.quick else SEEDS, settings)[1]


def spread(moment: str, settings: Settings) -> dict[str, list[list[float]]]:
    """Variances by layer after so much training."""
    data, (lengths, repeats) = digits(settings), _lengths(settings)
    posterior, _ = fitted(data, "local", lengths[moment], 1, settings)
    return _by_layer(posterior, variances(posterior, data, repeats, settings))


def _lengths(settings: Settings) -> tuple[dict[str, int], int]:
    """Epochs early and late in training, and the number of gradients."""
    return ({"early": 1, "late": 2}, 10) if settings.quick else ({"early": 1, "late": 30}, 500)


def _by_layer(posterior: GaussianPosterior, found: Mapping[str, Tensor]) -> dict[str, list[list[float]]]:
    """For every weight matrix and estimator, the mean variance by mean and by log std."""
    spans = {n: s for n, s in posterior.net.layout.spans.items() if n.endswith("weight")}
    return {n: [[float(found[e][part, s].mean()) for e in ESTIMATORS] for part in range(2)] for n, s in spans.items()}


def _table(moment: str, by: Mapping[str, list[list[float]]]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (layer, what, *values, values[0] / max(values[2], 1e-300))
        for layer, parts in by.items()
        for what, values in zip(("mean", "log std"), parts, strict=True)
    ]
    columns = ("layer", "gradient by", *ESTIMATORS, "weights / local")
    title = f"Variance of a gradient's coordinate, {moment} in training"
    return Table(title, columns, rows, formats={**dict.fromkeys(ESTIMATORS, ".3g"), "weights / local": ".3g"})


def bound(record: Any) -> float:
    """What training minimises, nats per datum: the fit and the KL; wide posteriors look bad by the fit alone."""
    return float(record["fit"] + record["complexity"])


def _reached(records: list[Any], level: float) -> int | None:
    """The first recorded step with a negative bound below the level."""
    return next((int(r["step"]) for r in records if bound(r) < level), None)


def _progress(curves: Mapping[str, list[Any]]) -> Table:
    highest, lowest = (max(f(bound(r) for r in rs) for rs in curves.values()) for f in (max, min))
    levels = np.geomspace(highest, lowest, 6)[1:]
    rows: list[tuple[Cell, ...]] = [(f"{v:.3g}", *(_reached(rs, v) for rs in curves.values())) for v in levels * 1.001]
    return Table("Steps until the negative bound, nats per datum, fell below", ("bound", *curves), rows)


def _figure(curves: Mapping[str, list[Any]]) -> Figure:
    series = [plots.Series(e, [bound(r) for r in rs], [float(r["step"]) for r in rs]) for e, rs in curves.items()]
    title = "Negative bound by estimator, mean over seeds"
    return plots.lines("curves", title, series, x_label="step", y_label="nats per datum", log_y=True)


def _summary(layers: Mapping[str, Mapping[str, list[list[float]]]], curves: Mapping[str, list[Any]]) -> str:
    ratios = [v[0] / max(v[2], 1e-300) for by in layers.values() for parts in by.values() for v in parts]
    last = {e: bound(rs[-1]) for e, rs in curves.items()}
    return (
        f"Whole weight draws have {min(ratios):.3g} to {max(ratios):.3g} times the gradient variance of local "
        f"reparameterisation, by layer. At the end of training the negative bounds are "
        f"{', '.join(f'{v:.4g} ({e})' for e, v in last.items())} nats per datum."
    )


STUDY = Study(
    "wunn-variance",
    "Gradient variance of three estimators",
    "Kingma, Salimans and Welling, Variational Dropout and the Local Reparameterization Trick (NIPS 2015), and a "
    "student report on Weight Uncertainty in Neural Networks that saw no faster convergence from it.",
    "gradient variance by layer and learning curves of weight draws, flipout and local reparameterisation",
    run,
)
