"""Rows that a network is scored on, checked before any work is done."""

from typing import Any

import torch

from dubito.functions import widest
from dubito.inputs import check_finite, move, rows, tensors
from dubito.likelihoods import Likelihood
from dubito.net import Net
from dubito.sources import check_rows, unpack


def check_held(net: Net, likelihood: Likelihood, x: Any, y: Any) -> None:
    """Refuse rows that are empty, not finite, of another shape than the network's, or with targets it cannot have."""
    x, y, _ = unpack((tensors(x), tensors(y)))
    check_rows(x, y)
    check_finite(x, "x")
    example = move(rows(x, slice(0, 1)), net.device, net.dtype)
    widest(net, example)
    with torch.no_grad():
        outputs = net(net.theta(), example)
    likelihood.resolve(outputs.expand(len(y), *outputs.shape[1:]), move(y, net.device, net.dtype))
