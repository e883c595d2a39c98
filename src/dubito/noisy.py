"""Gaussian weights without rewriting the network: noise where a weight meets its input.

Where a weight W ~ N(M, S^2) is used once in a pass, as the weight of a linear map or convolution F, its output is

    local     F(x, M) + sqrt(F(x^2, S^2)) zeta         one zeta per output: every example has its own weights
    flipout   F(x, M) + r F(s x, S eps)                 one eps for all examples, signs r, s per example and channel

(Kingma et al. 2015, https://arxiv.org/abs/1506.02557; Wen et al. 2018, https://arxiv.org/abs/1803.04386), and so is its
bias. All other weights are drawn once per draw, W = M + S eps. A recorded pass tells which is which, and the noise is
made outside: draws under vmap, in a loop or alone see the same numbers.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dubito import local
from dubito.dropout import LAYERS
from dubito.layout import Layout
from dubito.rng import Rng

Estimator = Literal["local", "weights", "flipout"]
Noise = dict[str, Tensor]
METADATA = {"size", "dim", "numel", "nelement", "ndimension", "stride", "is_floating_point", "is_contiguous", "__len__"}


def log_alpha(mean: Tensor, std: Tensor) -> Tensor:
    """log(std^2 / mean^2): of Gaussian dropout's rate, in which w = mean (1 + sqrt(alpha) eps); -inf where std is 0."""
    return 2 * (std.log() - log_size(mean))


def log_size(mean: Tensor) -> Tensor:
    """log |mean|, finite."""
    return mean.abs().clamp_min_(torch.finfo(mean.dtype).tiny).log_()


