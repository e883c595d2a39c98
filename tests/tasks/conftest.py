"""Small classifiers with known answers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dubito
from dubito.posteriors.samples import SamplesPosterior


class Logits(nn.Module):
    """x (B, C) are the logits; the one weight adds to the first of them."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, :1] + self.bias, x[:, 1:]], 1)


@pytest.fixture
def shifted() -> Callable[..., SamplesPosterior]:
    """A posterior whose draws add the given numbers to the first logit."""

    def make(*shifts: float) -> SamplesPosterior:
        form = "point" if len(shifts) == 1 else "ensemble"
        return SamplesPosterior.of(
            dubito.Net(Logits()), dubito.Categorical(), torch.tensor(shifts).unsqueeze(1), {}, form
        )

    return make


@pytest.fixture
def pair() -> dict[str, dubito.Posterior]:
    """A point and an ensemble of plain networks 16-8-3 on tiny images."""

    def networks(n: int) -> SamplesPosterior:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = dubito.Net(nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)))
            theta = torch.randn(n, net.layout.size)
        return SamplesPosterior.of(net, dubito.Categorical(), theta, {}, "point" if n == 1 else "ensemble")

    return {"point": networks(1), "ensemble": networks(4)}
