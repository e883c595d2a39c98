"""Where members start."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import dubito
from dubito.initial import starting_points
from dubito.net import Net


class Scaled(nn.Module):
    """A parameter without an initialiser beside a layer that has one."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.body(x) * self.scale


class OldStyle(nn.Module):
    """Resets by writing to .data, to values it may have already."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(3, 4)), nn.Parameter(torch.empty(3))
        self.reset_parameters()

    def reset_parameters(self):
        self.weight.data.uniform_(-0.5, 0.5)
        self.bias.data.zero_()

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


class Halved(nn.Module):
    """Its own reset builds on that of its parts."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.reset_parameters()

    def reset_parameters(self):
        self.inner.weight.mul_(0.5) if not torch.is_grad_enabled() else None

    def forward(self, x):
        return self.inner(x)


def test_the_first_member_is_the_module_and_the_others_are_its_initialisers_draws():
    net = Net(nn.Sequential(nn.Linear(4, 50), nn.LayerNorm(50), nn.Linear(50, 3)))
    points = starting_points(net, 4, 7, None)
    assert torch.equal(points[0], net.theta())
    assert torch.equal(points, starting_points(net, 4, 7, None))
    assert torch.equal(points[:2], starting_points(net, 2, 7, None))
    assert not torch.equal(points[1:], starting_points(net, 4, 8, None)[1:])
    split = net.layout.split(points)
    bound = 1 / math.sqrt(50)
    assert float(split["2.weight"][1:].abs().max()) <= bound
    assert float(split["2.weight"][1:].std()) == pytest.approx(bound / math.sqrt(3), rel=0.15)
    assert bool((split["1.weight"] == 1).all()) and not split["1.bias"].any()
    assert len({tuple(p.tolist()) for p in points}) == 4


@pytest.mark.parametrize(
    "make", [OldStyle, Halved, lambda: nn.Transformer(4, 2, 1, 1, 8, batch_first=True), lambda: nn.LSTM(4, 5)]
)
def test_initialisers_of_every_style_are_used(make):
    module = make()
    points = starting_points(Net(module), 3, 0, None)
    assert torch.isfinite(points).all() and not torch.equal(points[1], points[2])


def test_initialisers_of_parents_run_after_those_of_their_parts():
    points = starting_points(Net(Halved()), 30, 0, None)
    assert float(points[1:, :12].abs().max()) <= 0.25 < float(points[1:, 12:].abs().max())


def test_a_parameter_without_an_initialiser_is_named_and_init_cures_it():
    data = torch.randn(9, 4), torch.arange(9) % 3
    assert len(dubito.fit(Scaled(), data, "map", steps=2, progress=False)) == 1
    with pytest.raises(ValueError, match=r"no reset_parameters\(\) writes 'scale'; give fit\(init=\.\.\.\) a function"):
        dubito.fit(Scaled(), data, "map", members=2, steps=2, progress=False)

    def build(seed):
        torch.manual_seed(seed)
        return Scaled()

    before = torch.get_rng_state()
    posterior = dubito.fit(Scaled(), data, "map", members=3, steps=2, init=build, progress=False)
    weights = posterior.sample(3)["body.weight"]
    assert len({tuple(w.flatten().tolist()) for w in weights}) == 3
    net = Net(Scaled())
    before = torch.get_rng_state()
    starting_points(net, 3, 0, build)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_parametrised_weight_that_resetting_cannot_reach_is_named():
    module = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3)))
    with pytest.raises(ValueError, match=r"no reset_parameters\(\) writes '0\.parametrizations\.weight\.original0'"):
        starting_points(Net(module), 2, 0, None)


def test_fixed_parameters_need_no_initialiser():
    net = Net(Scaled(), fixed=["scale"])
    assert starting_points(net, 3, 0, None).shape == (3, 15)


def test_init_may_give_a_mapping_but_must_give_everything():
    net = Net(nn.Linear(4, 3))
    points = starting_points(net, 2, 0, lambda seed: {"weight": torch.ones(3, 4), "bias": torch.zeros(3)})
    assert points[1].tolist() == [1.0] * 12 + [0.0] * 3
    with pytest.raises(ValueError, match=r"must give a 'bias' of shape \(3,\) but gave none"):
        starting_points(net, 2, 0, lambda seed: {"weight": torch.ones(3, 4)})
    with pytest.raises(ValueError, match=r"'weight' of shape \(3, 4\) but gave one of shape \(4, 3\)"):
        starting_points(net, 2, 0, lambda seed: nn.Linear(3, 4))
