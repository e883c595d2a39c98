"""What a fit would do to each parameter, before it is done: nothing is skipped silently."""

from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import nn

from dubito import methods, priors
from dubito.dropout import Site
from dubito.functions import widest
from dubito.inputs import move, n_rows, tensors
from dubito.likelihoods import Categorical
from dubito.methods.base import Fate, Method
from dubito.net import Net
from dubito.nn.bayes import check_plain
from dubito.priors import Assigned, Fixed, Normals, PriorSpec
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
        lines = [f"{self.method}: {sum(r.role != 'fixed' for r in self.rows)} of {len(self.rows)} parameters free"]
        cells = [("parameter", "shape", "role", "estimator", "why")]
        cells += [(r.name, str(r.shape), r.role, r.estimator, r.why) for r in self.rows]
        wide = [max(len(row[i]) for row in cells) for i in range(4)]
        lines += ["  " + "  ".join([*(f"{c:{w}}" for c, w in zip(row, wide, strict=False)), row[4]]) for row in cells]
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
    if x is not None:
        widest(prepared, x)  # refuses an example that the network does not take
    fates = chosen.fates(prepared, random_names(assigned), x)
    frozen = {n for n, p in net.named_parameters() if not p.requires_grad}
    rows = tuple(_row(n, tuple(p.shape), assigned[n], fates.get(n), n in frozen) for n, p in net.named_parameters())
    size = prepared.layout.size * torch.empty(0, dtype=prepared.dtype).element_size()
    notes = [*_norms(prepared, chosen), *([] if x is None else _dropout(prepared, chosen, x))]
    notes += _refusals(prepared, chosen, assigned)
    flops = None if x is None else prepared.flops(x) / n_rows(x)
    return Plan(type(chosen).__name__, rows, tuple(notes), size, flops)


def _row(name: str, shape: tuple[int, ...], prior: Assigned, fate: Fate | None, frozen: bool) -> Row:
    if isinstance(prior, Fixed):
        return Row(name, shape, "fixed", "none", "requires_grad is False" if frozen else "the prior says Fixed()")
    if fate is None:
        return Row(name, shape, "point", "optimised", "the prior says Point()")
    words = f"prior {fate.prior or _words(prior)}"
    return Row(name, shape, fate.role, fate.estimator, "; ".join([words, *filter(None, [fate.why])]))


def _words(prior: Assigned) -> str:
    """A prior with few digits, its default settings left out but for the first."""
    if isinstance(prior, Normals):
        low, high = (f"{float(end):.3g}" for end in (prior.std.min(), prior.std.max()))
        return f"Normals, a mean for each and std {low if low == high else f'{low} to {high}'}"
    if not is_dataclass(prior):
        return repr(prior)
    held = [(f, getattr(prior, f.name)) for f in fields(prior)]
    told = [(f.name, v) for i, (f, v) in enumerate(held) if i == 0 or f.default is MISSING or v != f.default]
    return (
        f"{type(prior).__name__}({', '.join(f'{n}={v:.3g}' if isinstance(v, float) else f'{n}={v}' for n, v in told)})"
    )


def _refusals(net: Net, method: Method[Any], assigned: dict[str, Assigned]) -> list[str]:
    """What a fit would say of these parameters, whatever its likelihood."""
    try:
        method.check(net, assigned, Categorical())
    except ValueError as error:
        return [f"refused: {error}"]
    return []


def _norms(net: Net, method: Method[Any]) -> list[str]:
    if not net.has_batch_norm:
        return []
    return [f"BatchNorm: statistics {'move with the data' if method.live_norm else 'stay as they are'}"]


def _dropout(net: Net, method: Method[Any], x: Any) -> list[str]:
    if fused := net.fused_dropout(x):
        notes = [f"dropout inside {name}: part of a fused call, out of reach of masks" for name in fused]
    else:
        notes = ["forward() draws random numbers in training, out of reach of masks"] if net.draws(x) else []
    try:
        sites = method.prepare(net, x).sites(x)
    except ValueError as error:
        return [*notes, f"refused: {error}"]
    use = "on while training" if method.drops else "off throughout"
    return notes + [f"dropout {s.rate:.2g} on a tensor of shape {s.shape}{_next(s)}: {use}" for s in sites]


def _next(site: Site) -> str:
    return "" if site.weight is None else f" before {site.weight}"
