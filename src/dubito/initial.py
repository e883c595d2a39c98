"""Where members start: the module's own weights, and fresh ones from its initialisers under the seed."""

import copy
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from dubito.net import Net
from dubito.rng import derive, isolated_everywhere

Initialiser: TypeAlias = Callable[[int], nn.Module | Mapping[str, Tensor]]


def starting_points(net: Net, members: int, seed: int, init: Initialiser | None) -> Tensor:
    """(members, D): the first is the module as given, the others are drawn anew by (seed, member)."""
    rows = [net.theta()]
    for member in range(1, members):
        with isolated_everywhere(derive(seed, "init", member)):
            values = _called(init, derive(seed, "init", member), net) if init else _reset(net)
        rows.append(net.layout.join({n: values[n].to(rows[0]) for n in net.layout.names}))
    return torch.stack(rows)


def _called(init: Initialiser, seed: int, net: Net) -> Mapping[str, Tensor]:
    made = init(seed)
    values = {n: p.detach() for n, p in made.named_parameters()} if isinstance(made, nn.Module) else made
    for name, shape in zip(net.layout.names, net.layout.shapes, strict=True):
        if name not in values or tuple(values[name].shape) != shape:
            found = f"one of shape {tuple(values[name].shape)}" if name in values else "none"
            raise ValueError(f"init= must give a {name!r} of shape {shape} but gave {found}; build the same network")
    return values


def _reset(net: Net) -> dict[str, Tensor]:
    """Fresh weights from every initialiser, the leaves' first; a weight that none of them writes is an error."""
    fresh = copy.deepcopy(net.tidied())
    with torch.no_grad():
        for parameter in fresh.parameters():
            if parameter.is_floating_point():
                parameter.fill_(torch.nan)
        for part in reversed(list(fresh.modules())):
            if reset := getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None):
                reset()
    values = {n: p.detach() for n, p in fresh.named_parameters()}
    for name in net.layout.names:
        if bool(values[name].isnan().any()):
            raise ValueError(
                f"members start from fresh weights, but no reset_parameters() writes {name!r}; give fit(init=...) a "
                "function of a seed that builds the network"
            )
    return values
