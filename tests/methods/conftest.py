"""A small regression with known noise, as a target, for checking one step by hand."""

import pytest
import torch
from torch import nn

import dubito
from dubito.priors import assign
from dubito.target import Batch, Target


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.3 * torch.randn(12, generator=generator).double()
    module = nn.Linear(3, 1, bias=False).double()
    target = Target(dubito.Net(module), dubito.Gaussian(std=0.3), assign(dubito.Normal(2.0), module), len(y))
    theta = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    return Problem(module, target, Batch(x, y, torch.arange(12)), theta)


class Problem:
    """A linear-Gaussian target whose gradient and posterior are written down here."""

    def __init__(self, module, target, batch, theta) -> None:
        self.module, self.target, self.batch, self.theta = module, target, batch, theta
        self.precision = batch.x.T @ batch.x / 0.3**2 + torch.eye(3, dtype=torch.float64) / 2.0**2
        self.shift = batch.x.T @ batch.y / 0.3**2

    def gradient(self, theta):
        return self.shift - theta @ self.precision

    def log_joint(self, theta):
        residual = self.batch.y - theta @ self.batch.x.T
        return -residual.square().sum(-1) / (2 * 0.3**2) - theta.square().sum(-1) / (2 * 2.0**2)

    @property
    def mode(self):
        return torch.linalg.solve(self.precision, self.shift)
