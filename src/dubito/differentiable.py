"""A network that is no function of its weights, or one without usable gradients, is found out beforehand."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from dubito.inputs import Inputs
from dubito.net import Net
from dubito.rng import drew, isolated_everywhere
from dubito.running import watched

CHECKPOINTED = "the network recomputes activations (torch.utils.checkpoint) when its weights are gone; turn that off"
TRIALS = 20  # evaluations that must agree where random numbers were drawn: layers are left out seldom, or often


def check(net: Net, x: Inputs) -> None:
    """Evaluate one row, then take one gradient of it, in training mode, and look at how they came about."""
    if _draws(net, x):
        raise ValueError(
            "forward() draws random numbers in evaluation mode too, so the network is no function of its weights; "
            "draw only where self.training is True, or use nn.Dropout"
        )
    with torch.enable_grad(), isolated_everywhere("gradient"), watched(net.module, []):
        theta = net.theta().requires_grad_()
        outputs = net(theta, x, "dropout")
    if not outputs.requires_grad:
        raise ValueError("the outputs do not depend on the weights; remove no_grad() or detach() from forward()")
    if any("Checkpoint" in node.name() for node in _graph(outputs.grad_fn)):
        raise ValueError(CHECKPOINTED)
    try:
        torch.autograd.grad(outputs.sum(), theta)
    except CheckpointError as error:
        raise ValueError(CHECKPOINTED) from error


def _draws(net: Net, x: Inputs) -> bool:
    """Whether random numbers change the outputs; some calls of a GPU's library draw in vain."""

    def evaluated(key: int) -> Tensor:
        with isolated_everywhere(key):
            return net(net.theta(), x)

    with torch.no_grad(), watched(net.module, []):
        if not drew(net.device, lambda: net(net.theta(), x)):
            return False
        first, *others = (evaluated(key) for key in range(TRIALS))
        return not all(torch.allclose(first, other) for other in others)


def _graph(start: Any) -> Iterator[Any]:
    """Every node of an autograd graph."""
    seen, todo = set(), [start]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [parent for parent, _ in node.next_functions]
            yield node
