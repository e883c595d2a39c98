"""What tells forward passes over the same weights apart: a few of a network's outputs, kept in its run's folder."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from dubito import runtime
from dubito.inputs import Inputs
from dubito.net import Net
from dubito.rng import isolated_everywhere

ROWS = 4  # rows of the data that are looked at
NUMBERS = 8  # outputs that are kept
WITHIN = 1e-3  # of the largest output: how far rounding may move one on another device
MOVE = 0.1  # added to all weights where outputs do not depend on the row, as under a last layer that starts at 0


def outputs(net: Net, x: Inputs) -> dict[str, Any]:
    """Some outputs of a network's own weights at some rows, and how far each may be off."""
    with torch.no_grad(), isolated_everywhere("forward"), runtime.precision("float32", net.device):
        found = net(net.theta(), x)
        if bool((found == found[:1]).all()):
            found = net(net.theta() + MOVE, x)
    flat = found.double().flatten()
    index = torch.linspace(0, len(flat) - 1, min(len(flat), NUMBERS), dtype=torch.float64).long()
    kept = [float(f"{value:.6g}") for value in flat[index.to(flat.device)].tolist()]
    share = max(WITHIN, 8 * torch.finfo(found.dtype).eps)
    return {"outputs": kept, "within": share * max((abs(v) for v in kept if math.isfinite(v)), default=1.0)}


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How the outputs of networks by name differ by more than rounding, one line each."""
    changed = [name for name in now if name in before and not _alike(before[name], now[name])]
    return [f"forward.{name}: {_show(before[name])} here, {_show(now[name])} there" for name in changed]


def _alike(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    here, there = (torch.tensor(found["outputs"], dtype=torch.float64) for found in (a, b))
    near = here.shape == there.shape and torch.allclose(here, there, rtol=0, atol=a["within"], equal_nan=True)
    return bool(near)


def _show(found: Mapping[str, Any]) -> str:
    return f"[{', '.join(f'{value:.4g}' for value in found['outputs'])}]"
