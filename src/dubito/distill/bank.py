"""The teacher's weight vectors, by row: on the device where they fit, read from where they lie where they do not."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from dubito.posteriors.base import Posterior, check_posterior
from dubito.posteriors.samples import SamplesPosterior, moments
from dubito.posteriors.storage import Samples
from dubito.posteriors.weights import WeightPosterior
from dubito.prediction import Undefined
from dubito.runtime import free_bytes

CPU_BYTES = 256 << 20  # of vectors copied to memory; more are read from the file as they are needed
CUDA_SHARE = 0.4  # of the free memory of a GPU
PIECE_BYTES = 32 << 20
FRESH = 10_000  # vectors drawn from a teacher that makes them as they are asked for


class Standard(NamedTuple):
    """An affine map of each coordinate: theta = shift + scale * standardised; scale 0 where theta never moves."""

    shift: Tensor
    scale: Tensor

    def inward(self, theta: Tensor) -> Tensor:
        """Weights as standardised coordinates."""
        return (theta - self.shift) / torch.where(self.scale > 0, self.scale, 1.0)

    def outward(self, coordinates: Tensor) -> Tensor:
        """Standardised coordinates as weights."""
        return torch.addcmul(self.shift, self.scale, coordinates)


class Bank:
    """Rows of standardised weight vectors."""

    def __init__(self, samples: Samples, standard: Standard) -> None:
        self.samples, self.standard, self.device = samples, standard, standard.shift.device
        self.n, self.size = len(samples), len(standard.shift)
        row = standard.shift.nbytes
        self.resident = torch.cat(list(self._pieces(row))) if self.n * row <= room(self.device) else None
        self._rows = max(1, PIECE_BYTES // row)

    def take(self, index: Tensor) -> Tensor:
        """Some rows (n, D) by number."""
        if self.resident is not None:
            return self.resident[index]
        return self.standard.inward(self.samples.get(index.tolist())[0].to(self.device))

    @property
    def count(self) -> int:
        """How many `pieces` there are."""
        return -(-self.n // self._rows)

    def pieces(self) -> Iterator[Tensor]:
        """All rows, a few at a time."""
        if self.resident is not None:
            yield from self.resident.split(self._rows)
        else:
            yield from self._pieces(self.standard.shift.nbytes)

    def _pieces(self, row: int) -> Iterator[Tensor]:
        size = max(1, PIECE_BYTES // row)
        for start in range(0, self.n, size):
            part = self.samples.get(range(start, min(start + size, self.n)))[0]
            yield self.standard.inward(part.to(self.device))


def teacher(posterior: Posterior, seed: int) -> Samples:
    """The weight vectors to learn from: stored ones, or many draws of a posterior that makes them."""
    check_posterior(posterior)
    if not isinstance(posterior, WeightPosterior):
        raise Undefined(
            f"{type(posterior).__name__} is no distribution over weights that could be distilled into another; "
            "distil its predictions with distill.dark_knowledge"
        )
    count = len(posterior) if isinstance(posterior, SamplesPosterior) else FRESH
    samples, _ = posterior.vectors(count, seed)
    if samples.get([0])[1]:
        raise Undefined(
            "the teacher's networks have BatchNorm statistics of their own, which a distribution over weights does not "
            "hold; distil its predictions with distill.dark_knowledge, or use a batch-free norm"
        )
    return samples


def standard(samples: Samples, device: torch.device, scaled: bool = True, centred: bool = False) -> Standard:
    """Mean and standard deviation of every coordinate, the mean alone, or the identity."""
    if not (scaled or centred):
        like = samples.get([0])[0][0].to(device)
        return Standard(torch.zeros_like(like), torch.ones_like(like))
    mean, std = (found.to(device) for found in moments(samples))
    return Standard(mean, std if scaled else torch.ones_like(std))


def room(device: torch.device) -> int:
    """Bytes that may hold vectors."""
    if device.type != "cuda":
        return CPU_BYTES
    return int(CUDA_SHARE * free_bytes(device))
