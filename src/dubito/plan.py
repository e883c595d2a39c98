"""What a fit would do to each parameter, before it is done: nothing is skipped silently."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dubito import methods, priors
from dubito.dropout import Site
from dubito.inputs import move, n_rows, tensors
from dubito.methods.base import Fate, Method
from dubito.net import Net
from dubito.nn.bayes import check_plain
from dubito.priors import Assigned, Fixed, PriorSpec
from dubito.target import fixed_names, random_names


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
        wide, way = (max((len(getattr(r, f)) for r in self.rows), default=4) for f in ("name", "estimator"))
        lines = [f"{self.method}: {sum(r.role != 'fixed' for r in self.rows)} of {len(self.rows)} parameters free"]
        lines += [f"  {r.name:{wide}}  {r.shape!s:16} {r.role:7} {r.estimator:{way}}  {r.why}" for r in self.rows]
        lines += [f"  {note}" for note in self.notes]
        cost = "unknown without example=" if self.flops is None else f"{self.flops:,.0f} flops a row and forward pass"
        return "\n".join([*lines, f"  {self.bytes:,} bytes a network; {cost}"])


def plan(net: nn.Module, method: Method[Any] | str, *, prior: PriorSpec | None = None, example: Any = None) -> Plan:
    """Per parameter: random, point or fixed, by which estimator, and why; with an example, dropout and cost too."""
    check_plain(net)
    chosen = methods.find(method)
    assigned = priors.assign(prior, net)
    prepared = Net(net, fixed_names(assigned))
    x = None if example is None else move(tensors(example), prepared.device, prepared.dtype)
    fates = chosen.fates(prepared, random_names(assigned), x)
    frozen = {n for n, p in net.named_parameters() if not p.requires_grad}
    rows = tuple(_row(n, tuple(p.shape), assigned[n], fates.get(n), n in frozen) for n, p in net.named_parameters())
    size = prepared.layout.size * torch.empty(0, dtype=prepared.dtype).element_size()
    if x is None:
        return Plan(type(chosen).__name__, rows, tuple(_norms(prepared, chosen)), size, None)
    notes = (*_norms(prepared, chosen), *_dropout(prepared, chosen, x))
    return Plan(type(chosen).__name__, rows, notes, size, prepared.flops(x) / n_rows(x))


def _row(name: str, shape: tuple[int, ...], prior: Assigned, fate: Fate | None, frozen: bool) -> Row:
    if isinstance(prior, Fixed):
        return Row(name, shape, "fixed", "none", "requires_grad is False" if frozen else "the prior says Fixed()")
    if fate is None:
        return Row(name, shape, "point", "optimised", "the prior says Point()")
    return Row(name, shape, fate.role, fate.estimator, "; ".join([f"prior {prior!r}", *filter(None, [fate.why])]))


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
    use = "on while training" if method.drops else "off throughout"
    return notes + [f"dropout {s.rate:.2g} on a tensor of shape {s.shape}{_next(s)}: {use}" for s in sites]


def _next(site: Site) -> str:
    return "" if site.weight is None else f" before {site.weight}"
