"""Structured sparsity: a multiplier on every unit, so that whole neurons and filters can go.

    unit -> z unit,   z ~ q(z) = N(mean, std^2) under the log-uniform prior

(Louizos et al. 2017, https://arxiv.org/abs/1705.08665; Neklyudov et al. 2017, https://arxiv.org/abs/1705.07283, with
another noise). A gate is a depthwise convolution of size one, so that it has weights like any layer: `SparseVD` on a
gated net removes units, and weights too where they have a prior.
"""

import copy
from collections import Counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dubito.nn.zeros import ZerosKept

_APPLY = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_LAYERS: dict[type[nn.Module], int] = {nn.Linear: 0, nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}


class Gate(nn.Module):
    """Every unit times its own number, 1 at first; units lie on the last axis, or on axis 1 before spatial ones."""

    def __init__(self, units: int, spatial: int = 0) -> None:
        super().__init__()
        self.units, self.spatial = units, spatial
        self.weight = nn.Parameter(torch.empty(units, 1, *(1,) * max(1, spatial)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All gates open."""
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        if self.spatial:
            return _APPLY[self.spatial](x, self.weight, groups=self.units)
        moved = x.movedim(-1, 1)
        gated = F.conv1d(moved.reshape(*moved.shape[:2], -1), self.weight, groups=self.units)
        return gated.reshape(moved.shape).movedim(1, -1)

    def extra_repr(self) -> str:
        return f"{self.units}, spatial={self.spatial}"


class Gated(nn.Sequential):
    """A layer and the gate on its units; its weights are those of the layer with the gate in them."""

    @property
    def weight(self) -> Tensor:
        """For modules that look into their layers, as transformers do."""
        return self._scaled("weight")

    @property
    def bias(self) -> Tensor | None:
        return None if self[0].bias is None else self._scaled("bias")

    def _scaled(self, name: str) -> Tensor:
        value, gate = (dict(part.named_parameters())[which] for part, which in ((self[0], name), (self[1], "weight")))
        return value * gate.view(-1, *(1,) * (value.ndim - 1))


def gated(net: nn.Module) -> nn.Module:
    """A copy with a gate after every linear map and convolution but the last, in the order the module holds them.

    A weight that is used in several places has units of none of them, and gets no gate.
    """
    if any(isinstance(part, Gate) for part in net.modules()):
        raise ValueError("the network has gates already; give the one without them")
    made = copy.deepcopy(net)
    uses = Counter(id(parameter) for _, parameter in made.named_parameters(remove_duplicate=False))
    layers = [(path, part) for path, part in made.named_modules() if type(part) in _LAYERS]
    found = [(path, part) for path, part in layers if uses[id(part.weight)] == 1]
    if len(found) < 2:
        raise ValueError(
            "the network has no linear map or convolution before its last one, so there is nothing to gate; "
            "give one with a hidden layer"
        )
    for path, part in found[:-1]:
        gate = Gate(len(part.weight), _LAYERS[type(part)]).to(part.weight)
        made.set_submodule(path, Gated(part, gate))
    return made


def folded(net: nn.Module) -> nn.Module:
    """A copy that computes the same without gates, which have become part of the weights, and without `ZerosKept`."""
    made = net.plain() if isinstance(net, ZerosKept) else copy.deepcopy(net)
    for parent in list(made.modules()):
        for name, part in parent.named_children():
            if isinstance(part, Gated):
                setattr(parent, name, _joined(part))
    return made


def _joined(pair: Gated) -> nn.Module:
    layer = pair[0]
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(pair._scaled(name))
    return layer