class Call(NamedTuple):
    """A call of a linear map or a convolution, its arguments sorted out."""

    function: Callable[..., Tensor]
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, function: Callable[..., Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "Call":
        """The arguments by name or by place: input, weight, bias, then the layer's own."""
        named = dict(zip(("input", "weight", "bias"), args[:3], strict=False)) | dict(kwargs)
        x, weight, bias = named.pop("input"), named.pop("weight"), named.pop("bias", None)
        return cls(function, x, weight, bias, args[3:], named)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The same layer with other numbers in it."""
        return self.function(x, weight, bias, *self.args, **self.kwargs)

    def aligned(self, bias: Tensor) -> Tensor:
        """A vector over channels as it is added to the outputs."""
        return bias if self.weight.dim() == 2 else bias.view(-1, *(1,) * (self.weight.dim() - 2))


@dataclass(frozen=True)
class Site:
    """A layer call that gets noise: the random parameters in it, and its shapes for one example."""

    layer: str
    weight: str | None
    bias: str | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    batch_axis: int

    @property
    def name(self) -> str:
        """What its noise is called by."""
        return self.weight or str(self.bias)

    @property
    def positions(self) -> int:
        """How many outputs of one example share a weight."""
        return math.prod(self.outputs) // self.outputs[self.channels]

    @property
    def channels(self) -> int:
        """The axis of features in its input and output."""
        return len(self.outputs) - 1 if self.layer == "linear" else 1

    @property
    def folded(self) -> bool:
        """Whether examples and positions share an axis."""
        return self.outputs[self.batch_axis] > 1

    def shape_for(self, batch: int) -> tuple[int, ...]:
        """The output's shape for a whole batch."""
        return tuple(n * batch if axis == self.batch_axis else n for axis, n in enumerate(self.outputs))

    def signs_for(self, batch: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """One sign per example and channel, shared over positions."""
        kept = {self.batch_axis: batch, self.channels: sizes[self.channels]}
        return tuple(kept.get(axis, 1) for axis in range(len(sizes)))


class Path(NamedTuple):
    """How a parameter is drawn, and why."""

    estimator: str
    why: str


@dataclass(frozen=True)
class Scheme:
    """Which calls get noise on their outputs, and which parameters are drawn in weight space."""

    estimator: Estimator
    sites: tuple[Site, ...]
    drawn: tuple[str, ...]
    paths: Mapping[str, Path] = field(compare=False)

    def normals(self, layout: Layout, batch: int) -> dict[str, tuple[int, ...]]:
        """The normals that one draw of a batch needs, and their shapes."""
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        needed = {name: shapes[name] for name in self.drawn}
        for site in self.sites:
            if self.estimator == "local":
                needed[f"{site.name}/outputs"] = site.shape_for(batch)
            else:
                needed |= {name: shapes[name] for name in (site.weight, site.bias) if name}
        return needed

    def signs(self, batch: int) -> dict[str, tuple[int, ...]]:
        """The signs that one draw of a batch needs, and their shapes."""
        needed = {}
        for site in self.sites if self.estimator == "flipout" else ():
            needed[f"{site.name}/r"] = site.signs_for(batch, site.outputs)
            if site.weight:
                needed[f"{site.name}/s"] = site.signs_for(batch, site.inputs)
        return needed


def make_noise(scheme: Scheme, layout: Layout, batch: int, shape: tuple[int, int], rng: Rng, like: Tensor) -> Noise:
    """The noise of (members, draws) passes over a batch, a function of its name and member alone."""
    normals, signs = scheme.normals(layout, batch), scheme.signs(batch)
    noise = rng.normals({name: like.new_empty(*shape, *size) for name, size in normals.items()})
    for name, size in signs.items():
        noise[name] = rng.uniform((*shape, *size), name, like).lt(0.5).to(like.dtype).mul_(2).sub_(1)
    return noise


class Noising(TorchFunctionMode):
    """Put noise on the outputs of some calls, recognised by the mean tensors in them."""

    def __init__(self, scheme: Scheme, means: Mapping[str, Tensor], stds: Mapping[str, Tensor], noise: Noise) -> None:
        super().__init__()
        self.estimator, self.sites = scheme.estimator, {id(means[site.name]): site for site in scheme.sites}
        self.stds, self.noise = stds, noise

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in LAYERS:
            return func(*args, **kwargs)
        call = Call.of(func, args, kwargs)
        site = self.sites.get(id(call.weight)) or self.sites.get(id(call.bias))
        if site is None:
            return func(*args, **kwargs)
        return self._local(site, call) if self.estimator == "local" else self._flipped(site, call)

    def _local(self, site: Site, call: Call) -> Tensor:
        weight, bias = self._spread(site, self.stds)
        zeta = self.noise[f"{site.name}/outputs"]
        if weight is not None and call.weight.dim() == 2:
            self._check(site, (*call.x.shape[:-1], len(call.weight)))
            return local.linear(call.x, call.weight, call.bias, weight, bias, zeta)
        if weight is not None:
            mean, std = local.moments(call.__call__, call.x, call.weight, call.bias, weight, bias)
        else:
            mean, std = call(call.x, call.weight, call.bias), call.aligned(cast(Tensor, bias))
        self._check(site, tuple(mean.shape))
        return torch.addcmul(mean, std, zeta)

    def _check(self, site: Site, shape: tuple[int, ...]) -> None:
        expected = tuple(self.noise[f"{site.name}/outputs"].shape)
        if shape != expected:
            raise ValueError(
                f"the layer that holds {site.name!r} now gives {shape}, not {expected} as in the example; use "
                "estimator='weights' for a forward pass whose calls depend on the data"
            )

    def _flipped(self, site: Site, call: Call) -> Tensor:
        change = {name: self.stds[name] * self.noise[name] for name in (site.weight, site.bias) if name}
        r, s = self.noise[f"{site.name}/r"], self.noise.get(f"{site.name}/s")
        return flipped(call, call(call.x, call.weight, call.bias), *self._spread(site, change), r, s)

    def _spread(self, site: Site, values: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """What belongs to a site's weight and to its bias, where they are random."""
        return values.get(site.weight or ""), values.get(site.bias or "")


def flipped(
    call: Call, outputs: Tensor, weight: Tensor | None, bias: Tensor | None, r: Tensor, s: Tensor | None
) -> Tensor:
    """A call's outputs with one draw of the changes in weights and biases, signs r and s on its outputs and inputs."""
    if weight is None or s is None:
        return outputs if bias is None else outputs + r * call.aligned(bias)
    return torch.addcmul(outputs, r, call(call.x * s, weight, bias))


class Use(NamedTuple):
    """One appearance of a parameter in a pass: in which call, and as what."""

    number: int
    function: str
    role: Literal["weight", "bias", "other"]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


class Watching(TorchFunctionMode):
    """Note every use of some parameters."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names, self.number = names, 0
        self.uses: dict[str, list[Use]] = {name: [] for name in names.values()}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        self.number += 1
        for leaf in tree_leaves((args, kwargs)):
            if id(leaf) in self.names and not _only_looks(func, outputs):
                self.uses[self.names[id(leaf)]].append(self._use(leaf, func, args, kwargs, outputs))
        return outputs

    def _use(
        self, leaf: Tensor, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any
    ) -> Use:
        name = getattr(func, "__name__", str(func))
        if func in LAYERS:
            call = Call.of(func, args, kwargs)
            role: Literal["weight", "bias"] = "weight" if call.weight is leaf else "bias"
            if call.x is not leaf:
                return Use(self.number, name, role, tuple(call.x.shape), tuple(outputs.shape))
        return Use(self.number, name, "other")


def _only_looks(func: Callable[..., Any], outputs: Any) -> bool:
    """Whether a call asks for a shape, a type or a device and not for values."""
    name = getattr(func, "__name__", "")
    values = any(isinstance(leaf, Tensor) for leaf in tree_leaves(outputs))
    return not values and (name == "__get__" or name in METADATA)


Uses = Mapping[str, Sequence[Use]]


def scheme(estimator: Estimator, random: Collection[str], one: Uses, two: Uses) -> Scheme:
    """How each random parameter is drawn, from its uses in a pass over one example and in one over two."""
    if estimator == "weights":
        return Scheme(estimator, (), tuple(random), dict.fromkeys(random, Path("weights", "")))
    why = {name: _obstacle(one[name], two[name]) for name in random}
    calls: dict[int, dict[str, str]] = {}
    for name in random:
        if not why[name]:
            calls.setdefault(one[name][0].number, {})[one[name][0].role] = name
    sites = []
    for roles in calls.values():
        site = _site(roles, one, two)
        if estimator == "flipout" and site.folded:
            why |= dict.fromkeys(
                roles.values(), "examples and positions share an axis, so no sign can follow one example"
            )
        else:
            sites.append(site)
    paths = {name: Path("weights", reason) for name, reason in why.items()}
    for site in sites:
        paths |= {name: _path(estimator, site) for name in (site.weight, site.bias) if name}
    drawn = tuple(name for name in random if paths[name].estimator == "weights")
    return Scheme(estimator, tuple(sites), drawn, paths)


def _obstacle(one: Sequence[Use], two: Sequence[Use]) -> str:
    """Why a parameter must be drawn in weight space; empty where it need not."""
    if len(one) != len(two) or any(a.number != b.number for a, b in zip(one, two, strict=True)):
        return "its uses depend on the number of examples"
    if not one:
        return "no use of it was seen"
    if len(one) > 1:
        return f"used {len(one)} times in a pass, so one draw must serve them all"
    if one[0].role == "other":
        return f"used by {one[0].function}, which takes whole weights"
    return "" if _axes(one[0], two[0]) else "its layer's input does not grow with the number of examples"


def _axes(one: Use, two: Use) -> list[int]:
    """The axis along which examples lie, the same in input and output; none where that is not so."""
    found = [
        [axis for axis, (a, b) in enumerate(zip(p, q, strict=True)) if a != b]
        for p, q in ((one.inputs, two.inputs), (one.outputs, two.outputs))
    ]
    doubled = all(two.outputs[axis] == 2 * one.outputs[axis] for axis in found[1])
    return found[1] if found[0] == found[1] and len(found[1]) == 1 and doubled else []


def _site(roles: Mapping[str, str], one: Uses, two: Uses) -> Site:
    name = next(iter(roles.values()))
    use = one[name][0]
    (axis,) = _axes(use, two[name][0])
    return Site(use.function, roles.get("weight"), roles.get("bias"), use.inputs, use.outputs, axis)


def _path(estimator: Estimator, site: Site) -> Path:
    if estimator == "flipout":
        return Path("flipout", f"{site.layer} on {site.positions} position(s)")
    if site.positions == 1:
        return Path("local", f"{site.layer} acts once per example")
    return Path("local (approximate)", f"{site.layer} acts on {site.positions} positions, whose noise is independent")
