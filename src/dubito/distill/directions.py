"""Principal coordinates of a teacher's vectors: a game on them costs what directions cost and not what weights do.

A generator of last width h emits vectors of an affine space of h dimensions, whatever it learns; so what it can match
of a teacher lies in a few directions, best in those along which the teacher's vectors vary most. Along them both
networks see coordinates; at the end the map back to weights goes into the output layer, so that the generator is one
that a game on weights could have made, stored in as many numbers.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from dubito.distill.bank import Bank
from dubito.posteriors.generator import Generator, Parameters
from dubito.progress import track
from dubito.rng import Rng

HEAD = "head.0"  # the output layer of a generator
SPARE = 10  # directions followed beside those asked for, which are the less exact ones


def check_directions(count: int, n: int, size: int) -> None:
    """Refuse more directions than n vectors of `size` weights can vary in."""
    most = min(n - 1, size)
    if count > most:
        raise ValueError(
            f"directions is {count}, but {n:,} vectors of {size:,} weights vary in {most} at most; ask for fewer, give "
            "more samples, or leave directions out"
        )


def coordinates(bank: Bank, count: int, rng: Rng, show: bool) -> Tensor:
    """Along the principal directions of a bank's rows, (n, count), with mean square 1 over all.

    Of the inner products of rows, which are never all made: one power iteration on random combinations of them, and the
    best within its span (Halko, Martinsson and Tropp, 2011, arXiv 0909.4061); exact where there are few rows.
    """
    many, like = min(bank.n, count + SPARE), bank.standard.shift
    if many == bank.n:
        span = torch.eye(many, dtype=like.dtype, device=like.device)
    else:
        started = rng.normal_(like.new_empty(1, bank.n, many), "span")[0]
        combined = _combined(bank, started, show)
        span = torch.linalg.qr(torch.cat([piece @ combined for piece in _pieces(bank, show)])).Q
    spanned = _combined(bank, span, show)
    spread, turn = torch.linalg.eigh((spanned.T @ spanned).double())
    largest = spread.flip(0)[:count].clamp_min(0).sqrt()
    found = (span.double() @ turn.flip(1)[:, :count] * largest).to(like.dtype)
    size = found.square().mean().sqrt()
    scaled: Tensor = found / torch.where(size > 0, size, 1.0)
    return scaled


def basis(bank: Bank, rows: Tensor, show: bool) -> Tensor:
    """The linear map from coordinates back to the rows of a bank that is least wrong, (D, directions)."""
    inverse: Tensor = torch.linalg.pinv((rows.T @ rows).double(), hermitian=True)
    return _combined(bank, rows, show) @ inverse.to(rows.dtype)


def spread(
    generator: Generator, parameters: Parameters, axes: Tensor, shapes: tuple[tuple[int, ...], ...]
) -> tuple[Generator, Parameters]:
    """The generator of vectors of those shapes for one of coordinates along axes (D, directions)."""
    head = {f"{HEAD}.{part}": axes @ parameters[f"{HEAD}.{part}"] for part in ("weight", "bias")}
    return replace(generator, shapes=shapes), {**parameters, **head}


def _combined(bank: Bank, shares: Tensor, show: bool) -> Tensor:
    """Sums of all rows, (D, m), for shares (n, m)."""
    total, first = shares.new_zeros(bank.size, shares.shape[1]), 0
    for piece in _pieces(bank, show):
        total.addmm_(piece.T, shares[first : first + len(piece)])
        first += len(piece)
    return total


def _pieces(bank: Bank, show: bool) -> Iterator[Tensor]:
    return track(bank.pieces(), bank.count, "directions", show)
