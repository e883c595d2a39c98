"""Inputs of a network: one tensor, several, or a dict of them; and how rows of them are taken."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, TensorDataset

from dubito.rng import isolated_everywhere

Inputs: TypeAlias = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


def plain(x: Any) -> Any:
    """Ordinary containers instead of special mappings, which the tree functions do not know."""
    return dict(x) if isinstance(x, Mapping) else x


def arguments(x: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a module is called with these inputs."""
    if isinstance(x, Tensor):
        return (x,), {}
    return ((), dict(x)) if isinstance(x, Mapping) else (tuple(x), {})


def signature(x: Inputs) -> tuple[Any, ...]:
    """The shapes and types of one example."""
    return tuple((tuple(t.shape[1:]), t.dtype) for t in tree_leaves(plain(x)))


def shapes(x: Inputs) -> str:
    """The shapes, for people."""
    return ", ".join(str(tuple(t.shape)) for t in tree_leaves(plain(x)))


def n_rows(x: Inputs) -> int:
    """How many examples the inputs hold."""
    leaves = [leaf for leaf in tree_leaves(plain(x)) if isinstance(leaf, Tensor)]
    counts = {len(leaf) for leaf in leaves if leaf.dim()}
    if counts and not all(leaf.dim() for leaf in leaves):
        raise ValueError("the inputs hold a single number, which has no rows; give it to the network when it is made")
    if not counts:
        raise ValueError("the inputs hold no rows; give a tensor, a tuple of tensors or a dict of tensors")
    if len(counts) > 1:
        raise ValueError(f"the inputs have different numbers of rows, {sorted(counts)}; they must agree")
    return counts.pop()


def rows(x: Inputs, index: Any) -> Any:
    """The same inputs restricted to some rows."""
    return tree_map(lambda t: t[index], plain(x))


def tensors(x: Any) -> Any:
    """Arrays as tensors, whatever they are nested in."""
    return tree_map(_tensor, plain(x))


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray | np.generic | float | int):
        return _from_array(np.asarray(value))
    raise ValueError(f"cannot use {type(value).__name__} as data; give tensors or numpy arrays")


def _from_array(array: Any) -> Tensor:
    if array.dtype.kind not in "biufc":
        raise ValueError(f"cannot use an array of {array.dtype} as data; convert it to numbers first")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # torch has few operations on these
        array = array.astype(np.int64)
    usable = array.flags.writeable and array.dtype.isnative and all(step >= 0 for step in array.strides)
    return torch.from_numpy(array if usable else np.array(array, dtype=array.dtype.newbyteorder("=")))


def move(x: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Inputs on a device, floating ones in the network's own type."""
    return tree_map(lambda t: t.to(device, dtype if t.is_floating_point() else t.dtype), plain(x))


def check_finite(x: Any, name: str) -> None:
    """Refuse NaN and infinity, naming the first row that has one."""
    for leaf in tree_leaves(plain(x)):
        if leaf.is_floating_point() and not _finite(leaf):
            row = int((~torch.isfinite(leaf)).reshape(len(leaf), -1).any(1).nonzero()[0]) if leaf.dim() else 0
            raise ValueError(f"{name} holds NaN or infinity, first in row {row}; remove or impute it")


def _finite(x: Tensor) -> bool:
    """Whether all are finite: a finite sum says so in one pass, one that overflows needs a closer look."""
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def batches(source: Any, size: int) -> Iterator[Any]:
    """Rows in order, as tensors, from tensors, arrays, a Dataset or a DataLoader; labels, if any, are left out."""
    if isinstance(source, TensorDataset):
        source = source.tensors[0]
    if isinstance(source, DataLoader):
        yield from _read(source.dataset, size, source.collate_fn, source.num_workers)
    elif isinstance(source, Dataset):
        yield from _read(source, size, None, 0)
    else:
        x = tensors(source)
        for start in range(0, n_rows(x), size):
            yield rows(x, slice(start, start + size))


def _read(dataset: Dataset[Any], size: int, collate: Any, workers: int) -> Iterator[Any]:
    """Batches of a data set; what it draws at random is the same at every pass, so that all draws see the same rows."""
    loader = DataLoader(dataset, size, collate_fn=collate, num_workers=workers, generator=torch.Generator())
    items, number = iter(loader), 0
    while True:
        with isolated_everywhere("rows", number):
            item = next(items, None)
        if item is None:
            return
        x = tensors(item[0] if isinstance(item, tuple | list) else item)
        check_finite(x, "x")
        yield x
        number += 1
