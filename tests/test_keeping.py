"""Keeping draws while they fit."""

import pytest
import torch

from dubito.keeping import Keeper

DRAWS = torch.randn(7, 10, 2)


def feed(keeper: Keeper, size: int, rows: int) -> Keeper:
    for chunk in DRAWS.split(size):
        for part in chunk.split(rows, 1):
            keeper.add(part.clone())
        keeper.end_chunk(len(chunk))
    return keeper


@pytest.mark.parametrize("size", [1, 3, 7, 9])
@pytest.mark.parametrize("rows", [1, 4, 10])
def test_chunks_and_batches_come_together_again(size, rows):
    assert torch.equal(feed(Keeper(7, None), size, rows).draws, DRAWS)


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("rows", [1, 4, 10])
def test_nothing_is_kept_beyond_the_budget(size, rows):
    assert feed(Keeper(7, DRAWS.nbytes), size, rows).draws is not None
    given_up = feed(Keeper(7, DRAWS.nbytes - 1), size, rows)
    assert given_up.draws is None and not given_up._first
    assert feed(Keeper(7, None, keep=False), size, rows).draws is None
