"""Whole weight draws of large networks are taken one after another, and are the same."""

import pytest
import torch
from torch import nn

import dubito
from dubito import runtime

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randint(3, (40,), generator=torch.Generator().manual_seed(2))
METHODS = [  # Adam would make steps of rounding where a gradient is 0, as by a bias before BatchNorm
    dubito.Variational(estimator="weights", draws=3, optimiser="sgd", learning_rate=0.1),
    dubito.Variational(estimator="weights", draws=3, optimiser="sgd", learning_rate=0.1, alpha=0.5),
    dubito.SparseVD(estimator="weights", draws=2, optimiser="sgd", learning_rate=0.1),
]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.parametrize("prior", [dubito.Normal(std=1.0), dubito.ScaleMixture(pi=0.5, std1=1.0, std2=0.1)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("members", [1, 2])
def test_draws_in_turn_are_those_side_by_side(method, prior, members, monkeypatch):
    def fitted():
        return dubito.fit(network(), (X, Y), method, prior=prior, members=members, steps=5, batch_size=20,
                          device="cpu", progress=False)  # fmt: skip

    together = fitted()
    monkeypatch.setattr(runtime, "CPU_FLOPS", 0.0)
    in_turn = fitted()
    torch.testing.assert_close(in_turn.mean, together.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(in_turn.std, together.std, rtol=1e-4, atol=1e-5)
    for name, statistics in together.buffers.items():
        torch.testing.assert_close(in_turn.buffers[name], statistics, rtol=1e-4, atol=1e-5)
