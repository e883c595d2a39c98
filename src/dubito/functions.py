"""Draws from a posterior as functions: the same n functions at every call and on any batching."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dubito import runtime
from dubito.inputs import Inputs, n_rows, signature
from dubito.layout import Layout
from dubito.net import Net
from dubito.posteriors.storage import Samples
from dubito.products import ByOneDNN
from dubito.rng import Rng, isolated_everywhere

ACTIVATION_BYTES = 64 << 20  # of the widest layer, per chunk of draws and rows, on the CPU
WEIGHT_BYTES = 64 << 20  # of weights read at a time, on the CPU
MOST_ROWS = 2048
CUDA_SHARE = 1 / 32  # of a GPU's free memory for either: a pass holds several such layers, and launches few kernels
CUDA_ROWS = 1 << 14
ALIGNED = 16  # bytes, at multiples of which products of matrices are fast on a GPU


class Functions(ABC):
    """n functions x -> outputs."""

    net: Net
    n: int
    alone: str = "this prediction has one; use an ensemble, dropout or a sampler, with draws > 1"  # why n is 1
    shares = False  # whether all have the same weights, so that what comes before their noise is computed once

    @abstractmethod
    def __call__(self, x: Inputs) -> Tensor:
        """The outputs (n, B, ...) of all n functions."""

    @abstractmethod
    def noise(self) -> dict[str, Tensor]:
        """The likelihood's own parameters in each draw, (n, ...)."""

    @abstractmethod
    def chunks(self, size: int) -> Iterator["Functions"]:
        """The same functions, so many at a time, loaded when their turn comes."""


class Masks:
    """The dropout masks of draws, from draw `first` on; `rates` (n, sites) where they are learned."""

    def __init__(self, rng: Rng, first: int = 0, rates: Tensor | None = None) -> None:
        self.rng, self.first, self.rates = rng, first, rates
        self._latest: tuple[Any, list[Tensor] | None] = (None, None)

    def part(self, start: int, stop: int) -> "Masks":
        """Those of some of the draws."""
        return Masks(self.rng, self.first + start, None if self.rates is None else self.rates[start:stop])

    def of(self, net: Net, x: Inputs, n: int) -> list[Tensor] | None:
        """Those of n draws for all rows of x, made once for batches of one shape; None where nothing drops."""
        key = n, n_rows(x), signature(x), torch.is_inference_mode_enabled()  # whose tensors no gradient passes
        if self._latest[0] != key:
            rates = None if self.rates is None else self.rates.to(net.device)
            self._latest = key, net.masks(x, n, self.rng, shared=True, first=self.first, rates=rates)
        return self._latest[1]


