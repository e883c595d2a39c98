"""A 100-draw evaluation of 10,000 + 10,000 images by all seven scores, against the bare matrix products it contains."""

from statistics import median

import torch

import dubito
from benchmarks.common import Claim, Where, fcnn2, images, report, take_turns
from dubito.posteriors.samples import SamplesPosterior
from dubito.tasks import OOD

DRAWS, ROWS, BATCH = 100, 10_000, 2000
MOST = 1.4  # times the matrix products


def run(where: Where) -> bool:
    """Prediction, seven scores, four measures and 1,000 bootstrap samples of each, with its histograms."""
    device, count, rounds = where.device, where.pick(ROWS, 100), where.pick(3, 1)
    inside, labels = images(count, device)
    outside = images(2 * count, device)[0][count:]
    posterior = _posterior(device)
    weights = [w for _, w in sorted(posterior.sample(DRAWS).items()) if w.dim() == 3]
    data = {"inside": (inside, labels), "outside": outside}
    candidates = {
        "matrix products": lambda: _products(weights, torch.cat([inside, outside])),
        "dubito, 1,000 bootstrap samples": lambda: OOD(draws=DRAWS, shown=0).run({"p": posterior}, data),
        "dubito, no intervals": lambda: OOD(draws=DRAWS, shown=0, bootstrap=0).run({"p": posterior}, data),
    }
    seconds = take_turns(candidates, rounds, device)
    bare, whole, _ = (median(s) for s in seconds.values())
    claims = [Claim("time over that of the bare products by torch.matmul", whole / bare, most=MOST)]
    return report(where, "ood-evaluation", f"Detection, {DRAWS} draws x 2 x {count:,} rows", "s", seconds, claims)


def _posterior(device: str) -> SamplesPosterior:
    net = dubito.Net(fcnn2().to(device))
    noise = torch.randn(DRAWS, net.layout.size, generator=torch.Generator().manual_seed(0)).to(device)
    return SamplesPosterior.of(net, dubito.Categorical(), net.theta() + 0.01 * noise, {}, "chains")


@torch.no_grad()
def _products(weights: list[torch.Tensor], x: torch.Tensor) -> None:
    """Every layer of every draw on every row, and nothing else."""
    for draw in zip(*weights, strict=True):
        for rows in x.split(BATCH):
            for weight in draw:
                rows = rows @ weight.T
