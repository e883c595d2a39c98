"""Named sets from made files: layout, shapes, scaling, splits, notes, and what is said when something is wrong."""

import gzip
import io
import logging
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dubito import data
from dubito.data import DataError
from dubito.data.catalogue import SETS, Source
from dubito.data.fetch import Remote, digest

RNG = np.random.default_rng(0)


def write_idx(path, array, code=0x08, dtype="u1"):
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = b"".join(int(size).to_bytes(4, "big") for size in array.shape)
    path.write_bytes(gzip.compress(bytes([0, 0, code, array.ndim]) + sizes + array.astype(dtype).tobytes()))


def write_images(folder, prefix, n=5):
    images = RNG.integers(0, 256, (n, 28, 28))
    labels = RNG.integers(0, 10, n)
    write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", images)
    write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", labels)
    return images, labels


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Sets point at an address where nobody answers; tests that download set up their own."""

    def closed(source):
        return replace(source, remotes=tuple(replace(r, urls=("http://127.0.0.1:9/file",)) for r in source.remotes))

    for name, entry in SETS.items():
        parts = {part: tuple(closed(s) for s in sources) for part, sources in entry.parts.items()}
        monkeypatch.setitem(SETS, name, replace(entry, parts=parts))


def test_digits_are_embedded_and_split_by_class():
    digits = data.load("digits", download=False)
    assert digits.train.x.shape[1:] == digits.test.x.shape[1:] == (1, 8, 8)
    assert len(digits.train.x) + len(digits.test.x) == 1797
    assert digits.train.x.dtype == torch.float32 and digits.train.y.dtype == torch.int64
    assert digits.train.x.min() == 0 and digits.train.x.max() == 1
    counts = torch.bincount(digits.train.y) + torch.bincount(digits.test.y)
    assert torch.equal(torch.bincount(digits.test.y), counts // 4)
    assert digits.classes == tuple("0123456789") and digits.notes == ()
    assert repr(digits) == "DataSet(digits: train=(1352, 1, 8, 8) test=(445, 1, 8, 8), 10 classes)"


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist"])
def test_both_halves_of_an_idx_set(tmp_path, name):
    images, labels = write_images(tmp_path / name, "train")
    write_images(tmp_path / name, "t10k", n=3)
    loaded = data.load(name, tmp_path)
    torch.testing.assert_close(loaded.train.x[:, 0], torch.from_numpy(images).float() / 255)
    assert loaded.train.y.tolist() == labels.tolist() and loaded.test.x.shape == (3, 1, 28, 28)
    assert len(loaded.classes) == 10 and loaded.licence and loaded.citation


@pytest.mark.parametrize("name", ["Fashion_MNIST", "fashionmnist", "FASHION-mnist"])
def test_spelling_of_names_is_forgiven(tmp_path, name):
    write_images(tmp_path / "fashion-mnist", "t10k")
    assert data.load(name, tmp_path, download=False).name == "fashion-mnist"


@pytest.mark.parametrize("download", [False, True])
def test_what_is_there_is_given_and_what_is_not_is_said(tmp_path, caplog, download):
    write_images(tmp_path / "fashion-mnist", "t10k")
    with caplog.at_level(logging.WARNING):
        loaded = data.load("fashion-mnist", tmp_path, download=download)
    assert loaded.train is None and len(loaded.test.x) == 5
    assert loaded.notes == tuple(caplog.messages) and len(loaded.notes) == 1
    assert "fashion-mnist has no train part" in loaded.notes[0]
    with pytest.raises(DataError, match="no train part"):
        loaded.part("train")
    assert loaded.part("test") is loaded.test


def test_a_part_that_never_existed_is_not_a_loss(tmp_path):
    write_images(tmp_path / "notmnist", "small")
    loaded = data.load("notmnist", tmp_path)
    assert loaded.notes == () and loaded.train is None and loaded.classes == tuple("ABCDEFGHIJ")
    with pytest.raises(DataError, match="notmnist has no train part: all its rows are in 'test'"):
        loaded.part("train")


def test_omniglot_with_short_labels_and_class_names(tmp_path):
    write_idx(tmp_path / "omniglot/evaluation-images-idx3-ubyte.gz", RNG.integers(0, 256, (3, 28, 28)))
    write_idx(tmp_path / "omniglot/evaluation-labels-idx1-short.gz", np.array([0, 300, 658]), 0x0B, ">i2")
    (tmp_path / "omniglot/evaluation-classes.txt").write_text(
        "0\tAngelic\tcharacter01\t0965\n1\tULOG\tcharacter26\t1623\n"
    )
    loaded = data.load("omniglot", tmp_path)
    assert loaded.test.y.tolist() == [0, 300, 658] and loaded.classes == ("Angelic/character01", "ULOG/character26")


def png(pixels, mode):
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, "png")
    return buffer.getvalue()


def test_omniglot_from_the_published_archive(tmp_path):
    page = np.full((105, 105), 255, np.uint8)
    page[:15] = 0
    (tmp_path / "omniglot").mkdir()
    with zipfile.ZipFile(tmp_path / "omniglot/images_evaluation.zip", "w") as archive:
        for name in ("B/character02/2_02.png", "B/character02/2_01.png", "A/character01/1_01.png"):
            archive.writestr(f"images_evaluation/{name}", png(page, "1"))
    loaded = data.load("omniglot", tmp_path)
    assert loaded.classes == ("A/character01", "B/character02") and loaded.test.y.tolist() == [0, 1, 1]
    # 15 of 105 rows are ink: exactly the first four of 28.
    expected = torch.zeros(28, 28)
    expected[:4] = 1
    assert torch.equal(loaded.test.x[0, 0], expected)


def test_notmnist_from_the_published_archive(tmp_path):
    letters = {"B/x.png": 10, "A/y.png": 20, "A/x.png": 30}
    files = {name: png(np.full((28, 28), value, np.uint8), "L") for name, value in letters.items()}
    files["A/broken.png"] = b""
    (tmp_path / "notmnist").mkdir()
    write_tar(tmp_path / "notmnist/notMNIST_small.tar.gz", {f"notMNIST_small/{k}": v for k, v in files.items()})
    loaded = data.load("notmnist", tmp_path)
    assert loaded.test.y.tolist() == [0, 0, 1]
    assert (loaded.test.x[:, 0, 0, 0] * 255).round().tolist() == [30, 20, 10]


def write_tar(path, files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def write_cifar_npz(folder, images, labels, name):
    green, red, blue = images[:, 1], images[:, 0] - images[:, 1], images[:, 2] - images[:, 1]
    planes = np.stack([green, red, blue])
    rows = np.diff(planes, axis=-2, prepend=np.uint8(0))
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / name, residual=np.diff(rows, axis=-1, prepend=np.uint8(0)), labels=labels)


def write_cifar_tar(folder, images, labels):
    record = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1).astype(np.uint8).tobytes()
    names = [f"data_batch_{i}.bin" for i in (3, 1, 2, 5, 4)] + ["test_batch.bin", "readme.html"]
    write_tar(folder / "cifar-10-binary.tar.gz", {f"cifar-10-batches-bin/{name}": record for name in names})


@pytest.fixture
def cifar():
    return RNG.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8), RNG.integers(0, 10, 4, dtype=np.uint8)


def test_cifar_from_residuals_and_from_the_public_archive(tmp_path, cifar):
    images, labels = cifar
    for name in [f"data_batch_{i}.npz" for i in range(1, 6)] + ["test_batch.npz"]:
        write_cifar_npz(tmp_path / "a/cifar10", images, labels, name)
    write_cifar_tar(tmp_path / "b/cifar10", images, labels)
    for folder in "ab":
        loaded = data.load("cifar-10", tmp_path / folder)
        assert loaded.train.x.shape == (20, 3, 32, 32)
        assert torch.equal((loaded.test.x * 255).round(), torch.from_numpy(images).float())
        assert loaded.test.y.tolist() == labels.tolist() == loaded.train.y[:4].tolist()


def test_grey_cifar_is_made_where_its_files_are_absent(tmp_path, cifar):
    images, labels = cifar
    write_cifar_npz(tmp_path / "a/cifar10", images, labels, "test_batch.npz")
    write_cifar_tar(tmp_path / "b/cifar10", images, labels)
    pages = [Image.fromarray(image.transpose(1, 2, 0)).convert("L") for image in images]
    pillow = np.stack([np.asarray(page.resize((28, 28), Image.Resampling.BILINEAR)) for page in pages])
    for folder in "ab":
        made = data.load("cifar10bw", tmp_path / folder)
        assert made.test.x.shape == (4, 1, 28, 28) and made.test.y.tolist() == labels.tolist()
        assert (made.test.x[:, 0] * 255 - torch.from_numpy(pillow)).abs().max() < 2.5
    write_idx(tmp_path / "a/cifar10bw/t10k-images-idx3-ubyte.gz", np.zeros((1, 28, 28)))
    write_idx(tmp_path / "a/cifar10bw/t10k-labels-idx1-ubyte.gz", np.zeros(1))
    assert len(data.load("cifar10bw", tmp_path / "a").test.x) == 1


@pytest.fixture
def yacht(tmp_path):
    """A made table in both of its forms, with the splits stored as their authors made them."""
    table = RNG.standard_normal((30, 7)).round(3)
    rng = np.random.RandomState(1)
    orders = np.stack([rng.choice(range(30), 30, replace=False) for _ in range(20)])
    arrays = {"data": table, "index_features": np.arange(6), "index_target": np.array([6])}
    for folder in ("npz", "txt"):
        (tmp_path / folder / "uci").mkdir(parents=True)
    np.savez(tmp_path / "npz/uci/yacht.npz", index_train=orders[:, :27], index_test=orders[:, 27:], **arrays)
    np.savetxt(tmp_path / "txt/uci/yacht.txt", table, fmt="%.3f")
    return table


def test_uci_splits_are_the_same_stored_or_drawn(tmp_path, yacht):
    for split in (0, 7, 19):
        stored = data.load("uci/yacht", tmp_path / "npz", split=split)
        drawn = data.load("uci_yacht", tmp_path / "txt", split=split)
        for part in ("train", "test"):
            assert torch.equal(stored.part(part).x, drawn.part(part).x)
            assert torch.equal(stored.part(part).y, drawn.part(part).y)
        rows = torch.cat([torch.cat([stored.part(p).x, stored.part(p).y[:, None]], 1) for p in ("train", "test")])
        assert sorted(rows.tolist()) == sorted(torch.from_numpy(yacht).float().tolist())
    assert stored.train.x.shape == (27, 6) and stored.test.y.shape == (3,)


@pytest.mark.parametrize(
    ("name", "split"),
    [("uci/yacht", 1.5), ("uci/yacht", 20), ("uci/yacht", -1), ("uci/protein", 5), ("digits", 0)],
)
def test_a_split_that_does_not_exist(tmp_path, name, split):
    with pytest.raises(DataError, match=f"{name} has .*split={split}"):
        data.load(name, tmp_path, split=split)


def test_mushroom_is_one_hot_in_both_forms(tmp_path):
    rows = "p,x,s\ne,b,s\np,a,y\n"
    (tmp_path / "a/mushroom").mkdir(parents=True)
    (tmp_path / "b/mushroom").mkdir(parents=True)
    (tmp_path / "a/mushroom/mushrooms.csv.gz").write_bytes(gzip.compress(b"class,cap,skin\n" + rows.encode()))
    (tmp_path / "b/mushroom/agaricus-lepiota.data").write_text(rows)
    for folder in "ab":
        loaded = data.load("mushroom", tmp_path / folder)
        assert loaded.train.x.tolist() == [[0, 0, 1, 1, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 1]]
        assert loaded.train.y.tolist() == [1, 0, 1] and loaded.classes == ("edible", "poisonous")


def test_missing_files_are_downloaded_verified_and_kept(tmp_path, monkeypatch):
    home = tmp_path / "home"
    write_images(home, "train"), write_images(home, "t10k")

    def served(source):
        files = [home / Path(file).name for file in source.files]
        return replace(source, remotes=tuple(Remote((f.as_uri(),), digest(f, "sha256")) for f in files))

    entry = SETS["kmnist"]
    parts = {part: (served(sources[0]),) for part, sources in entry.parts.items()}
    monkeypatch.setitem(SETS, "kmnist", replace(entry, parts=parts))
    cache = tmp_path / "cache"
    assert "kmnist" not in data.available(cache)
    first = data.load("kmnist", cache)
    assert first.train is not None and first.test is not None and "kmnist" in data.available(cache)
    assert torch.equal(data.load("kmnist", cache, download=False).train.x, first.train.x)


@pytest.mark.parametrize(
    ("name", "download", "message"),
    [
        ("mnist", False, "allow the download or put"),
        ("mnist", True, "no connection"),
        ("notmnist", True, "no checksum is known, so fetch it yourself and put .*notMNIST_small.tar.gz"),
    ],
)
def test_a_set_that_is_nowhere_is_one_sentence(tmp_path, name, download, message):
    with pytest.raises(DataError, match=message) as caught:
        data.load(name, tmp_path, download=download)
    assert str(caught.value).startswith(f"{name} has no") and "\n" not in str(caught.value)
    assert list(tmp_path.rglob("*.gz*")) == []


@pytest.mark.parametrize(
    ("name", "hint"), [("mnits", "'mnist'"), ("boston", "'uci/boston'"), ("cifar-100", "'cifar10'")]
)
def test_an_unknown_name_gets_a_suggestion(name, hint):
    with pytest.raises(DataError, match=f"no data set '{name}', perhaps you meant {hint}; the names are digits, mnist"):
        data.load(name)


def cut(content):
    return content[: len(content) // 2]


@pytest.mark.parametrize("damage", [cut, lambda c: b"", lambda c: b"no gzip", lambda c: gzip.compress(b"no idx")])
def test_a_damaged_file_is_named(tmp_path, damage):
    write_images(tmp_path / "mnist", "t10k")
    path = tmp_path / "mnist/t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"cannot read .*t10k-images-idx3-ubyte\.gz.* damaged"):
        data.load("mnist", tmp_path, download=False)


@pytest.mark.parametrize("name", ["uci/yacht.npz", "cifar10/cifar-10-binary.tar.gz", "omniglot/images_evaluation.zip"])
def test_other_damaged_forms_are_named(tmp_path, name):
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_bytes(b"PK\3\4 not really")
    owner = {"uci": "uci/yacht", "cifar10": "cifar10", "omniglot": "omniglot"}[name.split("/")[0]]
    with pytest.raises(DataError, match="damaged, delete them"):
        data.load(owner, tmp_path, download=False)


def test_images_without_their_labels(tmp_path):
    write_images(tmp_path / "mnist", "t10k")
    write_idx(tmp_path / "mnist/t10k-labels-idx1-ubyte.gz", np.zeros(4))
    with pytest.raises(DataError, match="5 images but 4 labels"):
        data.load("mnist", tmp_path, download=False)


def test_where_sets_are_looked_for(tmp_path, monkeypatch):
    monkeypatch.delenv("DUBITO_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data.data_folder() == tmp_path / "cache/dubito"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data.data_folder() == Path.home() / ".cache/dubito"
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path / "mine"))
    assert data.data_folder() == tmp_path / "mine"
    assert data.data_folder(tmp_path / "named") == tmp_path / "named"


def test_available_lists_what_needs_no_network(tmp_path):
    assert data.available(tmp_path) == ("digits",)
    write_images(tmp_path / "fashion-mnist", "t10k")
    assert data.available(tmp_path) == ("digits", "fashion-mnist")
    assert set(data.available(tmp_path)) < set(data.names())


def test_a_reader_that_lacks_its_package(tmp_path, monkeypatch):
    def read(paths, split):
        import no_such_package  # noqa: F401

    monkeypatch.setitem(SETS, "mnist", replace(SETS["mnist"], parts={"test": (Source((), read),)}))
    with pytest.raises(DataError, match="reading mnist needs the package no_such_package: install it"):
        data.load("mnist", tmp_path)


def test_standardise_uses_training_rows_and_spares_constant_features():
    train = torch.tensor([[1.0, 0.1], [3.0, 0.1]])
    scaled, other = data.standardise(train, torch.tensor([[5.0, 1.1]]))
    torch.testing.assert_close(scaled, torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    torch.testing.assert_close(other, torch.tensor([[3.0, 1.0]]))


def test_every_address_has_a_checksum_and_every_set_its_terms():
    kinds = {"sha256": 64, "md5": 32, "values": 64}
    for entry in SETS.values():
        assert entry.licence and entry.citation and entry.home and entry.description
        for source in (s for sources in entry.parts.values() for s in sources if s.remotes):
            assert len(source.remotes) == len(source.files)
            for remote in source.remotes:
                kind, _, value = remote.digest.partition(":")
                assert len(value) == kinds[kind] and int(value, 16)
