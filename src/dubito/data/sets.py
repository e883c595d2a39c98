"""Named data sets as tensors: found in a folder, or downloaded into it."""

import difflib
import logging
import os
import re
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dubito.data.catalogue import SETS, Entry, Source
from dubito.data.errors import DataError
from dubito.data.fetch import fetch
from dubito.data.formats import Part, Raw

_LOG = logging.getLogger("dubito.data")
_ARCHIVES = (zlib.error, zipfile.BadZipFile, tarfile.TarError)
_DAMAGE = (OSError, EOFError, ValueError, KeyError, IndexError, RuntimeError, *_ARCHIVES)


class Split(NamedTuple):
    """Inputs and targets of one part, row by row."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class DataSet:
    """A named set. A part that does not exist or could not be had is None; `notes` says why."""

    name: str
    train: Split | None
    test: Split | None
    classes: tuple[str, ...]
    description: str
    licence: str
    citation: str
    notes: tuple[str, ...] = ()

    def part(self, which: Part) -> Split:
        """The training or the test half, or the reason why there is none as an error."""
        split = self.train if which == "train" else self.test
        if split is None:
            other = "test" if which == "train" else "train"
            raise DataError(next(iter(self.notes), f"{self.name} has no {which} part: all its rows are in '{other}'"))
        return split

    def __repr__(self) -> str:
        halves = (f"{half}={tuple(s.x.shape)}" for half, s in (("train", self.train), ("test", self.test)) if s)
        return " ".join((f"DataSet({self.name}:", *halves)) + f", {len(self.classes)} classes)"


def names() -> tuple[str, ...]:
    """The names `load` knows."""
    return tuple(SETS)


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Where sets are looked for: the argument, else DUBITO_DATA, else dubito/ in the user's cache folder."""
    if folder is not None:
        return Path(folder)
    if chosen := os.environ.get("DUBITO_DATA"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "dubito"


def available(folder: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """The names of which at least one part can be loaded right now without a network."""
    root = data_folder(folder)
    return tuple(
        name for name, entry in SETS.items() if any(_present(sources, root) for sources in entry.parts.values())
    )


def load(
    name: str, folder: str | os.PathLike[str] | None = None, download: bool = True, split: int | None = None
) -> DataSet:
    """A named set as tensors, its missing files downloaded unless told otherwise.

    Images: float32 in [0, 1], (N, C, H, W), labels int64. UCI: float32 (N, F) and (N,), not standardised; `split`
    chooses the standard split (0 when left out). A half that is not to be had is None; a note and a warning say why.
    """
    name = _canonical(name)
    entry, root = SETS[name], data_folder(folder)
    index = _split_index(name, entry.splits, split)
    found, notes = _locate(name, entry, root, download)
    if not found:
        raise DataError(notes[0])
    for note in notes:
        _LOG.warning(note)
    raws = {part: _read(name, source, root, index) for part, source in found.items()}
    classes = next((raw.classes for raw in raws.values() if raw.classes), entry.classes)
    train, test = (_tensors(raws[part]) if part in raws else None for part in ("train", "test"))
    return DataSet(name, train, test, classes, entry.description, entry.licence, entry.citation, tuple(notes))


def standardise(train: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Each tensor minus the training mean, over the training standard deviation; constant features are only centred."""
    mean, std = train.mean(dim=0), train.std(dim=0, correction=0)
    std = torch.where(train.amax(dim=0) == train.amin(dim=0), torch.ones_like(std), std)
    return tuple((x - mean) / std for x in (train, *others))


def _canonical(name: str) -> str:
    known = {_squeeze(candidate): candidate for candidate in SETS}
    if _squeeze(name) in known:
        return known[_squeeze(name)]
    close = difflib.get_close_matches(_squeeze(name), known, n=1, cutoff=0.5)
    hint = f", perhaps you meant {known[close[0]]!r}" if close else ""
    raise DataError(f"there is no data set {name!r}{hint}; the names are {', '.join(SETS)}.")


def _squeeze(name: str) -> str:
    return re.sub(r"[-_/\s]", "", name.lower())


def _split_index(name: str, splits: int, split: int | None) -> int:
    if split is None:
        return 0
    if not splits:
        raise DataError(f"{name} has one fixed division, so leave split={split} out.")
    if split not in range(splits):
        raise DataError(f"{name} has the standard splits 0 to {splits - 1}, got split={split}.")
    return int(split)


def _present(sources: tuple[Source, ...], root: Path) -> Source | None:
    return next((s for s in sources if all((root / file).is_file() for file in s.files)), None)


def _locate(name: str, entry: Entry, root: Path, download: bool) -> tuple[dict[Part, Source], list[str]]:
    """A readable source for each part that has one, and for each other part a sentence why not."""
    found: dict[Part, Source] = {}
    notes: list[str] = []
    for part, sources in entry.parts.items():
        source = _present(sources, root)
        if source is None and download and not notes:
            try:
                source = _download(sources, root)
            except DataError as error:
                notes.append(f"{name} has no {part} part here: {error}")
                continue
        if source is None:
            notes.append(_absent(name, part, entry, root))
        else:
            found[part] = source
    return found, notes


def _download(sources: tuple[Source, ...], root: Path) -> Source | None:
    source = next((s for s in sources if s.remotes), None)
    for file, remote in zip(source.files, source.remotes, strict=True) if source else ():
        if not (root / file).is_file():
            fetch(remote, root / file)
    return source


def _absent(name: str, part: Part, entry: Entry, root: Path) -> str:
    sources = entry.parts[part]
    wanted = next((s for s in sources if s.remotes), sources[-1])
    files = " and ".join(str(root / file) for file in wanted.files)
    cure = "allow the download or" if wanted.remotes else "no checksum is known, so fetch it yourself and"
    return f"{name} has no {part} part in {root}: {cure} put {files} there (from {entry.home}), or set DUBITO_DATA."


def _read(name: str, source: Source, root: Path, split: int) -> Raw:
    paths = tuple(root / file for file in source.files)
    try:
        return source.read(paths, split)
    except _DAMAGE as error:
        listed = ", ".join(map(str, paths))
        raise DataError(f"cannot read {listed} ({error}): the data are damaged, delete them and load again.") from error
    except ImportError as error:
        raise DataError(f"reading {name} needs the package {error.name}: install it.") from error


def _tensors(raw: Raw) -> Split:
    x = np.divide(raw.x, 255, dtype=np.float32) if raw.x.dtype == np.uint8 else raw.x.astype(np.float32)
    if x.ndim == 3:
        x = x[:, None]
    y = raw.y.astype(np.float32 if raw.y.dtype.kind == "f" else np.int64)
    return Split(torch.from_numpy(x), torch.from_numpy(y))
