"""Training on after weights were removed: zeros that stay zeros.

What is left of a network can make up for what went (Han et al. 2015, https://arxiv.org/abs/1506.02626): the weights of
a fit, by any method, are multiplied by the mask of those that were not 0 when it began.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn


class ZerosKept(nn.Module):
    """A copy of a network whose matrices and kernels stay 0 where they are 0; `dubito.nn.folded` takes it out again."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = copy.deepcopy(net)
        self.masks = {name: f"kept{i}" for i, (name, p) in enumerate(net.named_parameters()) if p.ndim > 1}
        for name, mask in self.masks.items():
            self.register_buffer(mask, net.get_parameter(name).detach() != 0)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(self.net, self._weights(), args, kwargs)

    def plain(self) -> nn.Module:
        """A copy of the network by itself, with its zeros."""
        made = copy.deepcopy(self.net)
        with torch.no_grad():
            for name, value in self._weights().items():
                made.get_parameter(name).copy_(value)
        return made

    def _weights(self) -> dict[str, Tensor]:
        held = dict(self.net.named_parameters())
        return {name: held[name] * self.get_buffer(mask) for name, mask in self.masks.items()}
