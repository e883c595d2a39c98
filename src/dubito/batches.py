"""Training data as batches that depend on (seed, step) alone, so that a run can continue anywhere."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from dubito.inputs import check_finite
from dubito.rng import generator, isolated_everywhere
from dubito.sources import Check, Resident, Source, Streamed, Triple, check_rows, place, unpack
from dubito.target import Batch

Augment = Callable[[Any, torch.Generator], Any]  # (x, generator) -> x


class Batches:
    """Batch `step` of an endless shuffled stream: rows reshuffled each epoch by (seed, epoch), the rest dropped."""

    def __init__(
        self,
        source: Source,
        batch_size: int,
        seed: int,
        device: torch.device,
        augment: Augment | None = None,
    ) -> None:
        self.source, self.size, self.seed = source, batch_size, seed
        self.device, self.augment = device, augment
        self.per_epoch = source.n // batch_size
        self._epoch, self._order = -1, torch.empty(source.n, dtype=torch.long, device=device)
        self._whole: Batch | None = None

    @property
    def n(self) -> int:
        """How many rows there are."""
        return self.source.n

    def __call__(self, step: int) -> Batch:
        if self.size == self.n and self.gathers:
            return self._everything()
        index = self.index(step)
        if isinstance(self.source, Streamed):
            x, y, weight = self.source.read(lambda: self._plan(step))
        else:
            x, y, weight = self.source.take(index)
        if self.augment is not None:
            x = self.augment(x, generator(self.device, self.seed, "augment", step))
        return Batch(x, y, index, weight)

    @property
    def gathers(self) -> bool:
        """Whether a recorded step can pick its own rows on the device."""
        return isinstance(self.source, Resident) and self.augment is None

    def gather(self, step: Tensor) -> Batch:
        """The batch of a step in whose epoch `index` has been asked for, known only on the device."""
        if self.size == self.n:
            return self._everything()
        place = step % self.per_epoch * self.size
        index = self._order[place + torch.arange(self.size, device=self.device)]
        x, y, weight = self.source.take(index)
        return Batch(x, y, index, weight)

    def verify(self, check: Check) -> None:
        """Have labels checked."""
        self.source.verify(check)

    def labels(self, first: Batch) -> Tensor:
        """All labels where they are at hand, otherwise those of the first batch."""
        return self.source.y if isinstance(self.source, Resident) else first.y

    def _plan(self, step: int) -> Iterator[tuple[tuple[Any, ...], list[int]]]:
        """Which rows each step reads, from one on."""
        while True:
            yield (self.seed, "fetch", step), self.index(step).tolist()
            step += 1

    def _everything(self) -> Batch:
        """The whole data in their own order: the same batch at every step."""
        if self._whole is None:
            index = torch.arange(self.n, device=self.device)
            x, y, weight = self.source.take(index)
            self._whole = Batch(x, y, index, weight)
        return self._whole

    def index(self, step: int) -> Tensor:
        """The rows of a step."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._order.copy_(torch.randperm(self.n, generator=generator("cpu", self.seed, "order", epoch)))
            self._epoch = epoch
        return self._order[place * self.size : (place + 1) * self.size]


class Stream:
    """An IterableDataset: batches come as they come, and `n_data` says how many rows they stand for."""

    def __init__(
        self, data: Any, batch_size: int, n_data: int, seed: int, like: Tensor, augment: Augment | None = None
    ) -> None:
        self.loader = _batched(data, batch_size)
        self.n, self.size, self.seed, self.like, self.augment = n_data, batch_size, seed, like, augment
        self.per_epoch = max(1, n_data // batch_size)
        self._items = self._endless()
        self._check: Check | None = None

    @property
    def gathers(self) -> bool:
        """Whether a recorded step can pick its own rows: they come from outside."""
        return False

    def __call__(self, step: int) -> Batch:
        with isolated_everywhere(self.seed, "stream", step):
            x, y, weight = next(self._items)
        check_rows(x, y)
        check_finite((x, y), "a batch")
        x, y, weight = place(x, y, weight, self.like)
        if self._check is not None:
            self._check(y)
        if self.augment is not None:
            x = self.augment(x, generator(y.device, self.seed, "augment", step))
        return Batch(x, y, torch.zeros(len(y), dtype=torch.long, device=y.device), weight)

    def verify(self, check: Check) -> None:
        """Have labels checked as they come."""
        self._check = check

    def labels(self, first: Batch) -> Tensor:
        """Those of the first batch."""
        return first.y

    def _endless(self) -> Iterator[Triple]:
        """One pass after another; the rest of a pass that fills no batch is dropped, unless it is all there is."""
        while True:
            given = 0
            for item in self.loader:
                found = unpack(item)
                if given and self.loader.batch_size is not None and len(found[1]) < self.size:
                    continue
                given += 1
                yield found
            if not given:
                raise ValueError("the data are empty; the iterable gave no rows")


def _batched(data: Any, size: int) -> "DataLoader[Any]":
    """A loader of batches of this size; one that leaves batching to its data set stays as it is."""
    if not isinstance(data, DataLoader):
        return DataLoader(data, size)
    if data.batch_size in (None, size):
        return data
    return DataLoader(
        data.dataset,
        size,
        collate_fn=data.collate_fn,
        num_workers=data.num_workers,
        worker_init_fn=data.worker_init_fn,
        multiprocessing_context=data.multiprocessing_context,
        generator=data.generator,
    )


def is_stream(data: Any) -> bool:
    """Whether data can only be read front to back."""
    return isinstance(getattr(data, "dataset", data), IterableDataset)
