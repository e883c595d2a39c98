"""Readers of archives of PNG files as their authors publish them; Pillow does the decoding."""

import io
import tarfile
import zipfile
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from dubito.data.formats import Paths, Raw


def read_omniglot_zip(paths: Paths, split: int) -> Raw:
    """images_evaluation.zip: alphabet/character/drawing.png, 105 x 105, black strokes on white.

    Inverted, so that strokes are bright, and area-averaged to 28 x 28; ordered by alphabet, character, drawer.
    """
    images, owners = [], []
    with zipfile.ZipFile(paths[0]) as archive:
        for name in sorted((n for n in archive.namelist() if n.endswith(".png")), key=_key):
            images.append(_stroke_image(archive.read(name)))
            owners.append("/".join(PurePosixPath(name).parts[-3:-1]))
    classes, labels = np.unique(owners, return_inverse=True)
    return Raw(np.stack(images), labels, tuple(str(name) for name in classes))


def read_notmnist_tar(paths: Paths, split: int) -> Raw:
    """notMNIST_small.tar.gz: letter/glyph.png, 28 x 28, bright on dark; files that are no image are left out."""
    found: list[tuple[str, str, NDArray[np.uint8]]] = []
    with tarfile.open(paths[0]) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if path.suffix == ".png" and (file := archive.extractfile(member)):
                image = _glyph_image(file.read())
                if image is not None:
                    found.append((path.parent.name, path.name, image))
    found.sort(key=lambda item: item[:2])
    labels = np.array(["ABCDEFGHIJ".index(letter) for letter, _, _ in found])
    return Raw(np.stack([image for _, _, image in found]), labels)


def _key(name: str) -> tuple[str, ...]:
    return PurePosixPath(name).parts


def _stroke_image(content: bytes) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(content)) as image:
        grey = ImageOps.invert(image.convert("L"))
    return np.asarray(grey.resize((28, 28), Image.Resampling.BOX))


def _glyph_image(content: bytes) -> NDArray[np.uint8] | None:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as image:
            return np.asarray(image.convert("L"))
    except UnidentifiedImageError:
        return None
