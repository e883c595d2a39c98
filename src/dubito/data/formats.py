"""Readers of the published file formats: files in, arrays out.

Every reader takes the paths of one source and the index of the wanted split (0 where there is only one) and returns a
`Raw`. Images stay uint8 here. A damaged file raises what its decoder raises; `dubito.data.load` turns that into one
sentence that names the file.
"""

import csv
import gzip
import io
import math
import tarfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

Paths = tuple[Path, ...]
Part = Literal["train", "test"]

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CIFAR_RECORD = 1 + 3 * 32 * 32


class Raw(NamedTuple):
    """Inputs and labels as stored, and the names of the classes where the files tell them."""

    x: NDArray[Any]
    y: NDArray[Any]
    classes: tuple[str, ...] = ()


def read_idx(path: Path) -> NDArray[Any]:
    """One gzipped array in the idx format of LeCun et al.: two zero bytes, type, rank, big-endian sizes, values."""
    content = gzip.decompress(path.read_bytes())
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise ValueError("this is no idx file")
    dtype, rank = np.dtype(_IDX_TYPES[content[2]]), content[3]
    shape = [int(size) for size in np.frombuffer(content, ">u4", count=rank, offset=4)]
    start = 4 + 4 * rank
    if len(content) != start + math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(content)} bytes do not hold an array of shape {shape}")
    values = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


def read_idx_pair(paths: Paths, split: int) -> Raw:
    """Images and labels in two idx files; a third file may name the classes, one line each (Omniglot)."""
    x, y = read_idx(paths[0]), read_idx(paths[1])
    if len(x) != len(y):
        raise ValueError(f"there are {len(x)} images but {len(y)} labels")
    if len(paths) < 3:
        return Raw(x, y)
    rows = [line.split("\t") for line in paths[2].read_text(encoding="utf-8").splitlines()]
    return Raw(x, y, tuple(f"{row[1]}/{row[2]}" for row in rows))


def read_cifar_residuals(paths: Paths, split: int) -> Raw:
    """CIFAR-10 batches as npz files of prediction residuals.

    Planes G, R-G, B-G modulo 256, differenced along columns and rows, so two running sums modulo 256 give them back.
    """
    images, labels = [], []
    for path in paths:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as batch:
            green, red, blue = batch["residual"].cumsum(-1, dtype=np.uint8).cumsum(-2, dtype=np.uint8)
            images.append(np.stack((red + green, green, blue + green), axis=1))
            labels.append(batch["labels"])
    return Raw(np.concatenate(images), np.concatenate(labels))


def read_cifar_train(paths: Paths, split: int) -> Raw:
    """The five training batches of the public archive cifar-10-binary.tar.gz."""
    return _read_cifar_binary(paths[0], [f"data_batch_{i}.bin" for i in range(1, 6)])


def read_cifar_test(paths: Paths, split: int) -> Raw:
    """The test batch of the public archive cifar-10-binary.tar.gz."""
    return _read_cifar_binary(paths[0], ["test_batch.bin"])


def _read_cifar_binary(path: Path, wanted: list[str]) -> Raw:
    batches: dict[str, NDArray[np.uint8]] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = Path(member.name).name
            if name in wanted and (file := archive.extractfile(member)):
                batches[name] = np.frombuffer(file.read(), np.uint8).reshape(-1, _CIFAR_RECORD)
    records = np.concatenate([batches[name] for name in wanted])
    return Raw(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0])


def grey28(raw: Raw) -> Raw:
    """RGB (N, 3, 32, 32) to grey (N, 28, 28): ITU-R 601 luma in Pillow's integers, then antialiased bilinear."""
    red, green, blue = (raw.x[:, channel].astype(np.uint32) for channel in range(3))
    luma = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    images = torch.from_numpy(luma.astype(np.uint8)).unsqueeze(1)
    small = interpolate(images, size=(28, 28), mode="bilinear", antialias=True)
    return Raw(small.squeeze(1).numpy(), raw.y, raw.classes)


def read_grey_residuals(paths: Paths, split: int) -> Raw:
    """CIFAR-10 residual batches turned into grey 28 x 28 images."""
    return grey28(read_cifar_residuals(paths, split))


def read_grey_test(paths: Paths, split: int) -> Raw:
    """The test batch of the public CIFAR-10 archive turned into grey 28 x 28 images."""
    return grey28(read_cifar_test(paths, split))


def read_numbers(path: Path) -> NDArray[np.float64]:
    """A text table of numbers separated by white space."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return np.array([line.split() for line in lines if line.strip()], dtype=np.float64)


def read_uci_npz(paths: Paths, split: int, part: Part) -> Raw:
    """One half of a standard split, from the npz file with the table and the stored indices."""
    with paths[0].open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        rows = arrays[f"index_{part}"][split].astype(np.int64)
        table, target = arrays["data"], int(arrays["index_target"][0])
        return Raw(table[rows][:, arrays["index_features"]], table[rows, target])


def read_uci_text(paths: Paths, split: int, part: Part) -> Raw:
    """One half of a standard split, from the bare table (target last), the permutation drawn as its authors drew it.

    Hernandez-Lobato and Adams (2015): numpy.random.RandomState(1), one permutation per split in turn, the first
    round(0.9 n) rows for training. That generator's stream is frozen by NumPy, so the splits are the published ones.
    """
    table = read_numbers(paths[0])
    rng = np.random.RandomState(1)
    for _ in range(split + 1):
        order = rng.choice(len(table), len(table), replace=False)
    cut = round(0.9 * len(table))
    rows = order[:cut] if part == "train" else order[cut:]
    return Raw(table[rows, :-1], table[rows, -1])


def read_mushroom(paths: Paths, split: int) -> Raw:
    """UCI Mushroom, one-hot: a column for each letter that occurs in each of the 22 attributes, letters sorted.

    From agaricus-lepiota.data, or the same rows gzipped under a header line. "?" (root unknown) counts as a letter.
    """
    content = paths[0].read_bytes()
    text = (gzip.decompress(content) if paths[0].suffix == ".gz" else content).decode("ascii")
    rows = [row for row in csv.reader(io.StringIO(text)) if row and row[0] != "class"]
    letters = np.array(rows)
    columns = [letters[:, j : j + 1] == np.unique(letters[:, j]) for j in range(1, letters.shape[1])]
    return Raw(np.concatenate(columns, axis=1).astype(np.float32), (letters[:, 0] == "p").astype(np.int64))


def read_digits(paths: Paths, split: int, part: Part) -> Raw:
    """scikit-learn's digits (test half of UCI optdigits), values 0..16 to [0, 1].

    Fixed stratified split: of each class, in the stored order, every fourth image is a test image.
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    rank = np.zeros(len(y), dtype=np.int64)
    for label in range(10):
        rank[y == label] = np.arange((y == label).sum())
    chosen = (rank % 4 == 3) == (part == "test")
    return Raw((x[chosen] / 16).reshape(-1, 1, 8, 8), y[chosen])
