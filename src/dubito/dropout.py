"""Dropout under our own masks: where a network drops, and what each draw keeps.

A `TorchFunctionMode` meets every dropout call of a forward pass. In training each example gets its own mask; at
prediction a draw has one mask for all examples, so that a draw is a function, the same on any batching
(Gal & Ghahramani, 2016, https://arxiv.org/abs/1506.02142).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dubito.rng import Rng

Kind = Literal["element", "feature", "alpha", "feature_alpha"]

DROPOUTS: dict[Callable[..., Any], tuple[Kind, bool]] = {  # function -> (kind, default of `training`)
    F.dropout: ("element", True),
    F.dropout1d: ("feature", True),
    F.dropout2d: ("feature", True),
    F.dropout3d: ("feature", True),
    F.alpha_dropout: ("alpha", False),
    F.feature_alpha_dropout: ("feature_alpha", False),
    torch.dropout: ("element", True),
}
LAYERS = (F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
FUSED = {F.scaled_dot_product_attention: 4, F.multi_head_attention_forward: 10}  # where they take their dropout_p
SELU_FLOOR = -1.7580993408473766  # the value alpha dropout puts in place of a dropped SELU unit


@dataclass(frozen=True)
class Site:
    """One dropout call: its kind, rate, mask shape for one example and the axis along which examples lie.

    `weight` names the matrix or kernel of the layer that comes next, before any other dropout, and `inputs` counts what
    it takes in. Along the batch axis an example may have more than one place: as many next to each other as `run` says,
    or all of them.
    """

    kind: Kind
    rate: float
    shape: tuple[int, ...]
    batch_axis: int | None = None
    weight: str | None = None
    inputs: int | None = None
    run: int | None = None
    seen: Tensor | None = field(default=None, repr=False, compare=False)  # what a recorded pass met there

    @property
    def units(self) -> int:
        """Units dropped or kept independently: positions that share the next layer's weights count once."""
        there = math.prod(self.shape)
        return there if self.inputs is None else min(there, self.inputs)

    def shape_for(self, batch: int) -> tuple[int, ...]:
        """The mask's shape for a whole batch."""
        return tuple(n * batch if axis == self.batch_axis else n for axis, n in enumerate(self.shape))


