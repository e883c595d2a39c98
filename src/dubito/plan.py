"""What a fit would do to each parameter, before it is done: nothing is skipped silently."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dubito import methods, priors
from dubito.inputs import move, tensors
from dubito.methods.base import Method, Sampler
from dubito.net import Net
from dubito.priors import Assigned, Fixed, Point, PriorSpec
from dubito.target import fixed_names


@dataclass(frozen=True)
class Row:
    """One parameter: what becomes of it, by which estimator, and why."""

    name: str
    shape: tuple[int, ...]
    role: str
    estimator: str
    why: str


@dataclass(frozen=True)
class Plan:
    """The fate of every parameter, notes on dropout and normalisation, and what a step costs."""

    method: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    bytes: int  # of one weight vector
    flops: float | None  # of one forward pass over one example

    def __str__(self) -> str:
        wide = max((len(row.name) for row in self.rows), default=4)
        lines = [f"{self.method}: {sum(r.role != 'fixed' for r in self.rows)} of {len(self.rows)} parameters free"]
        lines += [f"  {r.name:{wide}}  {r.shape!s:16} {r.role:7} {r.estimator:10} {r.why}" for r in self.rows]
        lines += [f"  {note}" for note in self.notes]
        cost = "unknown without example=" if self.flops is None else f"{self.flops:,.0f} flops a row and forward pass"
        return "\n".join([*lines, f"  {self.bytes:,} bytes a network; {cost}"])


def plan(net: nn.Module, method: Method[Any] | str, *, prior: PriorSpec | None = None, example: Any = None) -> Plan:
    """Per parameter: random, point or fixed, by which estimator, and why; with an example, dropout and cost too."""
    chosen = methods.find(method)
    assigned = priors.assign(prior, net)
    prepared = Net(net, fixed_names(assigned))
    frozen = {n for n, p in net.named_parameters() if not p.requires_grad}
    rows = tuple(_row(n, tuple(p.shape), assigned, chosen, n in frozen) for n, p in net.named_parameters())
    size = prepared.layout.size * torch.empty(0, dtype=prepared.dtype).element_size()
    if example is None:
        return Plan(type(chosen).__name__, rows, tuple(_norms(prepared, chosen)), size, None)
    x = move(tensors(example), prepared.device, prepared.dtype)
    notes = (*_norms(prepared, chosen), *_dropout(prepared, chosen, x))
    return Plan(
        type(chosen).__name__, rows, notes, size, prepared.flops(x) / len(x) if isinstance(x, torch.Tensor) else None
    )


def _row(name: str, shape: tuple[int, ...], assigned: Mapping[str, Assigned], method: Method[Any], frozen: bool) -> Row:
    prior = assigned[name]
    if isinstance(prior, Fixed):
        return Row(name, shape, "fixed", "none", "requires_grad is False" if frozen else "the prior says Fixed()")
    if isinstance(prior, Point):
        return Row(name, shape, "point", "optimised", "the prior says Point()")
    if isinstance(method, Sampler):
        return Row(name, shape, "random", "sampled", f"prior {prior!r}")
    return Row(name, shape, "point", "optimised", f"prior {prior!r}")


def _norms(net: Net, method: Method[Any]) -> list[str]:
    if not net.has_batch_norm:
        return []
    return [f"BatchNorm: statistics {'move with the data' if method.live_norm else 'stay as they are'}"]


def _dropout(net: Net, method: Method[Any], x: Any) -> list[str]:
    if fused := net.fused_dropout(x):
        notes = [f"dropout inside {name}: part of a fused call, out of reach of masks" for name in fused]
    else:
        notes = []
    try:
        sites = method.prepare(net, x).sites(x)
    except ValueError as error:
        return [*notes, f"refused: {error}"]
    use = "off throughout" if isinstance(method, Sampler) else "on while training"
    return notes + [f"dropout {s.rate:.2g} on a tensor of shape {s.shape}: {use}" for s in sites]
