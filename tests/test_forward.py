"""Folders of runs know the forward pass they began with, not only the shapes of the weights."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dubito
from dubito import forward
from dubito.net import Net

X = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
Y = torch.randint(2, (30,), generator=torch.Generator().manual_seed(1))
OPTIONS = {"steps": 8, "progress": False, "device": "cpu"}


class Written(nn.Module):
    """The activation is no layer, so that only outputs tell."""

    def __init__(self, activation, dropout=0.0, head=None):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.activation = nn.Linear(3, 5), nn.Linear(5, 2), activation
        self.drop = nn.Dropout(dropout)
        if head is not None:
            nn.init.constant_(self.last.weight, head)

    def forward(self, x):
        return self.last(self.drop(self.activation(self.first(x))))


def fit(net, folder, method=None, **more):
    return dubito.fit(net, (X, Y), method or dubito.MAP(), folder=folder, **{**OPTIONS, **more})


@pytest.mark.parametrize("method", [dubito.MAP(), dubito.SGLD(burn_in=2, thin=2), dubito.Variational()])
@pytest.mark.parametrize("head", [None, 0.0])
def test_another_forward_pass_is_refused_and_the_same_one_goes_on(method, head, tmp_path):
    fit(Written(F.relu, head=head), tmp_path, method)
    for steps in (8, 12):
        with pytest.raises(ValueError, match=r"forward\.net: \[.*\] here, \[.*\] there — .* the network makes other"):
            fit(Written(F.tanh, head=head), tmp_path, method, steps=steps)
    fit(Written(F.relu, head=head), tmp_path, method, steps=12)


def test_another_dropout_rate_is_refused_where_it_trains(tmp_path):
    fit(Written(F.relu, dropout=0.2), tmp_path / "map")
    with pytest.raises(ValueError, match=r"dropout: \[0\.2\] here, \[0\.5\] there"):
        fit(Written(F.relu, dropout=0.5), tmp_path / "map")
    sampler = dubito.SGLD(burn_in=2, thin=2)
    fit(Written(F.relu, dropout=0.2), tmp_path / "sgld", sampler)
    fit(Written(F.relu, dropout=0.5), tmp_path / "sgld", sampler)


def test_statistics_that_rest_belong_to_the_network(tmp_path):
    def normed(mean):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
        net[1].running_mean.fill_(mean)
        return net

    fit(normed(0.3), tmp_path, dubito.SGLD(burn_in=2, thin=2))
    with pytest.raises(ValueError, match=r"forward\.net"):
        fit(normed(0.7), tmp_path, dubito.SGLD(burn_in=2, thin=2))


def test_folders_without_a_record_still_open(tmp_path):
    before = fit(Written(F.relu), tmp_path)
    path = tmp_path / "run.json"
    told = json.loads(path.read_text())
    del told["settings"]["forward"], told["settings"]["dropout"]
    path.write_text(json.dumps(told))
    again = fit(Written(F.relu), tmp_path)
    assert torch.equal(again.predict(X).probs, before.predict(X).probs)
    fit(Written(F.relu), tmp_path, steps=12)


def test_rounding_is_no_difference():
    kinds = (torch.float32, torch.float64, torch.bfloat16)
    single, double, half = (forward.outputs(Net(Written(F.relu).to(t)), X[:4].to(t)) for t in kinds)
    assert single["outputs"] != half["outputs"] and len(single["outputs"]) == 8
    assert forward.difference({"net": single}, {"net": double}) == []
    assert forward.difference({"net": half}, {"net": single}) == []
    assert forward.difference({}, {"net": single}) == []


def test_outputs_that_are_not_finite_are_compared_too():
    class Wild(nn.Linear):
        def forward(self, x):
            return super().forward(x) / 0.0

    found = forward.outputs(Net(Wild(3, 2)), X[:4])
    assert forward.difference({"net": found}, {"net": json.loads(json.dumps(found))}) == []
    assert forward.difference({"net": found}, {"net": forward.outputs(Net(nn.Linear(3, 2)), X[:4])})
