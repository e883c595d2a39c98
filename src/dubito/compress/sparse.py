"""Networks on disk at their true size: zeros left out, in one safetensors file.

A matrix or kernel, as (rows, everything else), is kept in compressed sparse rows where that is smaller: its values that
are not zero, their columns, and where each row begins, the last two in the smallest unsigned integers that hold them.
A checksum of all that the file says lies in its metadata.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from dubito.compress import chains
from dubito.nn import build, folded
from dubito.nn.registry import recipe
from dubito.posteriors.files import make_folder, write_atomically
from dubito.posteriors.storage import Damaged
from dubito.rng import isolated

FORMAT = 1
MARK = "dubito.network"
CHECKSUM = "dubito.checksum"
VALUES, COLUMNS, BEGINS = ".values", ".columns", ".begins"
INTEGERS = ((1 << 8, torch.uint8), (1 << 16, torch.uint16), (1 << 32, torch.uint32))


def dense_bytes(network: nn.Module) -> int:
    """The size of the network's own safetensors file, every weight in it."""
    return len(save({name: value.detach().cpu().contiguous() for name, value in _state(network).items()}))


def save_network(network: nn.Module, path: str | Path) -> Path:
    """Write a network without its zeros; a chain of layers or a net of `dubito.nn` can be opened by its path alone."""
    path = Path(path)
    tensors: dict[str, Tensor] = {}
    layers = chains.chain(network)
    made = _recipe(network, layers)
    for name, value in _state(nn.Sequential(*layers) if made["kind"] == "chain" and layers else network).items():
        tensors |= _packed(name, value.detach().cpu())
    _check_file(path)
    make_folder(path.parent)
    described = json.dumps({"format": FORMAT, **made})
    write_atomically(path, save(tensors, {MARK: described, CHECKSUM: _checksum(described, tensors)}))
    return path


def _check_file(path: Path) -> None:
    """Refuse a folder where a file is meant."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the path of a file in it, such as small.safetensors")


def _check_module(net: object) -> None:
    """Refuse the class of a module, or whatever else is none."""
    if net is not None and not isinstance(net, nn.Module):
        raise ValueError(f"net is {net!r}, which is no module; give one like that the file was made from")


def load_network(path: str | Path, net: nn.Module | None = None) -> nn.Module:
    """The network a file of `save_network` holds, as a plain module in evaluation mode.

    net: the module it was made from, where that is neither a chain of layers nor a net of `dubito.nn`; others are built
    from the file, which may have fewer units than the module had.
    """
    _check_file(path := Path(path))
    _check_module(net)
    made, tensors = _read(path)
    kinds = [value.dtype for value in tensors.values() if value.is_floating_point()]
    try:
        module = _module(made, net, path).to(kinds[0] if kinds else None)
    except (KeyError, TypeError, RuntimeError) as error:
        raise Damaged(f"{path} does not say which layers it holds ({error}); write it again") from error
    shapes = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    try:
        module.load_state_dict({name: _unpacked(name, shape, tensors) for name, shape in shapes.items()})
    except (KeyError, RuntimeError, IndexError) as error:
        raise ValueError(f"{path} belongs to another network ({str(error).splitlines()[0]}); give the one it was made "
                         "from") from error  # fmt: skip
    return module.eval()


def _recipe(network: nn.Module, layers: list[nn.Module] | None) -> dict[str, Any]:
    if layers is not None:
        return {"kind": "chain", "layers": chains.describe(layers)}
    known = recipe(network)
    return {"kind": "own"} if known is None else {"kind": "recipe", "net": known}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            made = json.loads(about[MARK])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no network at {path}; give a file that dubito.compress.write made") from None
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise Damaged(f"{path} holds no network of dubito, or is damaged ({error}); write it again") from error
    found = made.get("format") if isinstance(made, dict) else None
    if not isinstance(found, int):
        raise Damaged(f"{path} does not say in which format it is; write it again")
    if found > FORMAT:
        raise Damaged(f"{path} has format {found} but this dubito reads up to {FORMAT}; install a newer one")
    if CHECKSUM in about and about[CHECKSUM] != _checksum(about[MARK], tensors):  # older files have none
        raise Damaged(f"{path} is damaged: its checksum is not that of what it holds; write it again")
    return made, tensors


def _checksum(described: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a description and of the names, types, shapes and bytes of tensors."""
    digest = hashlib.sha256(described.encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _module(made: Mapping[str, Any], net: nn.Module | None, path: str | Path) -> nn.Module:
    if made["kind"] == "own":
        if net is None:
            raise ValueError(f"{path} was made from your own module; load it with dubito.load_network(path, net)")
        return folded(net)  # a copy; gates have gone into the weights
    with isolated("rebuilt"):  # fresh weights, which are written over, do not move the global generator
        return chains.build(made["layers"]) if made["kind"] == "chain" else build(made["net"])


def _state(network: nn.Module) -> dict[str, Tensor]:
    """The state with tied weights once under each name, as the module wants it back."""
    return {name: value.clone() for name, value in network.state_dict().items()}


def _packed(name: str, value: Tensor) -> dict[str, Tensor]:
    """A tensor, or the three that are smaller than it."""
    if value.ndim < 2 or not value.is_floating_point():
        return {name: value.contiguous()}
    matrix = value.reshape(len(value), -1)
    where = matrix.nonzero()
    begins = torch.cat([torch.zeros(1, dtype=torch.long), (matrix != 0).sum(1).cumsum(0)])
    parts = {
        name + VALUES: matrix[matrix != 0],
        name + COLUMNS: _small(where[:, 1], matrix.shape[1]),
        name + BEGINS: _small(begins, int(begins[-1]) + 1),
    }
    smaller = sum(part.nbytes for part in parts.values()) < value.nbytes
    return parts if smaller else {name: value.contiguous()}


def _small(values: Tensor, below: int) -> Tensor:
    """Whole numbers in the smallest type that holds all below a bound."""
    return values.to(next(kind for limit, kind in INTEGERS if below <= limit))


def _unpacked(name: str, shape: tuple[int, ...], tensors: Mapping[str, Tensor]) -> Tensor:
    if name in tensors:
        return tensors[name]
    values, columns, begins = (tensors[name + part] for part in (VALUES, COLUMNS, BEGINS))
    matrix = values.new_zeros(shape[0], torch.Size(shape).numel() // max(1, shape[0]))
    counts = begins.long().diff()
    if len(counts) != len(matrix):
        raise KeyError(f"{name!r} has {len(counts)} rows there and {len(matrix)} here")
    matrix[torch.arange(len(matrix)).repeat_interleave(counts), columns.long()] = values
    return matrix.view(shape)
