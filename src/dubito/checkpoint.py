"""Any state to named tensors on disk and back: written beside and renamed, so that a half-written one is never read."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from dubito.layout import like
from dubito.posteriors.files import write_atomically
from dubito.posteriors.storage import Damaged


def write(path: Path, state: Any, notes: dict[str, Any]) -> None:
    """Put a state and JSON notes (the step reached, the best so far) in place of the last checkpoint."""
    named, _ = tree_flatten_with_path(state)
    tensors = {keystr(key): leaf.detach().cpu().contiguous().clone() for key, leaf in named}
    write_atomically(path, save(tensors, {"notes": json.dumps(notes)}), durable=True)


def read(path: Path, state: Any) -> tuple[Any, dict[str, Any]]:
    """The state last written, in the structure and the places of another."""
    named, structure = tree_flatten_with_path(state)
    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads(file.metadata()["notes"])
            leaves = [file.get_tensor(keystr(key)) for key, _ in named]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path} is damaged or belongs to another run ({error}); remove it to start over") from error
    for (key, leaf), found in zip(named, leaves, strict=True):
        if leaf.shape != found.shape or leaf.dtype != found.dtype:
            raise Damaged(
                f"{path} belongs to another run: {keystr(key)} is {tuple(found.shape)} {found.dtype} there, "
                f"{tuple(leaf.shape)} {leaf.dtype} here; choose another folder"
            )
    # Copies, because tensors lie anywhere in a file, and sums of tensors that do not begin at multiples of 64 bytes may
    # be rounded otherwise than before.
    copies = [like(leaf, found) for (_, leaf), found in zip(named, leaves, strict=True)]
    return tree_unflatten(copies, structure), notes


def copy_rows(into: Any, source: Any, members: torch.Tensor) -> None:
    """Overwrite some members of a state by those of another, in place; every tensor has members first."""
    pairs = zip(tree_flatten_with_path(into)[0], tree_flatten_with_path(source)[0], strict=True)
    for (_, old), (_, new) in pairs:
        old[members] = new[members]