class Dropping(TorchFunctionMode):
    """Replace the dropout calls of a forward pass by given masks; without masks they do nothing.

    `inputs` adds a site on the input of every linear or convolution but the first. With `record`, sites are noted;
    `names` tells parameters by their id.
    """

    def __init__(
        self,
        masks: Sequence[Tensor] | None,
        inputs: bool = False,
        record: list[Site] | None = None,
        names: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__()
        self.masks, self.inputs, self.record, self.names = masks, inputs, record, names or {}
        self.site = 0
        self.layers = 0
        self.fused: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            return self._dropout(func, args, kwargs)
        if func in LAYERS:
            return self._layer(func, args, kwargs)
        if func in FUSED and _given(args, kwargs, "dropout_p", FUSED[func], 0.0) > 0:
            self.fused.append(func.__name__)
        return func(*args, **kwargs)

    def _dropout(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kind, default = DROPOUTS[func]
        rate = _given(args, kwargs, "p", 1, 0.5)
        training = _given(args, kwargs, "train" if "train" in kwargs else "training", 2, default)
        x = _given(args, kwargs, "input", 0, None)
        return self._drop(x, kind, float(rate)) if training and rate > 0 else x

    def _layer(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, weight = _given(args, kwargs, "input", 0, None), _given(args, kwargs, "weight", 1, None)
        self.layers += 1
        if self.inputs and self.layers > 1:
            x = self._drop(x, "element", math.nan)
        if self.record and self.record[-1].inputs is None:
            wide = x.shape[-max(1, weight.dim() - 1)]  # before the positions, where there are any
            self.record[-1] = replace(self.record[-1], weight=self.names.get(id(weight)), inputs=wide)
        return func(x, *args[1:], **{k: v for k, v in kwargs.items() if k != "input"})

    def _drop(self, x: Tensor, kind: Kind, rate: float) -> Tensor:
        if self.record is not None:
            by_feature = kind.startswith("feature")
            shape = (*x.shape[:2], *(1,) * (x.dim() - 2)) if by_feature else tuple(x.shape)
            self.record.append(Site(kind, rate, shape, seen=x.detach().clone()))
        if self.masks is None:
            return x
        mask = self.masks[self.site]
        self.site += 1
        return _alpha(x, mask) if kind.endswith("alpha") else x * mask


def _given(args: tuple[Any, ...], kwargs: dict[str, Any], name: str, place: int, default: Any) -> Any:
    """An argument by name or by place."""
    return kwargs.get(name, args[place] if len(args) > place else default)


def _alpha(x: Tensor, mask: Tensor) -> Tensor:
    """Alpha dropout (Klambauer et al., 2017): dropped units go to SELU's floor, mean and variance are kept."""
    keep, scale, shift = mask.unbind(-1)
    return scale * (x * keep + SELU_FLOOR * (1 - keep)) + shift


def locate(single: Sequence[Site], double: Sequence[Site], rate: float | None) -> list[Site]:
    """Sites with their batch axis, found by comparing a pass over one example with a pass over two equal ones."""
    if len(single) != len(double):
        raise ValueError(
            "the network makes a different number of dropout calls for one example and for two; "
            "dropout needs a forward pass whose calls do not depend on the data"
        )
    return [_located(a, b, rate) for a, b in zip(single, double, strict=True)]


def _located(one: Site, two: Site, rate: float | None) -> Site:
    axes = [axis for axis, (a, b) in enumerate(zip(one.shape, two.shape, strict=True)) if b == 2 * a]
    run = _run(two.seen, axes[0], one.shape[axes[0]]) if axes and two.seen is not None else None
    found = replace(one, rate=one.rate if rate is None else rate, seen=None)
    return replace(found, batch_axis=axes[0] if axes else None, run=run)


def _run(seen: Tensor, axis: int, places: int) -> int | None:
    """How many next to each other along an axis belong to one of two equal examples; None where all its places do."""

    def apart(run: int) -> float:
        first, second = seen.unflatten(axis, (-1, 2, run)).unbind(axis + 1)
        return float((first - second).abs().sum())

    best = min((run for run in range(places, 0, -1) if places % run == 0), key=apart)
    return None if best == places else best


def make_masks(
    sites: Sequence[Site], uniforms: Iterable[Tensor], copies: int = 1, rates: Tensor | None = None
) -> list[Tensor]:
    """One mask (members, *draws, ...) per site; `rates` (members, sites) take the place of the sites' own.

    `copies` are made where a mask that all examples share must be as long as a batch of so many.
    """
    if rates is not None and rates.shape[1] != len(sites):
        raise ValueError(
            f"{rates.shape[1]} rate(s) of dropout were learned but the network drops in {len(sites)} place(s); give "
            "the network that they were learned with"
        )
    masks = []
    for number, (site, uniform) in enumerate(zip(sites, uniforms, strict=True)):
        if rates is None:
            mask = _scaled((uniform >= site.rate).to(uniform.dtype), site)
        else:
            rate = rates[:, number].view(-1, *(1,) * (uniform.dim() - 1))
            mask = (uniform >= rate) / (1 - rate).to(uniform.dtype)
        if site.batch_axis is not None and site.shape[site.batch_axis] > 1:
            axis = site.batch_axis + uniform.dim() - len(site.shape)
            apart = mask.unflatten(axis, (-1, 1, site.run or site.shape[site.batch_axis]))
            mask = apart.repeat_interleave(copies, axis + 1).flatten(axis, axis + 2)
        masks.append(mask)
    return masks


def make_uniforms(
    sites: Sequence[Site],
    members: int,
    batch: int,
    rng: Rng,
    like: Tensor,
    *,
    shared: bool,
    first: int = 0,
    draws: tuple[int, ...] = (),
) -> Iterator[Tensor]:
    """The uniforms (members, *draws, ...) behind each site's mask: what is dropped has one below the rate.

    `shared` gives all examples of a batch the same.
    """
    for number, site in enumerate(sites):
        shape = site.shape if shared else site.shape_for(batch)
        yield rng.uniform((members, *draws, *shape), f"dropout {number}", like, first)


def relaxed_masks(logit: Tensor, noise: Sequence[Tensor], temperature: float) -> list[Tensor]:
    """Masks that can be differentiated by the logits of their rates, (sites,), from the logits of uniforms.

    keep = sigmoid((logit u - logit p) / temperature) / (1 - p): the concrete distribution (Maddison et al. 2017,
    https://arxiv.org/abs/1611.00712; Jang et al. 2017, https://arxiv.org/abs/1611.01144), a binary mask as the
    temperature falls to 0.
    """
    return [((u - a) / temperature).sigmoid() / (-a).sigmoid() for a, u in zip(logit.unbind(), noise, strict=True)]


def _scaled(keep: Tensor, site: Site) -> Tensor:
    p = site.rate
    if site.kind.endswith("alpha"):
        scale = 1 / math.sqrt((1 - p) * (1 + p * SELU_FLOOR**2))
        shift = -scale * SELU_FLOOR * p
        return torch.stack([keep, torch.full_like(keep, scale), torch.full_like(keep, shift)], dim=-1)
    return keep / (1 - p) if p < 1 else keep


def fused_modules(module: nn.Module) -> list[str]:
    """The submodules that pass dropout to a fused call."""
    named = module.named_modules()
    return [n for n, m in named if isinstance(m, nn.MultiheadAttention | nn.RNNBase) and fused_rate(m) > 0]


def fused_rate(module: nn.Module) -> float:
    """The rate of the dropout that a module passes to a fused call, 0 where it passes none."""
    several = not isinstance(module, nn.RNNBase) or module.num_layers > 1
    return float(getattr(module, "dropout", 0.0)) if several else 0.0
