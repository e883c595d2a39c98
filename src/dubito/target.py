"""The log-posterior: the only place that sees data and knows N.

    log p(theta | D) = [ N * mean_i log p(y_i | f(theta, x_i)) + log p(theta) ] / T + const,

estimated without bias from a mini-batch. theta is [net | likelihood]: learned noise follows the weights.
"""

import math
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from dubito import runtime
from dubito.dropout import relaxed_masks
from dubito.inputs import Inputs
from dubito.layout import Layout, Stretches, Theta, dots, whole
from dubito.likelihoods import Likelihood
from dubito.net import Buffers, Mode, Net
from dubito.noisy import Noise, Scheme
from dubito.pooling import pooled
from dubito.priors import LOG_SQRT_2PI, Assigned, Fixed, Normal, Normals, Point, Prior, slopes
from dubito.rng import Rng, isolated_everywhere


class Batch(NamedTuple):
    """Rows of the data: `rows` tells which, `weight` how much each counts, (B,) or (members, B).

    Where members have rows of their own, x and y are (members, B, ...).
    """

    x: Inputs
    y: Tensor
    rows: Tensor
    weight: Tensor | None = None
    own: bool = False

    @property
    def example(self) -> Inputs:
        """The inputs of one member."""
        return tree_map(lambda t: t[0], self.x) if self.own else self.x

    def apart(self, members: int) -> dict[str, Any]:
        """What each member has for itself, members first: `batch._replace(**part)` is the batch of one."""
        rows = {"x": self.x, "y": self.y} if self.own else {}
        return rows if self.weight is None else {**rows, "weight": self.weight.expand(members, -1)}

    def repeated(self, times: int) -> "Batch":
        """For so many copies of each member, beside each other."""
        own = self.own or (self.weight is not None and self.weight.dim() > 1)
        parts = self.apart(-1) if own else {}
        return self._replace(**tree_map(lambda t: t.repeat_interleave(times, 0), parts))


class Parts(NamedTuple):
    """The two halves of the log-posterior for each member, (S,): mean log-likelihood per datum, and log prior."""

    log_lik: Tensor
    log_prior: Tensor


