"""What `dubito.plan` says becomes of each parameter, before anything is fitted."""

import pytest
import torch
from torch import nn

import dubito

X = torch.randn(1, 4, generator=torch.Generator().manual_seed(1))


def test_the_plan_names_every_path():
    net = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.LayerNorm(4), nn.Linear(4, 3))
    prior = {"0.bias": dubito.Fixed(), "2.bias": dubito.Point()}
    example = X[:1].unsqueeze(1)
    found = {r.name: r for r in dubito.plan(net, dubito.Variational(), prior=prior, example=example).rows}
    assert {n: (r.role, r.estimator) for n, r in found.items()} == {
        "0.weight": ("random", "local (approximate)"),
        "0.bias": ("fixed", "none"),
        "2.weight": ("random", "weights"),
        "2.bias": ("point", "optimised"),
        "3.weight": ("random", "local"),
        "3.bias": ("random", "local"),
    }
    assert "acts on 2 positions" in found["0.weight"].why and "layer_norm" in found["2.weight"].why
    flipped = dubito.plan(net, dubito.Variational(estimator="flipout"), example=example)
    assert [r.estimator for r in flipped.rows] == ["flipout", "flipout", "weights", "weights", "flipout", "flipout"]
    whole = dubito.plan(net, dubito.Variational(estimator="weights"))
    assert {r.estimator for r in whole.rows} == {"weights"}
    assert "example=" in dubito.plan(net, "variational").rows[0].why


def test_the_plan_can_be_read():
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    prior = {
        "0.bias": dubito.Fixed(),
        "0.weight": dubito.ScaleMixture(0.25, 1.0, 0.123456),
        "2.bias": dubito.Centred(0.1),
    }
    said = str(dubito.plan(net, "variational", prior=prior, example=X[:1])).splitlines()
    assert said[0] == "Variational: 3 of 4 parameters free"
    assert said[1].split() == ["parameter", "shape", "role", "estimator", "why"]
    starts = {line.index(word) for line, word in zip(said[2:6], ("random", "fixed", "random", "random"), strict=True)}
    assert starts == {said[1].index("role")}
    assert "prior ScaleMixture(pi=0.25, std1=1, std2=0.123); linear acts once per example" in said[2]
    assert "prior Normal(std=2.31)" in said[4] and "prior Normals, a mean for each and std 0.1;" in said[5]
    assert said[-1] == "  80 bytes a network; 36 flops a row and forward pass"


def test_the_plan_knows_what_a_fit_would_refuse_and_which_prior_counts():
    net = nn.Linear(4, 3)
    assert "refused: SGLD samples every parameter, but 'bias' is Point()" in str(
        dubito.plan(net, "sgld", prior={"bias": dubito.Point()})
    )
    for method, words in [("sparse_vd", "prior log-uniform"), ("gaussian_dropout", "prior Normal(std=2)"),
                          (dubito.SparseVD(kl="ard"), "prior normal of the weight's own best scale")]:  # fmt: skip
        assert words in dubito.plan(net, method).rows[0].why
    with pytest.raises(ValueError, match=r"does not accept rows of \(5,\) float32"):
        dubito.plan(net, "variational", example=torch.zeros(1, 5))
