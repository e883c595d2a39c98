"""Images for studies: digits to learn from, images that are none, and a stand-in for quick runs that needs no files.

A quick run takes the 8 x 8 digits that come with scikit-learn, enlarged to 28 x 28, and made images that are no digits.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dubito.data import Split, load, toys
from dubito.rng import choose
from dubito.studies.base import Settings, gather

FITTED = 50_000  # MNIST's rows to learn from; the rest of the training half is for validation
_LABELS = {"notmnist": "notMNIST", "omniglot": "Omniglot", "cifar10bw": "CIFAR10bw", "fashion-mnist": "Fashion-MNIST",
           "kmnist": "KMNIST"}  # fmt: skip


class Images(NamedTuple):
    """Rows to learn from, to choose by and to judge by."""

    train: Split
    validation: Split
    test: Split

    def scaled(self, low: float, high: float) -> "Images":
        """The same in another range."""
        return Images(*(Split(rescaled(part.x, low, high), part.y) for part in self))

    def whole(self) -> "Images":
        """With the validation rows among the training rows, once all is chosen."""
        parts = zip(self.train, self.validation, strict=True)
        return self._replace(train=Split(*(torch.cat(pair) for pair in parts)))


def digits(settings: Settings) -> Images:
    """MNIST as (N, 1, 28, 28) in [0, 1]: 50,000 to learn from, the last 10,000 for validation, its test half."""
    if settings.quick:
        train, test = (load("digits").part(part) for part in ("train", "test"))
        near, held = (Split(enlarged(x), y) for x, y in (train, test))
        return Images(Split(near.x[:400], near.y[:400]), Split(near.x[400:600], near.y[400:600]), held)
    found = load("mnist")
    train, test = found.part("train"), found.part("test")
    return Images(Split(train.x[:FITTED], train.y[:FITTED]), Split(train.x[FITTED:], train.y[FITTED:]), test)


class Others(NamedTuple):
    """Images that are no digits by the name of their set, (N, 1, 28, 28) in [0, 1], and a note on missing sets."""

    sets: Mapping[str, Split]
    note: str


def others(names: Sequence[str], count: int, settings: Settings) -> Others:
    """So many images of each set, chosen at random: most sets are sorted by class."""
    if settings.quick:
        made = toys.not_digits(n=count, seed=settings.seed)
        return Others({_LABELS[names[0]]: Split(enlarged(made.x), made.y)}, "")
    found = gather(names)
    sets = {}
    for name, one in found.sets.items():
        x, y = one.part("test")
        kept = choose(len(x), count, settings.seed)
        sets[_LABELS[name]] = Split(x[kept], y[kept])
    return Others(sets, found.note)


def few(split: Split, count: int, seed: int) -> Split:
    """Some rows, chosen at random."""
    kept = choose(len(split.x), count, seed)
    return Split(split.x[kept], split.y[kept])


def enlarged(x: Tensor) -> Tensor:
    """8 x 8 as 28 x 28: three times as large, with a margin of two."""
    return torch.nn.functional.pad(x.repeat_interleave(3, 2).repeat_interleave(3, 3), (2, 2, 2, 2))


def rescaled(x: Tensor, low: float, high: float) -> Tensor:
    """[0, 1] to another range."""
    return low + (high - low) * x
