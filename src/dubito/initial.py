"""Where members start: the module's own weights, and fresh ones from its initialisers under the seed."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from dubito.net import Net
from dubito.rng import derive, isolated

Initialiser: TypeAlias = Callable[[int], nn.Module | Mapping[str, Tensor]]


def starting_points(net: Net, members: int, seed: int, init: Initialiser | None) -> Tensor:
    """(members, D): the first is the module as given, the others are drawn anew by (seed, member)."""
    rows = [net.theta()]
    for member in range(1, members):
        values = (
            _called(init, derive(seed, "init", member))
            if init
            else _reset(net.module, derive(seed, "init", member), net)
        )
        rows.append(net.layout.join({n: values[n].to(rows[0]) for n in net.layout.names}))
    return torch.stack(rows)


def _called(init: Initialiser, seed: int) -> Mapping[str, Tensor]:
    made = init(seed)
    return {n: p.detach() for n, p in made.named_parameters()} if isinstance(made, nn.Module) else made


def _reset(module: nn.Module, seed: int, net: Net) -> dict[str, Tensor]:
    if orphans := list(_orphans(module, net)):
        raise ValueError(
            f"members start from fresh weights, but {orphans[0]!r} belongs to no module with "
            "reset_parameters(); give fit(init=...) a function of a seed that builds the network"
        )
    fresh = copy.deepcopy(module)
    with isolated(seed), torch.no_grad():
        for part in reversed(list(fresh.modules())):
            if reset := _initialiser(part):
                reset()
    return {n: p.detach() for n, p in fresh.named_parameters()}


def _initialiser(module: nn.Module) -> Any:
    return getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)


def _orphans(module: nn.Module, net: Net) -> Iterator[str]:
    """Parameters that no initialiser on the way from the root would reset."""
    named = dict(module.named_modules())
    for name in net.layout.names:
        owners = name.split(".")[:-1]
        paths = [".".join(owners[:depth]) for depth in range(len(owners), -1, -1)]
        if not any(_initialiser(named[path]) for path in paths if path in named):
            yield name
