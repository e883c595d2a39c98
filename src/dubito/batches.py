"""Training data as batches that depend on (seed, step) alone, so that a run can continue anywhere."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from dubito.inputs import check_finite, move, n_rows, plain, rows, tensors
from dubito.rng import generator, isolated
from dubito.target import Batch

HASHED_ROWS = 4096  # rows of a large data set that enter its fingerprint


class Source:
    """Rows (x, y, weight) by index."""

    n: int

    def take(self, index: Tensor) -> tuple[Any, Tensor, Tensor | None]:
        """Some rows, as tensors."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Tells data apart, by content."""
        index = torch.linspace(0, self.n - 1, min(self.n, HASHED_ROWS)).long().unique()
        digest = hashlib.sha256(str(self.n).encode())
        for leaf in tree_leaves(plain_triple(self.take(index))):
            digest.update(str((tuple(leaf.shape), leaf.dtype)).encode())
            digest.update(leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]


def plain_triple(item: tuple[Any, Tensor, Tensor | None]) -> list[Any]:
    """Without the missing weight."""
    return [plain(part) for part in item if part is not None]


class Resident(Source):
    """Tensors that stay on the device."""

    def __init__(self, x: Any, y: Tensor, weight: Tensor | None) -> None:
        self.x, self.y, self.weight, self.n = x, y, weight, len(y)

    def take(self, index: Tensor) -> tuple[Any, Tensor, Tensor | None]:
        weight = None if self.weight is None else self.weight[index]
        return rows(self.x, index), self.y[index], weight


class Streamed(Source):
    """A map-style Dataset, with the collate function and workers of a DataLoader where one was given."""

    def __init__(self, dataset: Dataset[Any], collate: Callable[[list[Any]], Any], workers: int) -> None:
        self.dataset, self.collate, self.workers = dataset, collate, workers
        self.n = len(dataset)  # type: ignore[arg-type]

    def take(self, index: Tensor) -> tuple[Any, Tensor, Tensor | None]:
        return unpack(self.collate([self.dataset[i] for i in index.tolist()]))


def unpack(item: Any) -> tuple[Any, Tensor, Tensor | None]:
    """(x, y) or (x, y, weight) as tensors."""
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        raise ValueError(
            "data must be (x, y) or (x, y, weight); put several inputs in a tuple or a dict: ((x1, x2), y)"
        )
    x, y, *weight = item
    return tensors(x), tensors(y), tensors(weight[0]) if weight else None


def open_source(data: Any, device: torch.device, dtype: torch.dtype) -> Source:
    """Whatever the user gave as rows: tensors become resident, a Dataset or DataLoader is read as it goes."""
    if isinstance(data, DataLoader):
        if isinstance(data.dataset, TensorDataset) and data.collate_fn is default_collate:
            return open_source(data.dataset, device, dtype)
        return _nonempty(Streamed(data.dataset, data.collate_fn, data.num_workers))
    if isinstance(data, TensorDataset):
        return open_source(data.tensors, device, dtype)
    if isinstance(data, Dataset):
        return _nonempty(Streamed(data, default_collate, 0))
    x, y, weight = unpack(data)
    if not y.dim() or len(y) == 0 or n_rows(x) == 0:
        raise ValueError("the data are empty; give at least one row")
    if n_rows(x) != len(y):
        raise ValueError(f"x has {n_rows(x)} rows and y has {len(y)}; they must agree")
    check_finite(x, "x")
    check_finite(y, "y")
    moved = move((x, y), device, dtype)
    return Resident(moved[0], moved[1], None if weight is None else _weights(weight, len(y)).to(device, dtype))


def _weights(weight: Tensor, n: int) -> Tensor:
    if weight.shape != (n,) or not bool(torch.isfinite(weight).all()) or bool((weight < 0).any()):
        raise ValueError(f"weights must be {n} finite numbers that are not negative, got shape {tuple(weight.shape)}")
    return weight


def _nonempty(source: Streamed) -> Streamed:
    if source.n == 0:
        raise ValueError("the data are empty; give at least one row")
    return source


class Batches:
    """Batch `step` of an endless shuffled stream: rows reshuffled each epoch by (seed, epoch), the rest dropped."""

    def __init__(
        self,
        source: Source,
        batch_size: int,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        augment: Callable[[Any, torch.Generator], Any] | None = None,
    ) -> None:
        self.source, self.size, self.seed = source, batch_size, seed
        self.device, self.dtype, self.augment = device, dtype, augment
        self.per_epoch = source.n // batch_size
        self._epoch, self._order = -1, torch.empty(0)
        self._whole: Batch | None = None

    def __call__(self, step: int) -> Batch:
        if self.size == self.source.n and isinstance(self.source, Resident) and self.augment is None:
            return self._everything()
        index = self.index(step)
        if isinstance(self.source, Resident):
            x, y, weight = self.source.take(index)
        else:
            with isolated(self.seed, "fetch", step):
                x, y, weight = self.source.take(index)
            x, y = move((x, y), self.device, self.dtype)
            check_finite((x, y), "a batch")
            weight = None if weight is None else weight.to(self.device, self.dtype)
        if self.augment is not None:
            x = self.augment(x, generator(self.device, self.seed, "augment", step))
        return Batch(x, y, index, weight)

    def _everything(self) -> Batch:
        """The whole data in their own order: the same batch at every step."""
        if self._whole is None:
            index = torch.arange(self.source.n, device=self.device)
            self._whole = Batch(*self.source.take(index)[:2], index, self.source.take(index)[2])
        return self._whole

    def index(self, step: int) -> Tensor:
        """The rows of a step."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            order = torch.randperm(self.source.n, generator=generator("cpu", self.seed, "order", epoch))
            self._epoch, self._order = epoch, order.to(self.device)
        return self._order[place * self.size : (place + 1) * self.size]


class Stream:
    """An IterableDataset: batches come as they come, and `n_data` says how many rows they stand for."""

    def __init__(self, loader: Any, batch_size: int, n_data: int, device: torch.device, dtype: torch.dtype) -> None:
        self.loader = loader if isinstance(loader, DataLoader) else DataLoader(loader, batch_size)
        self.n, self.size, self.device, self.dtype = n_data, batch_size, device, dtype
        self.per_epoch = max(1, n_data // batch_size)
        self._items = self._endless()

    def __call__(self, step: int) -> Batch:
        x, y, weight = unpack(next(self._items))
        x, y = move((x, y), self.device, self.dtype)
        check_finite((x, y), "a batch")
        index = torch.zeros(len(y), dtype=torch.long, device=self.device)
        return Batch(x, y, index, None if weight is None else weight.to(self.device, self.dtype))

    def _endless(self) -> Iterator[Any]:
        while True:
            empty = True
            for item in self.loader:
                empty = False
                yield item
            if empty:
                raise ValueError("the data are empty; the iterable gave no rows")


def is_stream(data: Any) -> bool:
    """Whether data can only be read front to back."""
    return isinstance(getattr(data, "dataset", data), IterableDataset)
