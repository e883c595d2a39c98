"""What all floors share: batches in fixed places, compiling, and a step recorded once and replayed."""

import gc
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import Stepping

WARM = 4  # steps on a side stream before one is recorded
Function = TypeVar("Function", bound=Callable[..., object])


class Feed:
    """Batches of rows, one slice after another, always in the same tensors."""

    def __init__(self, x: Tensor, y: Tensor, size: int) -> None:
        self._x, self._y, self._place = x, y, 0
        self.x, self.y = x[:size].clone(), y[:size].clone()

    def move(self) -> None:
        """Put the next batch in place."""
        size = len(self.x)
        self.x.copy_(self._x[self._place : self._place + size])
        self.y.copy_(self._y[self._place : self._place + size])
        self._place = (self._place + size) % (len(self._x) - size + 1)


def fused(function: Function, device: torch.device) -> Function:
    """Compiled on a GPU; on the CPU floors are only tried."""
    return torch.compile(function, dynamic=False) if device.type == "cuda" else function  # type: ignore[return-value]


def recorded(step: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The step as one call: recorded on a GPU, itself elsewhere."""
    if device.type != "cuda":
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    gc.collect()  # an older graph that is freed during a recording would spoil it
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def stepping(step: Callable[[], object], feed: Feed | None, device: torch.device) -> Stepping:
    """Many steps, each on the next batch where there is a feed."""
    replay = recorded(step, device)

    def take(steps: int) -> None:
        for _ in range(steps):
            if feed is not None:
                feed.move()
            replay()

    return take


def descent(loss: Callable[[], Tensor], parameters: Sequence[Tensor], device: torch.device) -> Callable[[], None]:
    """A step of fused Adam whose counters lie on the device."""
    on_device = device.type == "cuda"
    optimiser = torch.optim.Adam(list(parameters), lr=1e-3, fused=True, capturable=on_device)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss().backward()
        optimiser.step()

    return step


def stacked(net: nn.Module, copies: int) -> list[Tensor]:
    """Weights (copies, inputs, outputs) and biases (copies, 1, outputs) of an MLP, in turn, each a little different."""
    found = []
    for p in net.parameters():
        one = p.detach().mT if p.dim() == 2 else p.detach().unsqueeze(0)
        found.append((one + 0.01 * torch.randn(copies, *one.shape, device=p.device)).contiguous())
    return found


def outputs(parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    """(copies, rows, classes) of stacked MLPs at the same rows."""
    copies = len(parameters[0])
    h = x.expand(copies, *x.shape)
    for layer in range(0, len(parameters), 2):
        h = torch.baddbmm(parameters[layer + 1], F.relu(h) if layer else h, parameters[layer])
    return h


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """Summed over copies, averaged over rows."""
    return F.cross_entropy(out.flatten(0, 1), y.repeat(len(out)), reduction="sum") / len(y)
