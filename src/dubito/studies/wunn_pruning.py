"""How many weights does a network need? Pruning by signal to noise after Bayes by Backprop, by size after SGD.

Networks with 1200 hidden units as in `wunn-mnist`, but not with the configurations that are chosen there: the warm-up
that helps predictions leaves spreads that say little about which weights are needed, and narrower first spreads say
nothing at all, as the validation errors there show. These are the ones that were chosen before either was tried.
"""

from typing import Any

import numpy as np
import torch

import dubito
from dubito import plots
from dubito.compress.prune import SHARES, pruning
from dubito.posteriors.base import Posterior
from dubito.posteriors.gaussian import GaussianPosterior
from dubito.posteriors.samples import SamplesPosterior
from dubito.results import Cell, Figure, Result, Table
from dubito.studies import wunn_mnist
from dubito.studies.base import Floats, Settings, Study, against_published, averaged
from dubito.studies.wunn_mnist import Config, Images

EPOCHS, INIT = 300, 0.0067  # INIT: the first spread of a weight
PUBLISHED = (1.24, 1.24, 1.24, 1.29, 1.39)
DRAWN, STILL = 2, 3  # where a row of compress.pruning has the error of draws and of the mean network


def configs() -> dict[str, Config]:
    """What is pruned."""
    gaussian = wunn_mnist.bayes(dubito.Normal(std=float(np.exp(-1))), init=INIT)
    mixture = wunn_mnist.mixture(0.25, 7, init=INIT)
    return {"SGD": wunn_mnist.configs()["SGD"][0], "BBB, Gaussian": gaussian, "BBB, mixture": mixture}


def prunable(posterior: Posterior) -> GaussianPosterior:
    """As a Gaussian; networks without a spread get the same tiny one everywhere, so that they are pruned by size."""
    if isinstance(posterior, GaussianPosterior):
        return posterior
    if not isinstance(posterior, SamplesPosterior):
        raise ValueError(f"{posterior!r} holds no weights to prune; give a Gaussian or stored networks")
    theta = posterior.thetas(len(posterior))
    return GaussianPosterior(posterior.net, posterior.likelihood, theta, torch.full_like(theta, 1e-9))


def curve(posterior: GaussianPosterior, data: Images) -> Floats:
    """Error in percent of draws and of the mean network for every seed and share, (seeds, shares, 2)."""
    found = []
    for index in range(len(posterior)):
        result = pruning({"": posterior.member(index)}, data.test, SHARES, wunn_mnist.DRAWS)
        found.append([[100 * row[DRAWN], 100 * row[STILL]] for row in result.numbers[""]])
    return np.array(found)


def run(settings: Settings) -> Result:
    """Prune the mixture's, the Gaussian's and SGD's networks, share by share."""
    data = wunn_mnist.images(settings)
    width, seeds = (16, 2) if settings.quick else (wunn_mnist.WIDTHS[-1], wunn_mnist.SEEDS[wunn_mnist.WIDTHS[-1]])
    held = {
        method: prunable(wunn_mnist.fitted(config, data.train, width, seeds, settings, method, EPOCHS))
        for method, config in configs().items()
    }
    curves = {method: curve(posterior, data) for method, posterior in held.items()}
    ratios = {method: p.member(0) for method, p in held.items() if method != "SGD"}
    spread = pruning(ratios, (data.test.x[:10], data.test.y[:10]), (0.0,), 1).figures[1:]
    return Result(
        STUDY.name,
        STUDY.title,
        summary=_summary(curves["BBB, mixture"]),
        numbers={method: found.tolist() for method, found in curves.items()},
        tables=[_against(curves["BBB, mixture"]), *(_table(m, found, held[m]) for m, found in curves.items())],
        figures=[_figure(curves), *spread],
        settings={
            "shares": list(SHARES), "draws": wunn_mnist.DRAWS, "units": width, "epochs": EPOCHS,
            "configurations": {method: config.describe() for method, config in configs().items()},
        },
    )  # fmt: skip


def _against(found: Floats) -> Table:
    rows = []
    for i, (share, old) in enumerate(zip(SHARES, PUBLISHED, strict=True)):
        middle, error = averaged(found[:, i, 1])
        rows.append((f"{share:.0%} removed", old, middle, f"standard error {error:.3f}"))
    return against_published("Test error in percent of the mean network, scale mixture", rows)


def _table(method: str, found: Floats, posterior: GaussianPosterior) -> Table:
    weights = posterior.net.layout.size
    rows: list[tuple[Cell, ...]] = [
        (f"{share:.0%}", round((1 - share) * weights), *(cell for one in _columns(found, i) for cell in averaged(one)))
        for i, share in enumerate(SHARES)
    ]
    columns = ("removed", "weights left", "draws", "s.e.", "mean network", "s.e. ", "cost", "s.e.  ")
    formats: dict[str, Any] = {"weights left": ",d", **dict.fromkeys(columns[2:], ".3f")}
    return Table(f"{method}: test error in percent over {len(found)} seeds", columns, rows, formats=formats)


def _columns(found: Floats, share: int) -> tuple[Floats, Floats, Floats]:
    """Of every seed: the error of draws, of the mean network, and what pruning has cost the latter."""
    return found[:, share, 0], found[:, share, 1], found[:, share, 1] - found[:, 0, 1]


def _figure(curves: dict[str, Floats]) -> Figure:
    series = [
        plots.Series(method, found[:, :, 1].mean(0), list(SHARES), found[:, :, 1].min(0), found[:, :, 1].max(0))
        for method, found in curves.items()
    ]
    title = "Error of the mean network over pruning, mean and range over seeds"
    return plots.lines("curve", title, series, x_label="share of weights removed", y_label="error, %", log_y=True)


def _summary(found: Floats) -> str:
    cost, error = averaged(found[:, SHARES.index(0.95), 1] - found[:, 0, 1])
    return (
        f"Without 95 % of its weights the mean network of the scale mixture errs by {cost:+.3f} points "
        f"(standard error {error:.3f}, {len(found)} seeds) against the whole one."
    )


STUDY = Study(
    "wunn-pruning",
    "MNIST: pruning by signal to noise",
    "Blundell, Cornebise, Kavukcuoglu and Wierstra, Weight Uncertainty in Neural Networks (ICML 2015), table 2.",
    "what removing up to 98 % of the weights costs, by signal to noise and by size",
    run,
    why="The level is that of a network whose KL acts from the first step. `wunn-mnist` errs less after a warm-up, but "
    "signal to noise then no longer tells needed weights from others. What is asked here is the cost of removing them.",
)
