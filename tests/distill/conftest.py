"""Teachers whose distribution is known: weight vectors drawn from a mixture of two Gaussians in ten dimensions."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import dubito
from dubito.posteriors.samples import SamplesPosterior
from dubito.posteriors.storage import MemorySamples

SHARES = (0.3, 0.7)


class Known(NamedTuple):
    posterior: SamplesPosterior
    mean: Tensor
    std: Tensor


@pytest.fixture(scope="session")
def known() -> Known:
    generator = torch.Generator().manual_seed(0)
    mean = torch.stack([torch.full((10,), -1.0), torch.full((10,), 1.0)]) + 0.3 * torch.randn(
        2, 10, generator=generator
    )
    std = 0.4 + 0.4 * torch.rand(2, 10, generator=generator)
    which = (torch.rand(4000, generator=generator) < SHARES[1]).long()
    theta = mean[which] + std[which] * torch.randn(4000, 10, generator=generator)
    samples = MemorySamples(theta.unsqueeze(1))
    return Known(SamplesPosterior(dubito.Net(nn.Linear(9, 1)), dubito.Gaussian(1.0), samples), mean, std)


@pytest.fixture(scope="session")
def classifier() -> tuple[dubito.Posterior, Tensor, Tensor]:
    """A small chain on a two-class problem, its inputs and labels."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 3, generator=generator)
    y = (x.sum(1) > 0).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    method = dubito.SGLD(burn_in=100, thin=5)
    return dubito.fit(net, (x, y), method, steps=600, members=2, progress=False, device="cpu"), x, y
