"""Named tensors as one flat vector: a network is a point in R^D."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor

ALIGNED = 32  # floats that rows begin at multiples of, 128 bytes

Theta: TypeAlias = "Tensor | Mapping[str, Tensor]"  # a vector, or the tensors it is made of
Stretches: TypeAlias = Sequence[Tensor]  # (S, D) in pieces, (S, n) each, in order


@dataclass(frozen=True)
class Layout:
    """Which stretch of theta belongs to which name; `split` and `join` are inverse to each other."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Layout":
        """The layout of the given named tensors, in their order."""
        return cls(tuple(tensors), tuple(tuple(t.shape) for t in tensors.values()))

    @cached_property
    def sizes(self) -> list[int]:
        """Elements per name."""
        return [prod(shape) for shape in self.shapes]

    @cached_property
    def size(self) -> int:
        """D, the length of theta."""
        return sum(self.sizes)

    @cached_property
    def spans(self) -> dict[str, slice]:
        """Where each name lies in theta."""
        ends = torch.tensor([0, *self.sizes]).cumsum(0).tolist()
        return {name: slice(a, b) for name, a, b in zip(self.names, ends, ends[1:], strict=False)}

    def split(self, theta: Theta) -> dict[str, Tensor]:
        """Views of theta, (..., D) -> {name: (..., *shape)}; what is split stays so.

        `Tensor.split`, not slices, keeps the gradient cheap.
        """
        if isinstance(theta, Mapping):
            return dict(theta)
        lead = theta.shape[:-1]
        parts = theta.split(self.sizes, dim=-1) if self.names else ()
        return {n: p.view(lead + s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """{name: (..., *shape)} -> (..., D)."""
        parts = [
            tensors[n].reshape((*tensors[n].shape[: tensors[n].dim() - len(s)], -1))
            for n, s in zip(self.names, self.shapes, strict=True)
        ]
        return torch.cat(parts, dim=-1)

    def __add__(self, other: "Layout") -> "Layout":
        """The concatenation [self | other]."""
        return Layout(self.names + other.names, self.shapes + other.shapes)


def whole(parts: Stretches) -> Tensor:
    """(S, D) from its stretches."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)


def aligned(rows: Tensor) -> Tensor:
    """The same numbers with every row of (S, D) where a GPU's products of many matrices at once read it fastest."""
    if rows.dim() != 2 or len(rows) < 2 or rows.shape[1] % ALIGNED == 0 or rows.device.type == "cpu":
        return rows
    wide = rows.new_empty(len(rows), ALIGNED * -(-rows.shape[1] // ALIGNED))
    return wide[:, : rows.shape[1]].copy_(rows)


def like(place: Tensor, values: Tensor) -> Tensor:
    """The values as a tensor of their own that lies in memory as another one does, on its device."""
    return torch.empty_strided(place.shape, place.stride(), dtype=place.dtype, device=place.device).copy_(values)


def dots(a: Tensor, b: Tensor) -> Tensor:
    """(S,): the inner product of each row of a with that of b, (S, D).

    On the CPU one pass each; on a GPU these would call products that are slow for rows so long.
    """
    return torch.stack([torch.dot(*rows) for rows in zip(a, b, strict=True)]) if _few(a) else (a * b).sum(1)


def _few(rows: Tensor) -> bool:
    """Whether there are so few rows, on the CPU, that a call for each does not matter."""
    return rows.device.type == "cpu" and len(rows) <= 8
