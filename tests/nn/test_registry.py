"""Recipes: a net says how it was made, and the recipe makes it again."""

import copy
import json

import pytest
import torch
from torch import nn

import dubito.nn as nets
from dubito.nn import registry

MADE = {
    "mlp": lambda: nets.mlp((4, 3, 2), activation="silu", dropout=0.25),
    "fcnn1": nets.fcnn1,
    "fcnn2": lambda: nets.fcnn2(dropout=0.5),
    "lenet5": nets.lenet5,
    "small_cnn": lambda: nets.small_cnn(8, channels=[2, 3]),
    "vgg": lambda: nets.vgg(width=0.03),
}


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))


def test_every_registered_net_is_covered_here():
    assert set(MADE) == set(nets.names())
    assert nets.names() == tuple(sorted(nets.names()))


@pytest.mark.parametrize("name", MADE)
def test_recipe_survives_json_and_copies_and_rebuilds(name):
    net = MADE[name]()
    recipe = json.loads(json.dumps(nets.recipe(copy.deepcopy(net))))
    again = nets.build(recipe)
    again.load_state_dict(net.state_dict())
    assert recipe["name"] == name
    assert repr(again) == repr(net)
    assert nets.recipe(again) == recipe


def test_recipe_is_not_part_of_the_state():
    assert nets.fcnn1().state_dict().keys() == {"1.weight", "1.bias", "3.weight", "3.bias"}


def test_recipe_of_a_foreign_or_changed_net_is_none():
    changed = nets.mlp([4, 3, 2])
    changed[1] = nn.Tanh()
    assert nets.recipe(changed) is None
    assert nets.recipe(nn.Linear(2, 1)) is None
    hooked = nets.mlp([4, 3, 2])
    hooked[0].register_forward_hook(lambda layer, inputs, outputs: 2 * outputs)
    assert nets.recipe(hooked) is None


def test_recipe_cannot_be_edited_from_outside():
    net = nets.mlp([4, 3, 2])
    nets.recipe(net)["arguments"]["sizes"].append(9)
    assert nets.recipe(net)["arguments"]["sizes"] == [4, 3, 2]


def test_a_name_alone_is_a_recipe():
    assert nets.build({"name": "fcnn1"})(torch.zeros(1, 784)).shape == (1, 10)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"name": "lenet"}, "no network named 'lenet' in dubito.nn; did you mean 'lenet5'?"),
        ({"name": "zzz"}, "choose one of fcnn1, "),
        ({"name": "mlp"}, "do not fit mlp"),
        ({"name": "lenet5", "arguments": {"width": 3}}, "do not fit lenet5"),
    ],
)
def test_unknown_names_and_arguments_get_one_sentence(recipe, message):
    with pytest.raises(ValueError) as caught:
        nets.build(recipe)
    assert message in str(caught.value)


@pytest.mark.usefixtures("own_registry")
def test_users_can_register_their_own():
    @nets.register
    def twice_linear(width: int = 3) -> nn.Module:
        return nn.Linear(width, width)

    assert nets.recipe(nets.build({"name": "twice_linear", "arguments": {"width": 2}})) == {
        "name": "twice_linear",
        "arguments": {"width": 2},
    }


@pytest.mark.usefixtures("own_registry")
def test_arguments_must_be_json():
    @nets.register
    def holds_a_tensor(value: object) -> nn.Module:
        return nn.Identity()

    with pytest.raises(ValueError, match="must be JSON values"):
        holds_a_tensor(torch.zeros(1))
