"""Variational inference: the known answer first, then what each setting means."""

import pytest
import torch
from torch import nn

import dubito

ESTIMATORS = ["local", "weights", "flipout"]
NOISE, PRIOR = 0.5, 0.7


def conjugate(bias: bool = True):
    """y = x w + b + noise, with inputs that are correlated and of different scales."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(40, 3, generator=g) @ torch.tensor([[1.0, 0.6, 0.0], [0.0, 0.8, 0.3], [0.0, 0.0, 0.5]])
    y = x @ torch.tensor([0.7, -0.4, 0.2]) + 0.3 * bias + NOISE * torch.randn(40, generator=g)
    net = nn.Linear(3, 1, bias=bias)
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    design = torch.cat([x, torch.ones(40, 1)], 1).double() if bias else x.double()
    precision = design.T @ design / NOISE**2 + torch.eye(design.shape[1], dtype=torch.float64) / PRIOR**2
    mean = torch.linalg.solve(precision, design.T @ y.double() / NOISE**2)
    return net, x, y, mean, precision


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_known_answer(estimator):
    net, x, y, mean, precision = conjugate()
    posterior = dubito.fit(
        net, (x, y), dubito.Variational(
            estimator=estimator, draws=512, init_std=0.1, learning_rate=0.01, schedule="cosine"
        ),
        likelihood=dubito.Gaussian(std=NOISE), prior=dubito.Normal(std=PRIOR), steps=1000, batch_size=40,
        device="cpu", progress=False,
    )  # fmt: skip
    sd = torch.linalg.inv(precision).diagonal().sqrt()
    assert float(((posterior.mean[0] - mean) / sd).abs().max()) < 0.05
    assert float((posterior.std[0].double().square() * precision.diagonal() - 1).abs().max()) < 0.02
