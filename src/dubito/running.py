"""Buffers that move while a network trains: the running statistics of normalisation layers, and whatever else does."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase


def tracked(module: nn.Module) -> list[_NormBase]:
    """Normalisation layers with running statistics; layers that can only use those of the batch are refused."""
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) and part.running_mean is None:
            raise ValueError(
                f"BatchNorm {name!r} normalises by the batch even at prediction, so that a row's answer depends on its "
                "neighbours; set track_running_stats=True or use a batch-free norm such as nn.GroupNorm"
            )
    return [m for m in module.modules() if isinstance(m, _NormBase) and m.running_mean is not None]


def untouched(module: nn.Module) -> list[str]:
    """Normalisation layers whose running statistics are still where they start, at mean 0 and variance 1."""
    return [n for n, m in module.named_modules() if isinstance(m, _NormBase) and _at_start(m)]


def _at_start(norm: _NormBase) -> bool:
    mean, var = norm.running_mean, norm.running_var
    return mean is not None and var is not None and not bool(mean.any()) and bool((var == 1).all())


def buffer_names(module: nn.Module, owners: Sequence[nn.Module]) -> list[str]:
    """The buffers that belong to some submodules."""
    ids = {id(owner) for owner in owners}
    return [
        f"{prefix}.{key}" if prefix else key
        for prefix, sub in module.named_modules()
        if id(sub) in ids
        for key, b in sub._buffers.items()
        if b is not None
    ]


def owners(module: nn.Module, names: Collection[str]) -> list[nn.Module]:
    """The submodules that hold some buffers, each once."""
    found = {id(sub): sub for sub in (module.get_submodule(name.rpartition(".")[0]) for name in names)}
    return list(found.values())


@contextlib.contextmanager
def watched(module: nn.Module, moving: list[str]) -> Iterator[None]:
    """Put back every buffer that the code inside changes, and add its name to `moving`."""
    before = {name: (buffer, buffer.clone()) for name, buffer in module.named_buffers()}
    try:
        yield
    finally:
        after = dict(module.named_buffers())
        for name, (buffer, value) in before.items():
            if after.get(name) is not buffer or not torch.equal(buffer, value):
                _put_back(module, name, buffer, value)
                moving.extend([name] if name not in moving else [])


def _put_back(module: nn.Module, name: str, buffer: Tensor, value: Tensor) -> None:
    path, _, key = name.rpartition(".")
    buffer.copy_(value)
    module.get_submodule(path)._buffers[key] = buffer


def repeated(buffers: Mapping[str, Tensor], draws: int) -> dict[str, Tensor]:
    """Statistics of each member, (S, ...), for each of its draws, (S, draws, ...); views where there is one draw."""
    if draws == 1:
        return {name: buffer.unsqueeze(1) for name, buffer in buffers.items()}
    return {name: torch.stack([buffer] * draws, dim=1) for name, buffer in buffers.items()}


def gather_(buffers: Mapping[str, Tensor], drawn: Mapping[str, Tensor]) -> None:
    """Take statistics back from the draws of `repeated`: their average."""
    for name, buffer in buffers.items():
        each = drawn[name]
        if each.shape[1] > 1:
            buffer.copy_(each.mean(1) if each.is_floating_point() else each[:, 0])
