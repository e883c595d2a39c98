"""Networks that are chains of layers: how they are found, written down, and freed of units that do nothing.

A unit does nothing when no weight leads on from it, or when none leads to it: then its output is a constant, which the
next layer's bias can hold. The smaller network computes the same.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from dubito.nn.nets import AsImage
from dubito.nn.registry import hooked

Weighted = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_CONV = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
_TRANSPOSED = (*_CONV, "output_padding")
_NORM = ("num_features", "eps", "momentum", "affine")
_MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
_AVERAGE = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")

LAYERS: dict[type[nn.Module], tuple[str, ...]] = {  # what can be written down, and by which arguments
    nn.Linear: ("in_features", "out_features"),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _CONV),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _TRANSPOSED),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _NORM),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), _MAX),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), _AVERAGE),
    **dict.fromkeys((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), ("output_size",)),
    nn.Flatten: ("start_dim", "end_dim"),
    nn.Unflatten: ("dim", "unflattened_size"),
    nn.Dropout: ("p",),
    nn.Dropout2d: ("p",),
    nn.ReLU: (),
    nn.LeakyReLU: ("negative_slope",),
    nn.Tanh: (),
    nn.Sigmoid: (),
    nn.SiLU: (),
    nn.GELU: ("approximate",),
    nn.ELU: ("alpha",),
    nn.Identity: (),
    AsImage: ("side",),
}
ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.GELU, nn.ELU, nn.Identity)
DROPOUTS = (nn.Dropout, nn.Dropout2d)
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
ADAPTIVE_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
SPATIAL = (*MAX_POOLS, *AVERAGE_POOLS, *ADAPTIVE_POOLS, *NORMS)  # what takes axis 1 for units and the rest for places


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    if training:
        raise TypeError("a call that drops outside training too is no layer in evaluation mode")
    return nn.Dropout(p)


def _max_pool(
    kind: Callable[..., nn.Module], kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> nn.Module:  # fmt: skip
    return kind(kernel_size, stride, padding, dilation, return_indices, ceil_mode)  # in another order


CALLS: dict[Any, Callable[..., nn.Module]] = {  # what a forward pass may call instead of a layer, and that layer
    **dict.fromkeys((F.relu, torch.relu, "relu"), nn.ReLU),
    **dict.fromkeys((F.tanh, torch.tanh, "tanh"), nn.Tanh),
    **dict.fromkeys((F.sigmoid, torch.sigmoid, "sigmoid"), nn.Sigmoid),
    **dict.fromkeys((torch.flatten, "flatten"), _flatten),
    F.silu: nn.SiLU,
    F.gelu: nn.GELU,
    F.elu: nn.ELU,
    F.leaky_relu: nn.LeakyReLU,
    F.max_pool1d: partial(_max_pool, nn.MaxPool1d),
    F.max_pool2d: partial(_max_pool, nn.MaxPool2d),
    F.max_pool3d: partial(_max_pool, nn.MaxPool3d),
    F.avg_pool1d: nn.AvgPool1d,
    F.avg_pool2d: nn.AvgPool2d,
    F.avg_pool3d: nn.AvgPool3d,
    F.adaptive_avg_pool1d: nn.AdaptiveAvgPool1d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    F.adaptive_avg_pool3d: nn.AdaptiveAvgPool3d,
    F.dropout: _dropout,
}


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(True for _ in m.children())


def chain(network: nn.Module) -> list[nn.Module] | None:
    """The layers in the order they are called, each fed by the one before and none with weights called twice.

    Functions and methods count as the layers they stand for; None where it is no chain, or where hooks do more.
    """
    if hooked(network):
        return None
    if type(network) in LAYERS:
        return [network] if _can_be_written(network) else None
    try:
        nodes = list(_Tracer().trace(network).nodes)
    except Exception:  # a forward pass that cannot be traced may fail in any way of its own
        return None
    inner = nodes[1:-1]
    straight = all(node.all_input_nodes == [before] == [*node.args[:1]]
                   for before, node in zip(nodes, inner, strict=False))  # fmt: skip
    if not inner or not straight or nodes[-1].args != (inner[-1],):
        return None
    layers = [_called(node, network) for node in inner]
    held = [id(layer) for layer in layers if any(True for _ in layer.parameters())]
    known = all(_can_be_written(layer) for layer in layers) and len(set(held)) == len(held)
    return layers if known else None


def _can_be_written(layer: nn.Module) -> bool:
    """Whether its arguments in `LAYERS` say all about it."""
    odd = (getattr(layer, "divisor_override", None), getattr(layer, "return_indices", False))
    return type(layer) in LAYERS and not any(odd) and bool(getattr(layer, "track_running_stats", True))


def _called(node: fx.Node, network: nn.Module) -> nn.Module:
    """The layer behind a call; an empty module where there is none."""
    if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
        return network.get_submodule(str(node.target))
    try:
        return CALLS[node.target](*node.args[1:], **node.kwargs)
    except (KeyError, TypeError):
        return nn.Module()


def describe(layers: Sequence[nn.Module]) -> list[dict[str, Any]]:
    """A chain as JSON."""
    return [_described(layer) for layer in layers]


def build(described: Sequence[Mapping[str, Any]]) -> nn.Sequential:
    """The chain that `describe` wrote down, with fresh weights."""
    known = {kind.__name__: kind for kind in LAYERS}
    return nn.Sequential(*(known[str(one["layer"])](**_arguments(one)) for one in described))


def _described(layer: nn.Module) -> dict[str, Any]:
    described = {"layer": type(layer).__name__, **{name: getattr(layer, name) for name in LAYERS[type(layer)]}}
    says = isinstance(layer, Weighted | Transposed) or (isinstance(layer, Norm) and layer.affine and layer.bias is None)
    return {**described, "bias": layer.bias is not None} if says else described


def _arguments(described: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in described.items() if name != "layer"}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


# -- units that do nothing -------------------------------------------------------------------------------------


def without_dead_units(layers: Sequence[nn.Module], flat: bool = True) -> list[nn.Module]:
    """The same function with fewer units; the layers given are left alone. flat: whether inputs are (rows, numbers)."""
    held = [_copied(layer) for layer in layers]
    while any(_remove_dead(held, *pair) for pair in _neighbours(held, flat)):
        pass
    return held


def _neighbours(layers: Sequence[nn.Module], flat: bool) -> Iterator[tuple[int, int]]:
    """Places of layers with weights that follow each other, with nothing in between that mixes units."""
    places = [i for i, layer in enumerate(layers) if isinstance(layer, Weighted)]
    for first, second in itertools.pairwise(places):
        before, after, between = layers[first], layers[second], layers[first + 1 : second]
        apart = all(getattr(end, "groups", 1) == 1 for end in (before, after))
        if apart and all(_keeps_apart(layer) for layer in between):
            if isinstance(before, nn.Linear):
                straight = _leads_on(before, after, between, _is_flat(layers[:first], flat))
            else:
                straight = _channels_lead_on(after, between)
            if straight:
                yield first, second


def _is_flat(before: Sequence[nn.Module], flat: bool) -> bool:
    """Whether what these layers hand on is (rows, numbers)."""
    for layer in before:
        flattens = isinstance(layer, nn.Flatten) and _keeps_apart(layer)
        flat = flattens or (flat and not isinstance(layer, nn.Unflatten | AsImage))
    return flat


def _leads_on(before: nn.Linear, after: nn.Module, between: Sequence[nn.Module], flat: bool) -> bool:
    """Whether the next layer reads the units of a linear map, on the last axis, as they are."""
    fits = all(isinstance(layer, nn.BatchNorm1d) and flat for layer in between if isinstance(layer, SPATIAL))
    return fits and isinstance(after, nn.Linear) and after.in_features == before.out_features


def _channels_lead_on(after: nn.Module, between: Sequence[nn.Module]) -> bool:
    """Whether the next layer reads the units of a convolution: on axis 1, or flattened in their order."""
    kinds = [isinstance(layer, nn.Flatten) for layer in between]
    flattened = between[kinds.index(True) :] if any(kinds) else []
    return isinstance(after, nn.Linear) == any(kinds) and not any(isinstance(layer, SPATIAL) for layer in flattened)


def _keeps_apart(layer: nn.Module) -> bool:
    """Whether every unit stays by itself, and a constant stays that constant or becomes another."""
    if isinstance(layer, nn.Flatten):
        return layer.start_dim == 1 and layer.end_dim == -1
    if isinstance(layer, AVERAGE_POOLS):
        return not _pads(layer) and not layer.ceil_mode
    return isinstance(layer, (*ELEMENTWISE, *DROPOUTS, *MAX_POOLS, *ADAPTIVE_POOLS, *NORMS))


def _remove_dead(layers: list[nn.Module], first: int, second: int) -> bool:
    """Free one layer of its dead units, in place; whether there were any."""
    before, after = layers[first], layers[second]
    if not isinstance(before, Weighted) or not isinstance(after, Weighted):
        return False
    onward = _by_unit(before, after)
    silent = ~before.weight.detach().flatten(1).any(1)
    constant = _constant(before, layers[first + 1 : second])
    foldable = constant.eq(0) if _pads(after) else torch.ones_like(silent)
    dead = ~onward.any(-1).flatten(1).any(1) | (silent & foldable)
    dead[0] = dead[0] and not bool(dead.all())  # a layer needs one unit
    if not bool(dead.any()):
        return False
    shift = torch.einsum("uob,u->o", onward, constant * dead)
    live = (~dead).nonzero().squeeze(1)
    layers[first] = _resized(before, rows=live)
    columns = live if onward.shape[2] == _positions(after) else _columns(live, onward.shape[2])
    layers[second] = _resized(after, columns=columns, shift=shift)
    for place in range(first + 1, second):
        if isinstance(layer := layers[place], Norm):
            layers[place] = _thinner(layer, live)
    return True


def _by_unit(before: Weighted, after: Weighted) -> Tensor:
    """The weights that lead on from each unit, (units, outputs, weights to each)."""
    weight = after.weight.detach()
    units = len(before.weight)
    return weight.reshape(len(weight), units, -1).transpose(0, 1)


def _positions(layer: Weighted) -> int:
    """The weights from one input to one output."""
    return layer.weight[0, 0].numel()


def _columns(live: Tensor, each: int) -> Tensor:
    """The inputs that belong to some units, of which each has so many after flattening."""
    return (live.unsqueeze(1) * each + torch.arange(each, device=live.device)).flatten()


def _constant(before: Weighted, between: Sequence[nn.Module]) -> Tensor:
    """What each unit would send on if no weight led to it, (units,)."""
    value = before.weight.new_zeros(len(before.weight)) if before.bias is None else before.bias.detach()
    value = value.unsqueeze(0)
    with torch.no_grad():
        for layer in between:
            if isinstance(layer, ELEMENTWISE):
                value = layer(value)
            elif isinstance(layer, Norm):
                value = _normalised(layer, value)
    return value.squeeze(0)


def _normalised(norm: Norm, value: Tensor) -> Tensor:
    return torch.nn.functional.batch_norm(
        value, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps
    )


def _pads(layer: nn.Module) -> bool:
    padding = getattr(layer, "padding", 0)
    if isinstance(padding, str):
        return padding == "same"
    return any(padding) if isinstance(padding, tuple) else padding > 0


def _resized(
    layer: Weighted, rows: Tensor | None = None, columns: Tensor | None = None, shift: Tensor | None = None
) -> Weighted:
    """The layer with some of its outputs or inputs, and a shift added to its bias."""
    weight = layer.weight.detach() if rows is None else layer.weight.detach()[rows]
    weight = weight if columns is None else weight[:, columns]
    bias = None if layer.bias is None else layer.bias.detach() if rows is None else layer.bias.detach()[rows]
    if shift is not None and bool(shift.any()):
        bias = shift if bias is None else bias + shift
    names = ("in_features", "out_features") if isinstance(layer, nn.Linear) else ("in_channels", "out_channels")
    arguments = _arguments(_described(layer)) | dict(zip(names, (weight.shape[1], weight.shape[0]), strict=True))
    made: Weighted = type(layer)(**{**arguments, "bias": bias is not None}).to(weight)
    with torch.no_grad():
        made.weight.copy_(weight)
        if made.bias is not None and bias is not None:
            made.bias.copy_(bias)
    return made.eval()


def _thinner(norm: Norm, live: Tensor) -> Norm:
    made: Norm = type(norm)(**{**_arguments(_described(norm)), "num_features": len(live)}).to(norm.running_mean)
    state = {name: value if value.ndim == 0 else value[live] for name, value in norm.state_dict().items()}
    made.load_state_dict(state)
    return made.eval()


def _copied(layer: nn.Module) -> nn.Module:
    state = layer.state_dict()
    made = type(layer)(**_arguments(_described(layer))).to(next(iter(state.values()), torch.empty(0)))
    made.load_state_dict(state)
    return made.eval()