class FlatPrior:
    """log p(theta) over the whole flat vector: all normal stretches in one expression, the others one by one."""

    def __init__(self, layout: Layout, assigned: Mapping[str, Assigned], like: Tensor) -> None:
        normal = {n: p for n, p in assigned.items() if isinstance(p, Normal | Normals) and type(p) in (Normal, Normals)}
        self.normals = {n: layout.spans[n] for n in normal}
        self.others = [(layout.spans[n], p) for n, p in assigned.items() if isinstance(p, Prior) and n not in normal]
        self.size = layout.size
        mean, precision = torch.zeros(2, layout.size, dtype=torch.float64)
        self.log_norm = 0.0
        for name, prior in normal.items():
            centre, std = (torch.as_tensor(v, dtype=torch.float64).flatten() for v in (prior.mean, prior.std))
            span = self.normals[name]
            mean[span], precision[span] = centre, std**-2
            self.log_norm -= float((std.log() + LOG_SQRT_2PI).expand(span.stop - span.start).sum())
        self.mean = _short(mean, like) if mean.any() else None
        self.precision = _short(precision, like)

    @cached_property
    def at_zero(self) -> Tensor:
        """log p(0), (1,)."""
        return self.value_and_grad(self.precision.new_zeros(1, self.size))[0]

    @cached_property
    def isotropic(self) -> float | None:
        """The precision of all weights alike around 0, on the CPU; None under any other prior or elsewhere."""
        alike = self.mean is None and not self.others and self.precision.dim() == 0
        return float(self.precision) if alike and self.precision.device.type == "cpu" and self.precision > 0 else None

    def value_and_grad(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """log p(theta), (S,), and its gradient, (S, D)."""
        centred = theta if self.mean is None else theta - self.mean
        grad = centred * -self.precision
        value = 0.5 * dots(grad, centred) + self.log_norm
        for span, prior in self.others:
            part = theta[:, span].detach().requires_grad_()
            with torch.enable_grad():
                density = prior.log_prob(part).flatten(1).sum(1)
                (slope,) = slopes(density.sum(), part)
            value, grad[:, span] = value + density.detach(), slope
        return value, grad


def _short(vector: Tensor, like: Tensor) -> Tensor:
    """A constant vector as one number, which is cheaper to multiply by."""
    constant = vector.numel() and bool((vector == vector[0]).all())
    return (vector[0] if constant else vector).to(like)


class Target:
    """A network, its likelihood, its prior and the size of the data: what every method needs to know."""

    def __init__(
        self,
        net: Net,
        likelihood: Likelihood,
        prior: Mapping[str, Assigned],
        n_data: int,
        temperature: float = 1.0,
    ) -> None:
        if n_data < 1:
            raise ValueError(f"n_data must be at least 1, got {n_data}")
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be positive, got {temperature}; 1 is the Bayesian posterior")
        self.net, self.likelihood, self.prior = net, likelihood, dict(prior)
        self.n_data, self.temperature = n_data, temperature
        noise = likelihood.parameters()
        self.noise_layout = Layout.of(noise)
        tail = Layout(tuple(f"likelihood.{n}" for n in noise), self.noise_layout.shapes)
        self.layout = net.layout + tail
        priors = {f"likelihood.{n}": p for n, p in likelihood.parameter_priors().items()}
        self._assigned = {n: p for n, p in prior.items() if n in net.layout.names} | priors
        self._priors: dict[tuple[str, ...], FlatPrior] = {}
        self._alone: dict[str, FlatPrior] = {}
        self.flat_prior = self.prior_of(tuple(self._assigned))

    @cached_property
    def random(self) -> tuple[str, ...]:
        """The weights that have a prior density."""
        return tuple(n for n in self.net.layout.names if isinstance(self.prior[n], Prior))

    @cached_property
    def points(self) -> list[slice]:
        """Where theta holds what has no distribution: `Point()`, and the likelihood's own parameters."""
        return [span for name, span in self.layout.spans.items() if name not in self.random]

    def prior_of(self, names: tuple[str, ...]) -> FlatPrior:
        """The prior over some parameters; the others bring nothing."""
        if names not in self._priors:
            some = {n: p for n, p in self._assigned.items() if n in names}
            self._priors[names] = FlatPrior(self.layout, some, self._like())
        return self._priors[names]

    def prior_without(self, names: Collection[str]) -> FlatPrior:
        """The prior over all parameters but these."""
        return self.prior_of(tuple(n for n in self._assigned if n not in names))

    def prior_alone(self, name: str) -> FlatPrior:
        """The prior over one weight, as a function of its own stretch of theta."""
        if name not in self._alone:
            own = Layout((name,), (self.layout.shapes[self.layout.names.index(name)],))
            self._alone[name] = FlatPrior(own, {name: self._assigned[name]}, self._like())
        return self._alone[name]

    def start(self, net_theta: Tensor) -> Tensor:
        """Weights (S, D_net) with the likelihood's own parameters appended, (S, D)."""
        noise = self.likelihood.parameters()
        if not noise:
            return net_theta.clone()
        tail = self.noise_layout.join({n: v.to(net_theta) for n, v in noise.items()})
        return torch.cat([net_theta, tail.expand(len(net_theta), -1)], dim=1)

    def outputs(
        self,
        theta: Tensor,
        x: Inputs,
        mode: Mode = "eval",
        buffers: Buffers | None = None,
        masks: list[Tensor] | None = None,
    ) -> Tensor:
        """(S, B, ...): the outputs of several whole vectors."""
        return self.net.many(theta[:, : self.net.layout.size], x, mode, buffers, masks)

    def log_probs(self, theta: Tensor, batch: Batch, mode: Mode = "eval", buffers: Buffers | None = None) -> Tensor:
        """(S, B): log p(y | x, theta) of each example under each member and its own noise."""

        def log_probs(vector: Tensor, buffers: Buffers, own: dict[str, Any]) -> Tensor:
            (weights, noise), mine = self._parts(vector), batch._replace(**own)
            return self._log_probs(self.net(weights, mine.x, mode, buffers), noise, mine.y)

        args: tuple[Any, ...] = (theta, buffers or {}, batch.apart(len(theta)))
        together = self.net.vectorises(log_probs, args, batch.example, mode)
        found: Tensor = runtime.over_members(log_probs, args, len(theta), together)
        return found

    def log_prior(self, theta: Tensor) -> Tensor:
        """(S,): log p(theta)."""
        return self.flat_prior.value_and_grad(theta)[0]

    def value_and_grad(
        self,
        theta: Tensor,
        batch: Batch,
        *,
        mode: Mode = "eval",
        buffers: Buffers | None = None,
        rng: Rng | None = None,
    ) -> tuple[Parts, Tensor]:
        """The parts of the log-posterior at theta (S, D) and the gradient (S, D) of their sum over T.

        In mode "train" dropout is on, with masks from `rng`, and live statistics in `buffers` move.
        """
        masks = self.net.masks(batch.example, len(theta), rng, shared=False) if rng is not None else None
        own = rng is not None and self.net.draws(batch.example)
        with isolated_everywhere(rng.key("fused dropout")) if rng and own else nullcontext():
            log_lik, grad = self.lik_value_and_grad(theta, batch, mode, buffers or {}, masks)
        log_prior, prior_grad = self.flat_prior.value_and_grad(theta)
        grad = prior_grad.add_(grad, alpha=float(self.n_data))
        return Parts(log_lik, log_prior), grad if self.temperature == 1 else grad.div_(self.temperature)

    def side_by_side(self, batch: Batch) -> bool:
        """Whether several weight vectors answer a batch at once; those of large networks do so one after another."""
        return runtime.pays_to_vectorise(self.net.flops(batch.x), self.net.device)

    def lik_value_and_grad(
        self, theta: Tensor, batch: Batch, mode: Mode, buffers: Buffers, masks: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean log-likelihood per datum (S,) and its gradient (S, D)."""

        def mean_log_lik(vector: Tensor, buffers: Buffers, masks: list[Tensor], own: dict[str, Any]) -> Tensor:
            return self._mean_log_lik(vector, batch._replace(**own), mode, buffers, masks if has_masks else None)

        has_masks = masks is not None
        rest: tuple[Any, ...] = (buffers, masks or [], batch.apart(len(theta)))
        together = self.net.vectorises(mean_log_lik, (theta, *rest), batch.example, mode)
        value, (grad,) = _over_members(mean_log_lik, (theta,), rest, together)
        return value, whole(grad)

    def masked_value_and_grad(
        self, theta: Tensor, batch: Batch, masks: list[Tensor], buffers: Buffers, alpha: float
    ) -> tuple[Tensor, Tensor]:
        """Mean over data of `pooled` log-likelihoods over draws of dropout masks, (S,), and its gradient (S, D).

        Masks and buffers are (S, draws, ...).
        """

        def one(batch: Batch, vector: Theta, buffers: Buffers, masks: list[Tensor]) -> Tensor:
            weights, own = self._parts(vector)
            return self._log_probs(self.net(weights, batch.x, "train", buffers, masks), own, batch.y)

        value, (grad,) = self._pooled_value_and_grad(one, (theta,), (buffers, masks), batch, "train", alpha)
        return value, whole(grad)

    def relaxed_value_and_grad(
        self, theta: Tensor, logit: Tensor, batch: Batch, noise: list[Tensor], temperature: float, buffers: Buffers
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mean log-likelihood under `relaxed_masks` (S,), its gradients by theta (S, D) and by logits (S, sites)."""

        def mean_log_lik(
            vector: Tensor, logit: Tensor, buffers: Buffers, noise: list[Tensor], own: dict[str, Any]
        ) -> Tensor:
            masks = relaxed_masks(logit, noise, temperature)
            return self._mean_log_lik(vector, batch._replace(**own), "train", buffers, masks)

        rest: tuple[Any, ...] = (buffers, noise, batch.apart(len(theta)))
        together = self.net.vectorises(mean_log_lik, (theta, logit, *rest), batch.example, "train")
        value, (by_theta, by_logit) = _over_members(mean_log_lik, (theta, logit), rest, together)
        return value, whole(by_theta), whole(by_logit)

    def noisy_value_and_grad(
        self,
        mean: Tensor,
        std: Tensor,
        batch: Batch,
        scheme: Scheme,
        noise: Noise,
        mode: Mode,
        buffers: Buffers,
        alpha: float = 0.0,
    ) -> tuple[Tensor, Stretches, Stretches]:
        """The same over draws of the weights N(mean, diag std^2), (S,), and its gradients (S, D) in stretches.

        Noise and buffers are (S, draws, ...), as `Net.noise` makes them.
        """

        def one(batch: Batch, mean: Theta, std: Theta, buffers: Buffers, noise: Noise) -> Tensor:
            (weights, own), (stds, _) = self._parts(mean), self._parts(std)
            outputs = self.net.noisy(weights, stds, batch.x, scheme, noise, mode, buffers)
            return self._log_probs(outputs, own, batch.y)

        drawn = (buffers, noise)
        value, (by_mean, by_std) = self._pooled_value_and_grad(one, (mean, std), drawn, batch, mode, alpha)
        return value, by_mean, by_std

    def _pooled_value_and_grad(
        self, one: Any, leaves: tuple[Tensor, ...], drawn: tuple[Any, Any], batch: Batch, mode: Mode, alpha: float
    ) -> tuple[Tensor, list[Stretches]]:
        """Values and gradients by leaves (S, D) of what draws, `one(batch, *leaves, *drawn)` each, say together."""
        apart, first = batch.apart(len(leaves[0])), runtime.member(drawn, 0)
        draws = len(tree_leaves(first[1])[0])
        alone = batch._replace(**runtime.member(apart, 0))
        side_by_side = draws > 1 and self.net.vectorises_draws(
            lambda *parts: one(alone, *runtime.member(leaves, 0), *parts), first, batch.example, mode
        )

        def mean_log_lik(*parts: Any) -> Tensor:
            mine, own, drawn = parts[: len(leaves)], batch._replace(**parts[len(leaves)]), parts[len(leaves) + 1 :]
            each: Tensor = runtime.over_members(lambda *part: one(own, *mine, *part), drawn, draws, side_by_side)
            return _mean(pooled(each, alpha), own.weight)

        rest: tuple[Any, ...] = (apart, *drawn)
        together = self.net.vectorises(mean_log_lik, (*leaves, *rest), batch.example, mode)
        return _over_members(mean_log_lik, leaves, rest, together, self.layout)

    def _mean_log_lik(
        self,
        vector: Tensor,
        batch: Batch,
        mode: Mode,
        buffers: Buffers,
        masks: list[Tensor] | None,
    ) -> Tensor:
        weights, own = self._parts(vector)
        return _mean(self._log_probs(self.net(weights, batch.x, mode, buffers, masks), own, batch.y), batch.weight)

    def _parts(self, vector: Theta) -> tuple[Theta, Theta]:
        """The weights of one whole vector, and the likelihood's own parameters."""
        if not isinstance(vector, Tensor):
            return vector, {n: vector[f"likelihood.{n}"] for n in self.noise_layout.names}
        if not self.noise_layout.size:  # a split would copy the gradient once more
            return vector, vector[:0]
        weights, own = vector.split([self.net.layout.size, self.noise_layout.size])
        return weights, own

    def _log_probs(self, outputs: Tensor, own: Theta, y: Tensor) -> Tensor:
        """(B,): log p(y | outputs) under one network's own noise."""
        return self.likelihood.bind(self.noise_layout.split(own)).log_prob(outputs, y)

    def _like(self) -> Tensor:
        return torch.empty(0, dtype=self.net.dtype, device=self.net.device)


def _mean(log_prob: Tensor, weight: Tensor | None) -> Tensor:
    return (log_prob if weight is None else log_prob * weight).mean()


def _over_members(
    f: Any, leaves: tuple[Tensor, ...], rest: tuple[Any, ...], together: bool, layout: Layout | None = None
) -> tuple[Tensor, list[Stretches]]:
    """Values (S,) of f(*leaves, *rest), all members first, and its gradients by the leaves.

    A member alone sees leaves that have a layout split by it, so that gradients by its tensors need not be joined.
    """
    members = len(leaves[0])
    if layout is not None and members == 1:
        points = tuple(layout.split(leaf[0]) for leaf in leaves)
        value, named = _grad(lambda *t: f(*t, *runtime.member(rest, 0)), points)
        return value.unsqueeze(0), [[grad[n].reshape(1, -1) for n in layout.names] for grad in named]
    if together:
        value, grads = _grad(lambda *t: runtime.over_members(f, (*t, *rest), members, True), leaves)
    else:
        each = range(members)
        rows = [_grad(lambda *t, s=s: f(*t, *runtime.member(rest, s)), runtime.member(leaves, s)) for s in each]
        value, grads = runtime.stack(rows)
    return value, [[grad] for grad in grads]


def _grad(f: Any, leaves: tuple[Any, ...]) -> tuple[Tensor, Any]:
    """The value of f and its gradients by leaves, which may be structures of tensors."""
    flat, spec = tree_flatten(leaves)
    with torch.enable_grad():
        held = [leaf.detach().requires_grad_() for leaf in flat]
        value = f(*tree_unflatten(held, spec))
        grads = torch.autograd.grad(value.sum(), held, materialize_grads=True)
    return value.detach(), tree_unflatten(grads, spec)


def fixed_names(assigned: Mapping[str, Assigned]) -> list[str]:
    """The parameters a prior assignment keeps as they are."""
    return [n for n, p in assigned.items() if isinstance(p, Fixed)]


def point_names(assigned: Mapping[str, Assigned]) -> list[str]:
    """The parameters a prior assignment optimises without a distribution."""
    return [n for n, p in assigned.items() if isinstance(p, Point)]


def random_names(assigned: Mapping[str, Assigned]) -> list[str]:
    """The parameters a prior assignment gives a density."""
    return [n for n, p in assigned.items() if isinstance(p, Prior)]
