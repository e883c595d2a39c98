"""Made data, the same for the same seed: small problems whose right answer can be seen or computed."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubito.data.glyphs import draw_letter
from dubito.data.sets import Split, load

_Images = NDArray[np.floating[Any]]


def line() -> Split:
    """Four points for the straight line y = a x + b with known noise of standard deviation 3 (Duerr et al., 2020)."""
    x = torch.tensor([[-2.0], [-2 / 3], [2 / 3], [2.0]])
    return Split(x, torch.tensor([-6.2503, -2.5021, -6.0753, 7.9208]))


def linear(n: int = 100, features: int = 3, noise_std: float = 0.5, seed: int = 0) -> Split:
    """A conjugate linear-Gaussian set: y = x w + b + N(0, noise_std^2), with x, w and b standard normal."""
    _positive(n=n, features=features)
    rng = np.random.default_rng(seed)
    weights, bias = rng.standard_normal(features), rng.standard_normal()
    x = rng.standard_normal((n, features))
    return _split(x, x @ weights + bias + noise_std * rng.standard_normal(n))


def sine(n: int = 2048, flat: int = 60, seed: int = 0, min_std: float = 0.0) -> Split:
    """Sine regression with room to extrapolate (after Duerr et al., Probabilistic Deep Learning, 2020, ch. 8).

    `n` points evenly over three periods, x in [-3 pi, 3 pi], y ~ N(3 sin x, (0.15 |3 sin x|)^2), and on each side
    `flat` points over another half period where the mean is 0 and, the noise being proportional to the mean, y = 0.
    Counts, sine and noise are the book's; the interval and the noise-free flat parts are the reading taken here.
    Where the noise vanishes a heteroscedastic likelihood is unbounded: `min_std` sets a floor under the noise.
    """
    _positive(n=n)
    rng = np.random.default_rng(seed)
    edge, reach = 3 * math.pi, 4 * math.pi
    sides = np.linspace(edge, reach, flat + 1)[1:]
    x = np.concatenate([-sides[::-1], np.linspace(-edge, edge, n), sides])
    mean, std = sine_truth(torch.from_numpy(x))
    return _split(x[:, None], mean.numpy() + std.clamp_min(min_std).numpy() * rng.standard_normal(len(x)))


def sine_truth(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and noise standard deviation of `sine` at x: 3 sin x within three periods and 0 outside; 0.15 |mean|."""
    mean = torch.where(x.abs() <= 3 * math.pi, 3 * x.sin(), torch.zeros_like(x))
    return mean, 0.15 * mean.abs()


def clusters(n: int = 60, noise_std: float = 0.1, seed: int = 0) -> Split:
    """One-dimensional regression with a gap: y = 0.3 x + sin(4 x) / 2 + noise, x in [-2, -1] and [1, 2] in turn.

    The idea is that of Wilson and Izmailov (2020): error bars should grow in the gap and outside; [-4, 4] shows both.
    """
    _positive(n=n)
    rng = np.random.default_rng(seed)
    x = rng.uniform(1, 2, n) * np.where(np.arange(n) % 2, 1, -1)
    return _split(x[:, None], 0.3 * x + np.sin(4 * x) / 2 + noise_std * rng.standard_normal(n))


def wiggle(n: int = 1000, seed: int = 0) -> Split:
    """y = x + 0.3 sin 2 pi (x + e) + 0.3 sin 4 pi (x + e) + e, e ~ N(0, 0.02^2) (Blundell et al., 2015, section 5.2).

    The paper does not give the inputs; here they are uniform on [0, 0.5]. Its 0.02 is read as a standard deviation.
    """
    _positive(n=n)
    rng = np.random.default_rng(seed)
    x, noise = rng.uniform(0, 0.5, n), 0.02 * rng.standard_normal(n)
    return _split(x[:, None], wiggle_truth(torch.from_numpy(x + noise)).numpy())


def wiggle_truth(x: Tensor) -> Tensor:
    """`wiggle` without its noise."""
    return x + 0.3 * (2 * math.pi * x).sin() + 0.3 * (4 * math.pi * x).sin()


def blobs(per_class: int = 10, seed: int = 0) -> Split:
    """Two classes in the plane: N(-(2, 2), 0.3 I) is class 0 and N(+(2, 2), 0.3 I) class 1 (Wang et al., 2018)."""
    _positive(per_class=per_class)
    rng = np.random.default_rng(seed)
    y = np.repeat([0, 1], per_class)
    return _split(rng.normal(0, math.sqrt(0.3), (2 * per_class, 2)) + (4 * y - 2)[:, None], y)


def not_digits(n: int = 300, seed: int = 0) -> Split:
    """8 x 8 images in the scaling of `digits` (multiples of 1/16 in [0, 1]) that are no digits.

    y is an index into `KINDS`; the kinds take turns, and those made from digits use the test half only.
    """
    _positive(n=n)
    rng = np.random.default_rng(seed)
    digits = load("digits").part("test").x[:, 0].numpy().astype(np.float64)
    kinds = np.arange(n) % len(KINDS)
    images = np.stack([_MAKERS[KINDS[kind]](rng, digits) for kind in kinds])
    return _split(np.round(images * 16)[:, None] / 16, kinds)


def _shuffled(rng: np.random.Generator, digits: _Images) -> _Images:
    return rng.permutation(digits[rng.integers(len(digits))].ravel()).reshape(8, 8)


def _inverted(rng: np.random.Generator, digits: _Images) -> _Images:
    return np.asarray(1 - digits[rng.integers(len(digits))])


def _patchwork(rng: np.random.Generator, digits: _Images) -> _Images:
    """Each quarter from a quarter of some digit, turned by a random multiple of 90 degrees."""
    quarters = []
    for _ in range(4):
        row, column = rng.integers(0, 2, size=2) * 4
        tile = digits[rng.integers(len(digits)), row : row + 4, column : column + 4]
        quarters.append(np.rot90(tile, int(rng.integers(4))))
    return np.block([quarters[:2], quarters[2:]])


def _stripes(rng: np.random.Generator, digits: _Images) -> _Images:
    """A sine grating of random direction, phase and wavelength (2.5 to 6 pixels)."""
    angle, phase, wavelength = rng.uniform(0, math.pi), rng.uniform(0, 2 * math.pi), rng.uniform(2.5, 6)
    rows, columns = np.mgrid[:8, :8]
    wave = np.sin(2 * math.pi * (rows * np.sin(angle) + columns * np.cos(angle)) / wavelength + phase)
    return np.asarray(0.5 + 0.5 * wave)


def _texture(rng: np.random.Generator, digits: _Images) -> _Images:
    """White noise averaged over 2 x 2 pixels and stretched to the whole range."""
    noise = rng.uniform(size=(9, 9))
    smooth = noise[1:, 1:] + noise[1:, :-1] + noise[:-1, 1:] + noise[:-1, :-1]
    return np.asarray((smooth - smooth.min()) / (smooth.max() - smooth.min()))


def _letter(rng: np.random.Generator, digits: _Images) -> _Images:
    return draw_letter(rng)


_MAKERS: dict[str, Callable[[np.random.Generator, _Images], _Images]] = {
    "letters": _letter,
    "shuffled digits": _shuffled,
    "inverted digits": _inverted,
    "patchwork": _patchwork,
    "stripes": _stripes,
    "texture": _texture,
}
KINDS: tuple[str, ...] = tuple(_MAKERS)


def _split(x: _Images, y: NDArray[Any]) -> Split:
    target = y.astype(np.float32 if y.dtype.kind == "f" else np.int64)
    return Split(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(target))


def _positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}.")
