"""Weight samples in memory and on disk.

On disk a sample set is a folder of safetensors shards. A shard is laid out at its full size and filled row by row; the
manifest says how many rows hold. So a chain is written as it is drawn, opened memory-mapped, and readable at every
moment, whatever happens to the process that writes it.
"""

import errno
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

SHARD_BYTES = 64 << 20
PART_BYTES = 4 << 20  # of vectors read at a time for averages and diagnostics
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
THETA, BUFFER = "theta", "buffer/"


class Damaged(ValueError):
    """A posterior folder that cannot be read, and why."""


class Samples(ABC):
    """rows x chains weight vectors of length D, each with its running statistics."""

    rows: int
    chains: int
    on_disk: bool = False  # whether it takes time to read them

    def __len__(self) -> int:
        return self.rows * self.chains

    @abstractmethod
    def get(self, index: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        """Samples by number (row * chains + chain): vectors (n, D) and statistics (n, ...)."""

    def part(self, rows: slice = slice(None), chains: slice = slice(None)) -> "Samples":
        """Some rows of some chains, left where they are."""
        return PartSamples(self, range(self.rows)[rows], range(self.chains)[chains])

    def chain(self, index: int) -> "Samples":
        """One of the chains, left where it is."""
        if not 0 <= index < self.chains:
            raise ValueError(f"there is no member {index} of {self.chains}; they are counted from 0")
        return self.part(chains=slice(index, index + 1))

    def pieces(self) -> Iterator[Tensor]:
        """All vectors, a few at a time."""
        size = max(1, PART_BYTES // max(1, self.get([0])[0].nbytes))
        for start in range(0, len(self), size):
            yield self.get(range(start, min(start + size, len(self))))[0]

    def coordinates(self, columns: Sequence[int]) -> Tensor:
        """(chains, rows, columns): the paths of some weights, for diagnostics."""
        picked = [part[:, list(columns)] for part in self.pieces()]
        return torch.cat(picked).view(self.rows, self.chains, -1).transpose(0, 1).contiguous()


class MemorySamples(Samples):
    """Samples held as tensors (rows, chains, ...)."""

    def __init__(self, theta: Tensor, buffers: Mapping[str, Tensor] | None = None) -> None:
        self.theta, self.buffers = theta, dict(buffers or {})
        self.rows, self.chains = theta.shape[:2]

    def get(self, index: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        at: Any = torch.as_tensor(list(index), device=self.theta.device)
        if len(index) and list(index) == list(range(index[0], index[0] + len(index))):
            at = slice(index[0], index[0] + len(index))  # a view, not a copy
        return self.theta.flatten(0, 1)[at], {n: b.flatten(0, 1)[at] for n, b in self.buffers.items()}

    def part(self, rows: slice = slice(None), chains: slice = slice(None)) -> Samples:
        def cut(held: Tensor) -> Tensor:  # such that `get` need not copy: a view, where one can be had
            some = held[rows, chains]
            return some.flatten(0, 1).view(some.shape)

        return MemorySamples(cut(self.theta), {n: cut(b) for n, b in self.buffers.items()})


class StoredSamples(Samples):
    """Samples in the shards of a folder, read where and when they are asked for."""

    on_disk = True

    def __init__(self, folder: Path, manifest: Mapping[str, Any], size: int) -> None:
        self.folder, self.size, self._open = folder, size, dict[int, Any]()
        try:
            self.rows, self.chains = int(manifest["rows"]), int(manifest["chains"])
            self.capacity, self.names = int(manifest["shard_rows"]), list(manifest["tensors"])
            if min(self.rows, self.chains, self.capacity) < 1 or THETA not in self.names:
                raise ValueError("a number in it is impossible")
        except (TypeError, ValueError) as error:
            raise Damaged(f"the manifest in {folder} is damaged ({error}); restore it or fit again") from error
        for number in range(-(-self.rows // self.capacity)):
            self._check(number)

    def get(self, index: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        found = {name: [self._read(name, i) for i in index] for name in self.names}
        stacked = {name: torch.stack(parts) for name, parts in found.items()}
        theta = stacked.pop(THETA)
        return theta, {name.removeprefix(BUFFER): value for name, value in stacked.items()}

    def _read(self, name: str, index: int) -> Tensor:
        row, chain = divmod(int(index), self.chains)
        number, inside = divmod(row, self.capacity)
        part: Tensor = self._shard(number).get_slice(name)[inside : inside + 1, chain : chain + 1]
        return part[0, 0]

    def _check(self, number: int) -> None:
        """A shard must hold the rows that the manifest promises, of the network's size."""
        promised = min(self.capacity, self.rows - number * self.capacity)
        shard = self._shard(number)
        for name in self.names:
            try:
                rows, chains, *shape = shard.get_slice(name).get_shape()
            except (SafetensorError, ValueError) as error:
                raise self._damaged(number, str(error)) from error
            if rows < promised or chains != self.chains or (name == THETA and shape != [self.size]):
                found = f"{name} is {[rows, chains, *shape]} where {[promised, self.chains, self.size]} was expected"
                raise self._damaged(number, found)

    def _damaged(self, number: int, why: str) -> Damaged:
        return Damaged(_damaged(self.folder / shard_name(number), why))

    def _shard(self, number: int) -> Any:
        if number not in self._open:
            self._open[number] = open_shard(self.folder / shard_name(number))
        return self._open[number]


class PartSamples(Samples):
    """Some rows of some chains of other samples, read from those."""

    def __init__(self, whole: Samples, rows: Sequence[int], chains: Sequence[int]) -> None:
        self.whole, self.on_disk = whole, whole.on_disk
        self._rows, self._chains = rows, chains
        self.rows, self.chains = len(rows), len(chains)

    def get(self, index: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        places = (divmod(int(i), self.chains) for i in index)
        return self.whole.get([self._rows[row] * self.whole.chains + self._chains[chain] for row, chain in places])


class JoinedSamples(Samples):
    """Chains of several runs side by side, cut to the shortest."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        self.parts = list(parts)
        self.rows, self.chains = min(p.rows for p in parts), sum(p.chains for p in parts)
        self._home = [(part, chain) for part in self.parts for chain in range(part.chains)]
        self.on_disk = any(part.on_disk for part in self.parts)

    def get(self, index: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        picked = [self._one(int(i)) for i in index]
        names = picked[0][1]
        return torch.cat([t for t, _ in picked]), {n: torch.cat([b[n] for _, b in picked]) for n in names}

    def _one(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        row, chain = divmod(index, self.chains)
        part, inside = self._home[chain]
        return part.get([row * part.chains + inside])


def open_shard(path: Path) -> Any:
    """A shard to read from; what is missing, cut short or no shard is told so."""
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing; restore it or fit again") from error
    except (SafetensorError, OSError) as error:
        raise Damaged(_damaged(path, str(error))) from error


def _damaged(path: Path, why: str) -> str:
    return f"{path} is damaged or cut short ({why}); restore it or fit again"


def shard_name(number: int) -> str:
    """The file of a shard."""
    return f"samples-{number:05d}.safetensors"


class SampleWriter:
    """Appends rows to a folder; the number of rows that hold is told by whoever writes the manifest."""

    def __init__(self, folder: Path, example: Mapping[str, Tensor], rows: int = 0) -> None:
        self.folder, self.rows = folder, rows
        self.shapes = {name: (DTYPES[t.dtype], tuple(t.shape), t.nbytes) for name, t in example.items()}
        self.row_bytes = sum(size for _, _, size in self.shapes.values())
        self.capacity = max(1, SHARD_BYTES // max(1, self.row_bytes))
        self._laid: dict[Path, int] = {}  # rows that a shard has room for
        if rows:  # of an earlier sitting: all must be there, as room for them is made where they are missing
            chains, size = example[THETA].shape
            StoredSamples(folder, {**self.layout(), "chains": chains}, size)

    def layout(self) -> dict[str, Any]:
        """What a reader needs to know about the shards."""
        return {"rows": self.rows, "shard_rows": self.capacity, "tensors": list(self.shapes)}

    def append(self, row: Mapping[str, Tensor]) -> None:
        """Write one row {name: (chains, ...)} behind the last."""
        number, inside = divmod(self.rows, self.capacity)
        path = self.folder / shard_name(number)
        if inside >= self._laid.get(path, 0):
            self._prepare(path, inside)
        laid = self._laid[path]
        offset = len(self._header(laid))
        with path.open("r+b") as file:
            for name, (_, _, size) in self.shapes.items():
                data = row[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
                _write(file.fileno(), data.data, offset + inside * size)
                offset += laid * size
        self.rows += 1

    def finish(self) -> None:
        """Cut the last shard to what it holds."""
        number, inside = divmod(self.rows, self.capacity)
        if inside:
            self._resize(self.folder / shard_name(number), inside)
            self._laid.clear()

    def _prepare(self, path: Path, inside: int) -> None:
        """Lay a shard out at its full size, keeping the rows it has; never is a half-made one under its name."""
        rows = max(inside + 1, self._allowed())
        if path.exists():
            open_shard(path)
            rows = max(rows, _shard_rows(path))
            self._resize(path, rows)
        else:
            partial = path.with_suffix(".partial")
            self._lay_out(partial, rows)
            partial.replace(path)
        self._laid[path] = rows

    def _allowed(self) -> int:
        """The rows of a full shard, or as many as a file may have where its size is limited (ulimit -f)."""
        room = _file_limit() - len(self._header(self.capacity))
        return min(self.capacity, room // max(1, self.row_bytes))

    def _resize(self, path: Path, rows: int) -> None:
        """Rewrite a shard beside itself with another number of rows, then put it in place."""
        partial = path.with_suffix(".partial")
        old_rows = _shard_rows(path)
        if old_rows == rows:
            return
        self._lay_out(partial, rows)
        with path.open("rb") as source, partial.open("r+b") as out:
            old, new = 8 + int.from_bytes(source.read(8), "little"), len(self._header(rows))
            for _, _, size in self.shapes.values():
                _copy(source, out, old, new, size * min(rows, old_rows))
                old, new = old + old_rows * size, new + rows * size
        partial.replace(path)

    def _lay_out(self, path: Path, rows: int) -> None:
        header = self._header(rows)
        with path.open("wb") as file:
            _write(file.fileno(), memoryview(header), 0)
            file.truncate(len(header) + rows * self.row_bytes)

    def _header(self, rows: int) -> bytes:
        entries, offset = {}, 0
        for name, (dtype, shape, size) in self.shapes.items():
            end = offset + rows * size
            entries[name] = {"dtype": dtype, "shape": [rows, *shape], "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text


def _shard_rows(path: Path) -> int:
    """The rows that a shard is laid out for."""
    with path.open("rb") as file:
        header = file.read(int.from_bytes(file.read(8), "little"))
    return int(json.loads(header)[THETA]["shape"][0])


def _file_limit() -> int:
    """The most bytes that a file of this process may have."""
    try:
        import resource
    except ImportError:  # not on Windows
        return sys.maxsize
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        written = os.pwrite(descriptor, data[done:], offset + done)
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += written


def _copy(source: BinaryIO, out: BinaryIO, start: int, goal: int, size: int) -> None:
    source.seek(start)
    out.seek(goal)
    while size > 0:
        data = source.read(min(size, 16 << 20))
        out.write(data)
        size -= len(data)
