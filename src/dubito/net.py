"""A module as a function of one flat weight vector: `Net` holds a private copy and never touches the user's own."""

import contextlib
import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from dubito import running, runtime
from dubito.copies import attributes, check_dtypes, private_copy, put_back
from dubito.cost import FlopCounter
from dubito.dropout import Dropping, Site, fused_modules, locate, make_masks, make_uniforms
from dubito.inputs import Inputs, arguments, n_rows, plain, rows, signature
from dubito.layout import Layout, Theta
from dubito.noisy import Estimator, Noise, Noising, Scheme, Uses, Watching, make_noise, scheme
from dubito.products import ByOneDNN
from dubito.rng import Rng, drew, isolated_everywhere

# train: live statistics, dropout on; dropout: frozen ones, dropout on; live: live ones, dropout off
Mode: TypeAlias = Literal["eval", "train", "dropout", "live"]
Buffers: TypeAlias = dict[str, Tensor]
_OPEN = contextlib.nullcontext()


class Net:
    """Any `nn.Module` as f(theta, x); parameters named in `fixed` are constants, the rest make up theta.

    Tied weights are one stretch of theta; a submodule reachable under two names is one submodule.
    `dropout` puts dropout of that rate on the input of every linear or convolution but the first where the module
    has none of its own, and replaces the rate of its own where it has.
    """

    def __init__(self, module: nn.Module, fixed: Collection[str] = (), dropout: float | None = None) -> None:
        self.module = private_copy(module)
        self._attributes = attributes(self.module)
        self.fixed, self.dropout = frozenset(fixed), dropout
        named = dict(self.module.named_parameters())
        free = {name: p for name, p in named.items() if name not in self.fixed}
        check_dtypes(free)
        self.layout = Layout.of(free)
        self._slots = _slots(self.module)
        self._norms = running.tracked(self.module)
        self._live = running.buffer_names(self.module, self._norms)
        self._still: list[nn.Module] = []  # owners of other buffers that move in training
        self._traces: dict[Any, _Trace] = {}
        self._schemes: dict[Any, Scheme] = {}
        self._vectorise: dict[Any, bool] = {}
        self._costs: dict[Any, FlopCounter] = {}
        self._mode: Mode = "eval"
        self._has_attention = any(
            isinstance(m, nn.MultiheadAttention | nn.TransformerEncoderLayer) for m in self.module.modules()
        )

    # -- what it is made of ------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the private copy lies."""
        return next((t.device for t in self._tensors()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """The one dtype of all weights."""
        return next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.get_default_dtype())

    @property
    def has_batch_norm(self) -> bool:
        """Whether some layer keeps running statistics."""
        return bool(self._norms)

    @property
    def untouched_norms(self) -> list[str]:
        """Normalisation layers whose running statistics have never seen data."""
        return running.untouched(self.module)

    def theta(self) -> Tensor:
        """The module's own weights as (D,)."""
        named = {n: p.detach() for n, p in self.module.named_parameters() if n not in self.fixed}
        return self.layout.join(named) if named else torch.zeros(0, dtype=self.dtype, device=self.device)

    def constants(self) -> dict[str, Tensor]:
        """The parameters kept fixed."""
        return {n: p.detach() for n, p in self.module.named_parameters() if n in self.fixed}

    def buffers(self, members: int) -> Buffers:
        """The buffers that move in training for each member, (members, ...), as the module has them."""
        named = dict(self.module.named_buffers())
        return {n: named[n].detach().unsqueeze(0).repeat(members, *(1,) * named[n].dim()) for n in self._live}

    def to(self, device: torch.device | str) -> "Net":
        """The same function on another device; itself when it is there already."""
        picked = runtime.pick_device(device)
        if picked.type == self.device.type:
            return self
        return Net(copy.deepcopy(self.tidied()).to(picked), self.fixed, self.dropout)

    def with_dropout(self, rate: float | None) -> "Net":
        """The same module with another dropout rate."""
        return Net(self.tidied(), self.fixed, rate)

    def tidied(self) -> nn.Module:
        """The private copy, less what forward passes have left in its attributes, so that it can be copied."""
        put_back(self.module, self._attributes)
        return self.module

    def network(self, theta: Tensor, buffers: Mapping[str, Tensor] | None = None) -> nn.Module:
        """A plain module in evaluation mode that holds the given weights."""
        module = copy.deepcopy(self.tidied()).requires_grad_(True).eval()
        values = self.layout.split(theta.detach())
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in values:
                    parameter.copy_(values[name])
            for name, buffer in module.named_buffers():
                if buffers and name in buffers:
                    buffer.copy_(buffers[name])
        return module

    # -- calling -----------------------------------------------------------------------------------------------

    def __call__(
        self,
        theta: Theta,
        x: Inputs,
        mode: Mode = "eval",
        buffers: Mapping[str, Tensor] | None = None,
        masks: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """The outputs (B, ...) of one weight vector (D,); what moves in training is updated in `buffers`, in place."""
        return self._forward(self.layout.split(theta), x, mode, buffers, masks)

    def _forward(
        self,
        values: Mapping[str, Tensor],
        x: Inputs,
        mode: Mode,
        buffers: Mapping[str, Tensor] | None,
        masks: Sequence[Tensor] | None = None,
    ) -> Tensor:
        tensors = {slot: values[name] for slot, name in self._slots.items() if name in values}
        moves = mode in ("train", "live") and bool(self._live)
        held = buffers or (runtime.member(self.buffers(1), 0) if moves else {})
        if mode == "dropout":
            held = {name: buffer.clone() for name, buffer in held.items()}  # a part that drops by itself moves its own
        tensors.update(held)
        args, kwargs = arguments(x)
        self._switch(mode)
        with self._guards(mode, x, masks) if self._needs_guards(masks) else _OPEN:
            outputs = functional_call(self.module, tensors, args, kwargs, tie_weights=False)
        for name, buffer in held.items():
            if tensors[name] is not buffer:  # replaced by the module, not updated in place
                buffer.copy_(tensors[name])
        if not isinstance(outputs, Tensor):
            raise ValueError(
                f"the network returned {type(outputs).__name__}, not a tensor; wrap it so that forward() "
                "returns the outputs alone"
            )
        return outputs

    def many(
        self,
        thetas: Tensor,
        x: Inputs,
        mode: Mode = "eval",
        buffers: Mapping[str, Tensor] | None = None,
        masks: Sequence[Tensor] | None = None,
        *,
        timed: bool = False,
    ) -> Tensor:
        """The outputs (S, B, ...) of S weight vectors (S, D); `timed` lets a stopwatch choose between vmap and loop."""

        def one(theta: Tensor, buffers: Buffers, own: list[Tensor]) -> Tensor:
            return self(theta, x, mode, buffers, None if masks is None else own)

        args = (thetas, dict(buffers or {}), list(masks or []))
        together = self.vectorises(one, args, x, mode, timed)
        with ByOneDNN() if self.device.type == "cpu" and not together else _OPEN:
            outputs: Tensor = runtime.over_members(one, args, len(thetas), together)
        return outputs

    def vectorises(
        self, f: Callable[..., Any], args: tuple[Any, ...], x: Inputs, mode: Mode, timed: bool = False
    ) -> bool:
        """Whether several members of f run side by side (vmap) or one after another: by a rule, or by a stopwatch."""
        if len(args[0]) == 1:
            return False
        key = (f.__qualname__, timed, mode, signature(x), n_rows(x))
        if key not in self._vectorise:
            cost = self._counted(x)
            flops = float(cost.total) * n_rows(x)
            measure = timed and runtime.wants_probe(flops, cost.convolves, self.device)
            worth = measure or runtime.pays_to_vectorise(flops, self.device)
            able = worth and self._has_rule(f, args)
            self._vectorise[key] = able and (not measure or runtime.is_faster_vectorised(f, args))
        return self._vectorise[key]

    def vectorises_draws(self, f: Callable[..., Any], args: tuple[Any, ...], x: Inputs, mode: Mode) -> bool:
        """Whether draws of f that share their weights run side by side: wherever vmap can, as one tall product."""
        key = (f.__qualname__, "draws", mode, signature(x))
        if key not in self._vectorise:
            self._vectorise[key] = self._has_rule(f, args)
        return self._vectorise[key]

    def _has_rule(self, f: Callable[..., Any], args: tuple[Any, ...]) -> bool:
        trial = tree_map(lambda t: t[:2].clone(), args)
        with torch.no_grad(), isolated_everywhere("trial"), running.watched(self.module, []):
            return runtime.supports_vmap(f, trial)

    def flops(self, x: Inputs) -> float:
        """Floating-point operations of one forward pass over x."""
        return float(self._counted(x).total) * n_rows(x)

    def _counted(self, x: Inputs) -> FlopCounter:
        """A forward pass over one row of x, counted once."""
        if (key := signature(x)) not in self._costs:
            with torch.no_grad(), FlopCounter() as counter:
                self(self.theta(), rows(x, slice(0, 1)))
            self._costs[key] = counter
        return self._costs[key]

    # -- Gaussian weights --------------------------------------------------------------------------------------

    def scheme(self, x: Inputs, random: Sequence[str], estimator: Estimator) -> Scheme:
        """How each of the random parameters is drawn in a pass over inputs of this shape."""
        key = (signature(x), tuple(random), estimator)
        if key not in self._schemes:
            one = rows(x, slice(0, 1))
            two = tree_map(lambda t: torch.cat([t, t]), plain(one))
            self._watch(
                one, random
            )  # recurrent layers look their weights over in the first pass after a functional one
            self._schemes[key] = scheme(estimator, random, self._watch(one, random), self._watch(two, random))
        return self._schemes[key]

    def noise(self, scheme: Scheme, x: Inputs, members: int, draws: int, rng: Rng) -> Noise:
        """The random numbers of some draws for each member, {name: (members, draws, ...)}."""
        return make_noise(scheme, self.layout, n_rows(x), (members, draws), rng, self._like())

    def noisy(
        self,
        mean: Theta,
        std: Theta,
        x: Inputs,
        scheme: Scheme,
        noise: Noise,
        mode: Mode = "eval",
        buffers: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """The outputs (B, ...) of one draw of the weights N(mean, diag std^2), (D,) each, under the noise given."""
        values, stds = self.layout.split(mean), self.layout.split(std)
        values |= {n: torch.addcmul(values[n], stds[n], noise[n]) for n in scheme.drawn}
        with Noising(scheme, values, stds, noise):
            return self._forward(values, x, mode, buffers)

    def _watch(self, x: Inputs, random: Sequence[str]) -> Uses:
        names = {id(p): n for n, p in self.module.named_parameters() if n in random}
        watcher = Watching(names)
        args, kwargs = arguments(x)
        self._switch("eval")
        with (
            torch.no_grad(),
            isolated_everywhere("watch"),
            running.watched(self.module, []),
            runtime.no_fast_path(),
            watcher,
        ):
            self.module(*args, **kwargs)
        return watcher.uses

    # -- dropout -----------------------------------------------------------------------------------------------

    def sites(self, x: Inputs) -> list[Site]:
        """Every dropout call of a pass over inputs of this shape."""
        return self._trace(x).sites

    @property
    def known_sites(self) -> list[Site]:
        """Every dropout call of the first pass that was looked at."""
        return next((trace.sites for trace in self._traces.values()), [])

    def fused_dropout(self, x: Inputs) -> list[str]:
        """Dropout inside fused attention or recurrent calls, which masks cannot reach."""
        return fused_modules(self.module) + self._trace(x).fused

    def draws(self, x: Inputs) -> bool:
        """Whether a pass in training draws from a global generator, where masks cannot reach."""
        return self._trace(x).draws or bool(self.fused_dropout(x))  # cuDNN's may draw from a state of its own

    def masks(
        self,
        x: Inputs,
        members: int,
        rng: Rng,
        *,
        shared: bool,
        first: int = 0,
        draws: tuple[int, ...] = (),
        rates: Tensor | None = None,
    ) -> list[Tensor] | None:
        """Dropout masks for a batch: per example, or one per member for all examples; None where nothing drops.

        `rates` (members, sites) take the place of the network's own.
        """
        sites, size = self.sites(x), n_rows(x)
        if not sites:
            return None
        drawn = make_uniforms(sites, members, size, rng, self._like(), shared=shared, first=first, draws=draws)
        return make_masks(sites, drawn, size if shared else 1, rates)

    def _trace(self, x: Inputs) -> "_Trace":
        key = signature(x)
        if key not in self._traces:
            self._traces[key] = self._traced(rows(x, slice(0, 1)))
        return self._traces[key]

    def _traced(self, one: Inputs) -> "_Trace":
        two = tree_map(lambda t: torch.cat([t, t]), plain(one))
        own = self._stilled(one, self._record(one, inputs=False)[0])
        inputs = self.dropout is not None and not own
        (single, fused, draws), (double, _, _) = self._record(one, inputs), self._record(two, inputs)
        return _Trace(locate(single, double, self.dropout), fused, inputs, draws)

    def _stilled(self, x: Inputs, sites: list[Site]) -> list[Site]:
        """The dropout calls once buffers rest under masks too, but for those of parts that drop by themselves."""
        owners = [m for m in running.owners(self.module, self._live) if m not in self._norms]
        if owners == self._still:
            return sites
        self._switch("eval")
        self._still = owners
        if len(found := self._record(x, inputs=False)[0]) == len(sites):
            return found
        self._switch("eval")
        self._still = []
        return sites

    def _record(self, x: Inputs, inputs: bool) -> tuple[list[Site], list[str], bool]:
        record: list[Site] = []
        recorder = Dropping(None, inputs, record, {id(p): n for n, p in self.module.named_parameters()})
        args, kwargs = arguments(x)
        self._switch("dropout")
        with torch.no_grad(), running.watched(self.module, self._live), recorder:
            draws = drew(self.device, lambda: self.module(*args, **kwargs))
        return record, recorder.fused, draws

    @contextlib.contextmanager
    def _guards(self, mode: Mode, x: Inputs, masks: Sequence[Tensor] | None) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self._has_attention:
                stack.enter_context(runtime.no_fast_path())
            if masks is not None or self._may_drop:
                inputs = masks is not None and self._trace(x).inputs
                stack.enter_context(Dropping(masks, inputs))
            yield

    def _needs_guards(self, masks: Sequence[Tensor] | None) -> bool:
        return masks is not None or self._may_drop or self._has_attention

    @property
    def _may_drop(self) -> bool:
        """Whether a call without masks could still drop: until a trace has shown that it cannot."""
        return not self._traces or any(trace.sites for trace in self._traces.values())

    def _switch(self, mode: Mode) -> None:
        if mode == self._mode:
            return
        self.module.train(mode in ("train", "dropout"))
        for norm in self._norms:
            norm.train(mode in ("train", "live"))
        for part in self._still if mode == "dropout" else ():
            part.training = False
        self._mode = mode

    def _like(self) -> Tensor:
        return torch.empty(0, dtype=self.dtype, device=self.device)

    def _tensors(self) -> Iterator[Tensor]:
        yield from self.module.parameters()
        yield from self.module.buffers()


class _Trace:
    """What a recorded pass saw: dropout sites, dropout out of reach, sites added on inputs, and draws by itself."""

    def __init__(self, sites: list[Site], fused: list[str], inputs: bool, draws: bool) -> None:
        self.sites, self.fused, self.inputs, self.draws = sites, fused, inputs, draws


def _slots(module: nn.Module) -> dict[str, str]:
    """Every distinct (submodule, attribute) -> the canonical name of the parameter in it."""
    canonical = {id(p): name for name, p in module.named_parameters()}
    return {
        f"{prefix}.{key}" if prefix else key: canonical[id(p)]
        for prefix, sub in module.named_modules()
        for key, p in sub._parameters.items()
        if p is not None
    }
