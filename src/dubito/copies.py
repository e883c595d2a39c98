"""Copies of a module: all that is part of it, and nothing that forward passes left behind."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

_OWN = ("_parameters", "_buffers", "_modules")


def private_copy(module: nn.Module) -> nn.Module:
    """A frozen copy in evaluation mode; what cannot be copied is refused."""
    if any(is_lazy(t) for t in (*module.parameters(), *module.buffers())):
        raise ValueError("the network has lazy layers that have not seen data; run one forward pass before fitting")
    try:
        clone = copy.deepcopy(module)
    except RuntimeError as error:
        raise ValueError(
            "the network cannot be copied because it holds tensors that are part of a graph; detach them "
            "or rebuild the module"
        ) from error
    except TypeError as error:
        raise ValueError(f"the network cannot be copied ({error}); keep what cannot out of the module") from error
    for part in clone.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            part.sparse = False  # gradients of a flat vector are dense
    return clone.requires_grad_(False).eval()


def check_dtypes(parameters: Mapping[str, Tensor]) -> None:
    """Refuse weights that are not real numbers of one type."""
    kinds = {p.dtype for p in parameters.values()}
    if strange := [str(kind) for kind in kinds if not kind.is_floating_point]:
        raise ValueError(f"the network has weights of {strange[0]}; real floating-point weights are needed")
    if len(kinds) > 1:
        raise ValueError(f"the network mixes weight types {sorted(map(str, kinds))}; convert it with net.float() first")


def attributes(module: nn.Module) -> dict[nn.Module, dict[str, Any]]:
    """The plain attributes of each part, neither parameters nor buffers nor parts."""
    return {part: {k: v for k, v in vars(part).items() if k not in _OWN} for part in module.modules()}


def put_back(module: nn.Module, before: Mapping[nn.Module, Mapping[str, Any]]) -> None:
    """Take out the tensors that passes left in plain attributes: parts of a graph, or of a vmap that is over."""
    for part, now in attributes(module).items():
        held = before.get(part, {})
        for key in [key for key, value in now.items() if _holds_tensors(value)]:
            if key in held:
                vars(part)[key] = held[key]
            else:
                del vars(part)[key]


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))
