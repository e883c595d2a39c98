"""Shapes, sizes and refusals of the named networks."""

import pytest
import torch
from torch import nn

import dubito.nn as nets


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("module", "weights"),
    [(nets.fcnn1(), 79_510), (nets.fcnn2(), 478_410), (nets.lenet5(), 431_080), (nets.mlp([2, 10, 10, 2]), 162)],
)
def test_weights_as_published(module, weights):
    assert count(module) == weights


@pytest.mark.parametrize("make", [nets.fcnn1, nets.fcnn2, nets.lenet5, nets.small_cnn])
@pytest.mark.parametrize("shape", [(3, 784), (3, 28, 28), (3, 1, 28, 28)])
def test_images_in_any_shape(make, shape):
    assert make()(torch.zeros(shape)).shape == (3, 10)


def test_small_cnn_on_digits():
    net = nets.small_cnn(side=8, classes=4, channels=(4, 6), hidden=5)
    assert net(torch.zeros(2, 64)).shape == (2, 4)


def test_mlp_keeps_leading_dimensions():
    assert nets.mlp([5, 7, 2], activation="tanh")(torch.zeros(3, 4, 5)).shape == (3, 4, 2)


def test_lenet5_layers_follow_caffe():
    shapes = [tuple(p.shape) for name, p in nets.lenet5().named_parameters() if name.endswith("weight")]
    assert shapes == [(20, 1, 5, 5), (50, 20, 5, 5), (500, 800), (10, 500)]


def test_dropout_sits_after_every_hidden_activation():
    kinds = [type(layer) for layer in nets.mlp([4, 3, 3, 2], dropout=0.5)]
    assert kinds == [nn.Linear, nn.ReLU, nn.Dropout, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]
    assert nn.Dropout not in [type(layer) for layer in nets.fcnn1()]


def test_works_under_vmap():
    net = nets.small_cnn(side=8, channels=(2,), hidden=3)
    params = {name: torch.stack([p, 2 * p]) for name, p in net.named_parameters()}
    x = torch.randn(5, 64)
    out = torch.func.vmap(lambda p: torch.func.functional_call(net, p, (x,)))(params)
    torch.testing.assert_close(out[0], net(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nets.mlp([4]), r"sizes=\[4\] must hold at least 2"),
        (lambda: nets.mlp([4, 0, 1]), "positive whole"),
        (lambda: nets.mlp([4, 1], dropout=1.0), "dropout=1.0 is no rate"),
        (lambda: nets.mlp([4, 2, 1], activation="cube"), "'cube' is unknown; choose one of relu"),
        (lambda: nets.small_cnn(side=2, channels=(1, 1)), "side=2 is too small"),
        (lambda: nets.small_cnn(channels=()), r"channels=\[\] must hold at least 1"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_vgg_follows_its_table_at_any_width():
    net = nets.vgg(width=1 / 16).eval()
    shapes = [p.shape[0] for name, p in net.named_parameters() if p.ndim == 4]
    assert shapes == [4, 4, 8, 8, 16, 16, 16, 32, 32, 32, 32, 32, 32]
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