class WeightFunctions(Functions):
    """Networks given by stored weight vectors [net | likelihood], optionally each under its own dropout masks."""

    def __init__(
        self, net: Net, noise: Layout, samples: Samples, index: Sequence[int], masks: Masks | None = None
    ) -> None:
        self.net, self.layout, self.samples, self.index, self.masks = net, noise, samples, list(index), masks
        self.n = len(self.index)

    def __call__(self, x: Inputs) -> Tensor:
        return torch.cat([part(x) for part in self.chunks(weights_at_a_time(self.net))])

    def noise(self) -> dict[str, Tensor]:
        if not self.layout.size:
            return {}
        tails = [self.samples.get([i])[0][:, self.net.layout.size :] for i in self.index]
        return self.layout.split(torch.cat(tails).to(self.net.device))

    def chunks(self, size: int) -> Iterator[Functions]:
        room = weights_at_a_time(self.net)
        if self.samples.on_disk:
            room //= 2  # a second chunk is being read while the first is used
        size = max(1, min(size, room))
        starts, device = range(0, self.n, size), self.net.device
        parts = [self.index[start : start + size] for start in starts]
        read = runtime.ahead(self._read, parts) if self.samples.on_disk else map(self._read, parts)
        for start, (theta, buffers) in zip(starts, read, strict=True):
            at = {n: b.to(device, non_blocking=True) for n, b in buffers.items()}
            masks = None if self.masks is None else self.masks.part(start, start + size)
            theta = theta.to(device, non_blocking=True)
            held = aligned(theta) if device.type == "cuda" else theta
            yield LoadedFunctions(self.net, self.layout, held, at, masks)

    def _read(self, index: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        """Samples where a copy to the device does not hold up what the device is doing."""
        theta, buffers = self.samples.get(index)
        if self.net.device.type != "cuda" or theta.device.type != "cpu":
            return theta, buffers
        return theta.pin_memory(), {n: b.pin_memory() for n, b in buffers.items()}


class LoadedFunctions(Functions):
    """Networks whose weights are at hand, (n, D), optionally each under its own dropout masks."""

    def __init__(
        self, net: Net, noise: Layout, theta: Tensor, buffers: dict[str, Tensor], masks: Masks | None = None
    ) -> None:
        self.net, self.layout, self.theta, self.buffers, self.masks = net, noise, theta, buffers, masks
        self.n = len(theta)

    def __call__(self, x: Inputs) -> Tensor:
        weights = self.theta[:, : self.net.layout.size]
        if self.masks is None:
            return self.net.many(weights, x, "eval", self.buffers, timed=True)
        return self.net.many(weights, x, "dropout", self.buffers, self.masks.of(self.net, x, self.n), timed=True)

    def noise(self) -> dict[str, Tensor]:
        return self.layout.split(self.theta[:, self.net.layout.size :]) if self.layout.size else {}

    def chunks(self, size: int) -> Iterator[Functions]:
        for start in range(0, self.n, size):
            stop = start + size
            masks = None if self.masks is None else self.masks.part(start, stop)
            buffers = {n: b[start:stop] for n, b in self.buffers.items()}
            yield LoadedFunctions(self.net, self.layout, self.theta[start:stop], buffers, masks)


class MaskedFunctions(Functions):
    """One network [net | likelihood], (D,), under n dropout masks."""

    shares = True

    def __init__(
        self, net: Net, noise: Layout, theta: Tensor, buffers: dict[str, Tensor], masks: Masks, n: int
    ) -> None:
        self.net, self.layout, self.theta, self.buffers, self.masks, self.n = net, noise, theta, buffers, masks, n

    def __call__(self, x: Inputs) -> Tensor:
        weights, drawn = self.theta[: self.net.layout.size], self.masks.of(self.net, x, self.n)

        def masked(masks: list[Tensor] | None) -> Tensor:
            return self.net(weights, x, "dropout", self.buffers, masks)

        if drawn is None:
            return torch.stack([masked(None)] * self.n)
        args = (drawn,)
        together = self.net.vectorises_draws(masked, args, x, "dropout")
        with ByOneDNN() if self.net.device.type == "cpu" else contextlib.nullcontext():
            outputs: Tensor = runtime.over_members(masked, args, self.n, together)
        return outputs

    def noise(self) -> dict[str, Tensor]:
        tail = self.theta[self.net.layout.size :].expand(self.n, -1)
        return self.layout.split(tail) if self.layout.size else {}

    def chunks(self, size: int) -> Iterator[Functions]:
        for start in range(0, self.n, size):
            stop = min(self.n, start + size)
            masks = self.masks.part(start, stop)
            yield MaskedFunctions(self.net, self.layout, self.theta, self.buffers, masks, stop - start)


def aligned(theta: Tensor) -> Tensor:
    """Vectors (n, D) that each begin at a multiple of so many bytes, themselves where they do already."""
    each = ALIGNED // theta.element_size()
    if theta.stride(0) % each == 0:
        return theta
    return theta.new_empty(len(theta), -(-theta.shape[1] // each) * each)[:, : theta.shape[1]].copy_(theta)


def weights_at_a_time(net: Net) -> int:
    """How many weight vectors are read at once."""
    element = torch.empty(0, dtype=net.dtype).element_size()
    return max(1, room(net.device, WEIGHT_BYTES) // max(1, net.layout.size * element))


def room(device: torch.device, least: int) -> int:
    """Bytes for what a chunk holds: so many, or on a GPU its share of what is free where that is more."""
    return max(least, int(CUDA_SHARE * runtime.free_bytes(device))) if device.type == "cuda" else least


class Plan(NamedTuple):
    """How a prediction is cut: draws and rows at a time."""

    draws: int
    rows: int


def plan_chunks(functions: Functions, example: Inputs, batch_size: int | None, total: int | None = None) -> Plan:
    """Chunks that fit a memory budget, from what one row of the network holds at its widest; `total` rows if known."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    net = functions.net
    before, after = widths(net, example)
    wide, bytes_at_once = max(before, after), room(net.device, ACTIVATION_BYTES)
    most = min(MOST_ROWS if net.device.type == "cpu" else CUDA_ROWS, total or CUDA_ROWS)
    if functions.shares:  # all draws of a few rows, so that what they share is computed, and held, once
        draws = max(1, min(functions.n, (bytes_at_once // (batch_size or 1) - before) // max(1, after)))
        return Plan(draws, batch_size or max(1, min(most, bytes_at_once // (before + draws * after))))
    rows = batch_size or max(1, min(most, bytes_at_once // wide))
    draws = max(1, bytes_at_once // (wide * rows))
    return Plan(min(functions.n, weights_at_a_time(net), draws), rows)


def widest(net: Net, example: Inputs) -> int:
    """Bytes of the largest input plus output of any layer, for one row; wrong inputs are refused, dropout is found."""
    return max(widths(net, example))


class Widths(NamedTuple):
    """Bytes of the largest input plus output of any layer for one row, before anything is dropped and from then on."""

    before: int
    after: int


def widths(net: Net, example: Inputs) -> Widths:
    """By a pass that is looked at; wrong inputs are refused, dropout is found."""
    sizes: dict[bool, list[int]] = {False: [1], True: [0]}
    masks = _Asked()

    def note(module: torch.nn.Module, args: tuple[object, ...], output: object) -> None:
        tensors = [t for t in (*args, output) if isinstance(t, Tensor)]
        sizes[masks.asked].append(sum(t.nbytes for t in tensors))

    try:
        net.sites(example)  # two rows: not what is to be measured
        masks.extend(mask[0] for mask in net.masks(example, 1, Rng(0), shared=True) or ())
        hooks = [m.register_forward_hook(note) for m in net.module.modules()]
        try:
            with torch.no_grad(), isolated_everywhere("widths"):
                held = runtime.member(net.buffers(1), 0)  # copies: what moves in training moves in these
                net(net.theta(), example, "dropout" if masks else "eval", held, masks or None)
        finally:
            for hook in hooks:
                hook.remove()
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        rows = ", ".join(f"{shape} {str(dtype).removeprefix('torch.')}" for shape, dtype in signature(example))
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"the network does not accept rows of {rows} ({why}); give x the shape and type it expects"
        ) from error
    return Widths(max(sizes[False]), max(sizes[True]))


class _Asked(list[Tensor]):
    """Masks that know whether one was asked for."""

    asked = False

    def __getitem__(self, index: Any) -> Any:
        self.asked = True
        return super().__getitem__(index)
