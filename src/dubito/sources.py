"""Training data as rows by number: tensors that stay on the device, or a Dataset that is read as it goes."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from dubito.inputs import check_finite, move, n_rows, plain, rows, tensors
from dubito.rng import isolated_everywhere

Triple = tuple[Any, Tensor, Tensor | None]  # x, y and weights
Check = Callable[[Tensor], object]  # of y, raising where it does not fit
HASHED_ROWS = 4096  # rows of a large data set that enter its fingerprint; of one that is read as it goes, far fewer
HASHED_READS = 64


class Source:
    """Rows (x, y, weight) by index."""

    n: int
    hashed = HASHED_ROWS

    def take(self, index: Tensor) -> Triple:
        """Some rows, as tensors where the network lies."""
        raise NotImplementedError

    def verify(self, check: Check) -> None:
        """Have labels checked: all of them now, or as they are read."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Tells data apart, by content."""
        index = torch.linspace(0, self.n - 1, min(self.n, self.hashed), dtype=torch.float64).long().unique()
        digest = hashlib.sha256(str(self.n).encode())
        for leaf in tree_leaves([plain(part) for part in self.take(index) if part is not None]):
            digest.update(str((tuple(leaf.shape), leaf.dtype)).encode())
            digest.update(leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]


class Resident(Source):
    """Tensors that stay on the device."""

    def __init__(self, x: Any, y: Tensor, weight: Tensor | None) -> None:
        self.x, self.y, self.weight, self.n = x, y, weight, len(y)

    def take(self, index: Tensor) -> Triple:
        weight = None if self.weight is None else self.weight[index]
        return rows(self.x, index), self.y[index], weight

    def verify(self, check: Check) -> None:
        check(self.y)


class Streamed(Source):
    """A map-style Dataset, with the collate function and workers of a DataLoader where one was given."""

    hashed = HASHED_READS

    def __init__(self, dataset: Dataset[Any], loader: "DataLoader[Any] | None", like: Tensor) -> None:
        self.dataset, self.loader, self.like = dataset, loader, like
        self.n = len(dataset)  # type: ignore[arg-type]
        self._check: Check | None = None
        self._reader = Reader(dataset, default_collate if loader is None else loader.collate_fn)
        self._ahead: Iterator[tuple[tuple[Any, ...], Any]] | None = None
        self._last: tuple[tuple[Any, ...], Any] | None = None

    def take(self, index: Tensor) -> Triple:
        return self._opened(self._reader[(("rows",), index.tolist())][1])

    def read(self, plan: Callable[[], Iterable[tuple[tuple[Any, ...], Sequence[int]]]]) -> Triple:
        """The rows of the first entry (key, index) of a plan; workers, where there are some, read on along it.

        Whatever the data set draws at random is a function of the key, in this process and in workers.
        """
        entry = next(iter(plan()))
        if self.loader is None or self.loader.num_workers == 0:
            return self._opened(self._reader[entry][1])
        if self._last is None or self._last[0] != entry[0]:
            self._last = self._next(entry[0], plan)
        return self._opened(self._last[1])

    def verify(self, check: Check) -> None:
        self._check = check

    def _next(self, key: tuple[Any, ...], plan: Callable[[], Any]) -> tuple[tuple[Any, ...], Any]:
        found = None if self._ahead is None else next(self._ahead, None)
        if found is None or found[0] != key:
            self._ahead = iter(self._workers(plan()))
            found = next(self._ahead)
        return found

    def _workers(self, plan: Any) -> "DataLoader[Any]":
        given = self.loader
        if given is None:
            raise ValueError("there is no DataLoader whose workers could read")
        return DataLoader(
            self._reader,
            batch_size=None,
            sampler=plan,
            collate_fn=_same,
            num_workers=given.num_workers,
            worker_init_fn=given.worker_init_fn,
            multiprocessing_context=given.multiprocessing_context,
            generator=torch.Generator(),
        )

    def _opened(self, item: Any) -> Triple:
        x, y, weight = unpack(item)
        check_rows(x, y)
        check_finite(x, "x")
        check_finite(y, "y")
        placed = place(x, y, weight, self.like)
        if self._check is not None:
            self._check(placed[1])
        return placed


class Reader(Dataset[Any]):
    """Whole batches by (key, index), so that one worker reads one batch under the batch's own seed."""

    def __init__(self, dataset: Dataset[Any], collate: Callable[[list[Any]], Any]) -> None:
        self.dataset, self.collate = dataset, collate

    def __getitem__(self, entry: tuple[tuple[Any, ...], Sequence[int]]) -> tuple[tuple[Any, ...], Any]:
        key, index = entry
        with isolated_everywhere(*key):
            return key, self.collate([self.dataset[i] for i in index])


def _same(item: Any) -> Any:
    return item


def unpack(item: Any) -> Triple:
    """(x, y) or (x, y, weight) as tensors."""
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        raise ValueError(
            "data must be (x, y) or (x, y, weight); put several inputs in a tuple or a dict: ((x1, x2), y)"
        )
    x, y, *weight = (tensors(part) for part in item)
    for name, part in zip(("y", "weight"), (y, *weight), strict=False):
        if not isinstance(part, Tensor):
            raise ValueError(f"{name} must be one tensor or array, got {type(part).__name__}; stack it first")
    return x, y, weight[0] if weight else None


def open_source(data: Any, device: torch.device, dtype: torch.dtype) -> Source:
    """Whatever the user gave as rows: tensors become resident, a Dataset or DataLoader is read as it goes."""
    like = torch.empty(0, device=device, dtype=dtype)
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, TensorDataset) and data.collate_fn is default_collate:
            return open_source(data.dataset, device, dtype)
        return _nonempty(Streamed(data.dataset, data, like))
    if isinstance(data, TensorDataset):
        return open_source(data.tensors, device, dtype)
    if isinstance(data, Dataset):
        return _nonempty(Streamed(data, None, like))
    x, y, weight = unpack(data)
    check_rows(x, y)
    check_finite(x, "x")
    check_finite(y, "y")
    return Resident(*place(x, y, weight, like))


def check_rows(x: Any, y: Tensor) -> None:
    """As many labels as inputs, and some."""
    if not y.dim() or len(y) == 0 or n_rows(x) == 0:
        raise ValueError("the data are empty; give at least one row")
    if n_rows(x) != len(y):
        raise ValueError(f"x has {n_rows(x)} rows and y has {len(y)}; they must agree")


def place(x: Any, y: Tensor, weight: Tensor | None, like: Tensor) -> Triple:
    """Rows on the device and in the type of `like`."""
    moved = move((x, y), like.device, like.dtype)
    return moved[0], moved[1], None if weight is None else _weights(weight, len(y)).to(like)


def _weights(weight: Tensor, n: int) -> Tensor:
    wanted = f"weights must be {n} finite numbers that are not negative"
    if weight.shape != (n,):
        raise ValueError(f"{wanted}, got shape {tuple(weight.shape)}")
    bad = weight[~torch.isfinite(weight) | (weight < 0)]
    if bad.numel():
        raise ValueError(f"{wanted}, got {bad[0].item():g}; leave such rows out")
    return weight


def _nonempty(source: Streamed) -> Streamed:
    if source.n == 0:
        raise ValueError("the data are empty; give at least one row")
    return source
