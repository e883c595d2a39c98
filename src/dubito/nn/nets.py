"""Small networks that studies, demo and command line call by name; all start from PyTorch's own initialisation."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, get_args

from torch import Tensor, nn

from dubito.nn.registry import register

Activation = Literal["relu", "leaky_relu", "tanh", "silu", "gelu"]

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


class AsImage(nn.Module):
    """Grey images of (B, side * side), (B, side, side) or (B, 1, side, side), as (B, 1, side, side)."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], 1, self.side, self.side)

    def extra_repr(self) -> str:
        return f"side={self.side}"


@register
def mlp(sizes: Sequence[int], activation: Activation = "relu", dropout: float = 0.0) -> nn.Module:
    """Linear layers of the given widths, input and output included; dropout after each hidden activation."""
    return nn.Sequential(*_dense(sizes, activation, dropout))


@register
def fcnn1(dropout: float = 0.0) -> nn.Module:
    """784-100-10 with ReLU on flattened images: fcNN1 of Wang et al. 2018 (arXiv 1806.10317), 79,510 weights."""
    return nn.Sequential(nn.Flatten(), *_dense((784, 100, 10), "relu", dropout))


@register
def fcnn2(dropout: float = 0.0) -> nn.Module:
    """784-400-400-10 with ReLU on flattened images: fcNN2 of Wang et al. 2018 (arXiv 1806.10317), 478,410 weights."""
    return nn.Sequential(nn.Flatten(), *_dense((784, 400, 400, 10), "relu", dropout))


@register
def lenet5(activation: Activation = "relu") -> nn.Module:
    """For 28x28 grey images: conv 20@5x5, pool, conv 50@5x5, pool, 500, 10; no padding.

    The layers of LeNet-5 in Caffe, after LeCun et al. 1998, whose own convolutions have no activation; 431,080 weights.
    """
    features: list[nn.Module] = [AsImage(28)]
    for before, after in ((1, 20), (20, 50)):
        features += [nn.Conv2d(before, after, 5), _activation(activation), nn.MaxPool2d(2)]
    return nn.Sequential(*features, nn.Flatten(), *_dense((800, 500, 10), activation, 0.0))


@register
def small_cnn(
    side: int = 28,
    classes: int = 10,
    channels: Sequence[int] = (16, 32),
    hidden: int = 64,
    activation: Activation = "relu",
    dropout: float = 0.0,
) -> nn.Module:
    """For grey images: padded 3x3 convolution, activation, 2x2 pool per entry of `channels`, then one dense layer."""
    _check_sizes("channels", channels, least=1)
    left = side >> len(channels)
    if left < 1:
        raise ValueError(f"side={side} is too small to be halved {len(channels)} times; give fewer channels.")
    layers: list[nn.Module] = [AsImage(side)]
    for before, after in pairwise((1, *channels)):
        layers += [nn.Conv2d(before, after, 3, padding=1), _activation(activation), nn.MaxPool2d(2)]
    flat = channels[-1] * left * left
    return nn.Sequential(*layers, nn.Flatten(), *_dense((flat, hidden, classes), activation, dropout))


@register
def vgg(width: float = 1.0, classes: int = 10) -> nn.Module:
    """VGG-like for 32x32 colour images: 3x3 convolutions with BatchNorm in five blocks, each halved, one dense layer.

    The network of Molchanov et al. 2017 (arXiv 1701.05369), after Zagoruyko 2015, with its channels times `width`.
    """
    layers: list[nn.Module] = []
    before = 3
    for channels, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        after = max(1, round(channels * width))
        for _ in range(count):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
            before = after
        layers.append(nn.MaxPool2d(2))
    hidden = [nn.Linear(before, before), nn.BatchNorm1d(before), nn.ReLU(), nn.Linear(before, classes)]
    return nn.Sequential(*layers, nn.Flatten(), *hidden)


def _dense(sizes: Sequence[int], activation: Activation, dropout: float) -> list[nn.Module]:
    _check_sizes("sizes", sizes, least=2)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout} is no rate; give a number of at least 0 and below 1.")
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes[:-1]):
        layers += [nn.Linear(before, after), _activation(activation)]
        layers += [nn.Dropout(dropout)] if dropout else []
    return [*layers, nn.Linear(sizes[-2], sizes[-1])]


def _activation(name: Activation) -> nn.Module:
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation={name!r} is unknown; choose one of {', '.join(get_args(Activation))}.")
    return _ACTIVATIONS[name]()


def _check_sizes(name: str, sizes: Sequence[int], least: int) -> None:
    if len(sizes) < least or any(not isinstance(size, int) or size < 1 for size in sizes):
        raise ValueError(f"{name}={list(sizes)!r} must hold at least {least} positive whole number(s).")
