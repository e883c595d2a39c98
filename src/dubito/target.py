"""The log-posterior: the only place that sees data and knows N.

    log p(theta | D) = [ N * mean_i log p(y_i | f(theta, x_i)) + log p(theta) ] / T + const,

estimated without bias from a mini-batch. theta is [net | likelihood]: learned noise follows the weights.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dubito import runtime
from dubito.inputs import Inputs
from dubito.layout import Layout, dots
from dubito.likelihoods import Likelihood
from dubito.net import Buffers, Mode, Net
from dubito.noisy import Noise, Scheme
from dubito.priors import LOG_SQRT_2PI, Assigned, Fixed, Normal, Normals, Point, Prior
from dubito.rng import Rng, isolated


class Batch(NamedTuple):
    """Rows of the data: `rows` tells which, `weight` how much each counts, (B,) or (members, B)."""

    x: Inputs
    y: Tensor
    rows: Tensor
    weight: Tensor | None = None


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
        mean, precision = torch.zeros(2, layout.size, dtype=torch.float64)
        self.log_norm = 0.0
        for name, prior in normal.items():
            centre, std = (torch.as_tensor(v, dtype=torch.float64).flatten() for v in (prior.mean, prior.std))
            span = self.normals[name]
            mean[span], precision[span] = centre, std**-2
            self.log_norm -= float((std.log() + LOG_SQRT_2PI).expand(span.stop - span.start).sum())
        self.mean = _short(mean, like) if mean.any() else None
        self.precision = _short(precision, like)

    def value_and_grad(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """log p(theta), (S,), and its gradient, (S, D)."""
        centred = theta if self.mean is None else theta - self.mean
        grad = centred * -self.precision
        value = 0.5 * dots(grad, centred) + self.log_norm
        for span, prior in self.others:
            part = theta[:, span].detach().requires_grad_()
            with torch.enable_grad():
                density = prior.log_prob(part).flatten(1).sum(1)
                (slope,) = torch.autograd.grad(density.sum(), part)
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
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}; 1 is the Bayesian posterior")
        self.net, self.likelihood, self.prior = net, likelihood, dict(prior)
        self.n_data, self.temperature = n_data, temperature
        noise = likelihood.parameters()
        self.noise_layout = Layout.of(noise)
        tail = Layout(tuple(f"likelihood.{n}" for n in noise), self.noise_layout.shapes)
        self.layout = net.layout + tail
        priors = {f"likelihood.{n}": p for n, p in likelihood.parameter_priors().items()}
        assigned = {n: p for n, p in prior.items() if n in net.layout.names} | priors
        self.flat_prior = FlatPrior(self.layout, assigned, self._like())

    @cached_property
    def random(self) -> tuple[str, ...]:
        """The weights that have a prior density."""
        return tuple(n for n in self.net.layout.names if isinstance(self.prior[n], Prior))

    @cached_property
    def points(self) -> list[slice]:
        """Where theta holds what has no distribution: `Point()`, and the likelihood's own parameters."""
        return [span for name, span in self.layout.spans.items() if name not in self.random]

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

    def log_lik(self, outputs: Tensor, y: Tensor, theta: Tensor) -> Tensor:
        """(S, B): log p(y | outputs) of each example under each member's own noise."""
        values = self.noise_layout.split(theta[:, self.net.layout.size :])
        rows = [
            self.likelihood.bind({n: v[s] for n, v in values.items()}).log_prob(o, y) for s, o in enumerate(outputs)
        ]
        return torch.stack(rows)

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
        masks = self.net.masks(batch.x, len(theta), rng, shared=False) if rng is not None else None
        seeded = isolated(rng.key("fused dropout")) if rng and self.net.fused_dropout(batch.x) else nullcontext()
        with seeded:
            log_lik, grad = self.lik_value_and_grad(theta, batch, mode, buffers or {}, masks)
        log_prior, prior_grad = self.flat_prior.value_and_grad(theta)
        grad = prior_grad.add_(grad, alpha=float(self.n_data))
        return Parts(log_lik, log_prior), grad if self.temperature == 1 else grad.div_(self.temperature)

    def lik_value_and_grad(
        self, theta: Tensor, batch: Batch, mode: Mode, buffers: Buffers, masks: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean log-likelihood per datum (S,) and its gradient (S, D)."""

        def mean_log_lik(vector: Tensor, buffers: Buffers, masks: list[Tensor], weight: list[Tensor]) -> Tensor:
            return self._mean_log_lik(vector, batch, mode, buffers, masks if has_masks else None, weight)

        has_masks = masks is not None
        rest: tuple[Any, ...] = (buffers, masks or [], _weights(batch, len(theta)))
        together = self.net.vectorises(mean_log_lik, (theta, *rest), batch.x, mode)
        value, (grad,) = _over_members(mean_log_lik, (theta,), rest, together)
        return value, grad

    def noisy_value_and_grad(
        self, mean: Tensor, std: Tensor, batch: Batch, scheme: Scheme, noise: Noise, mode: Mode, buffers: Buffers
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mean log-likelihood per datum over draws of the weights N(mean, diag std^2), (S,), and its gradients (S, D).

        Noise and buffers are (S, draws, ...), as `Net.noise` makes them.
        """

        def one(mean: Tensor, std: Tensor, weight: list[Tensor], buffers: Buffers, noise: Noise) -> Tensor:
            (weights, own), (stds, _) = self._parts(mean), self._parts(std)
            outputs = self.net.noisy(weights, stds, batch.x, scheme, noise, mode, buffers)
            return self._scored(outputs, own, batch.y, weight)

        def mean_log_lik(mean: Tensor, std: Tensor, weight: list[Tensor], buffers: Buffers, noise: Noise) -> Tensor:
            each: Tensor = runtime.over_members(
                lambda b, z: one(mean, std, weight, b, z), (buffers, noise), draws, side_by_side
            )
            return each.mean()

        rest: tuple[Any, ...] = (_weights(batch, len(mean)), buffers, noise)
        weight, *drawn = runtime.member(rest, 0)
        draws = len(next(iter(noise.values()))[0])
        side_by_side = draws > 1 and self.net.vectorises_draws(
            lambda b, z: one(mean[0], std[0], weight, b, z), tuple(drawn), batch.x, mode
        )
        together = self.net.vectorises(mean_log_lik, (mean, std, *rest), batch.x, mode)
        value, (by_mean, by_std) = _over_members(mean_log_lik, (mean, std), rest, together)
        return value, by_mean, by_std

    def _mean_log_lik(
        self,
        vector: Tensor,
        batch: Batch,
        mode: Mode,
        buffers: Buffers,
        masks: list[Tensor] | None,
        weight: list[Tensor],
    ) -> Tensor:
        weights, own = self._parts(vector)
        return self._scored(self.net(weights, batch.x, mode, buffers, masks), own, batch.y, weight)

    def _parts(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of one whole vector, and the likelihood's own parameters."""
        if not self.noise_layout.size:  # a split would copy the gradient once more
            return vector, vector[:0]
        weights, own = vector.split([self.net.layout.size, self.noise_layout.size])
        return weights, own

    def _scored(self, outputs: Tensor, own: Tensor, y: Tensor, weight: list[Tensor]) -> Tensor:
        log_prob = self.likelihood.bind(self.noise_layout.split(own)).log_prob(outputs, y)
        return (log_prob * weight[0] if weight else log_prob).mean()

    def _like(self) -> Tensor:
        return torch.empty(0, dtype=self.net.dtype, device=self.net.device)


def _weights(batch: Batch, members: int) -> list[Tensor]:
    return [] if batch.weight is None else [batch.weight.expand(members, -1)]


def _over_members(f: Any, leaves: tuple[Tensor, ...], rest: tuple[Any, ...], together: bool) -> Any:
    """Values (S,) of f(*leaves, *rest), all members first, and its gradients by the leaves."""
    if together:
        return _grad(lambda *t: runtime.over_members(f, (*t, *rest), len(leaves[0]), True), leaves)
    rows = [
        _grad(lambda *t, s=s: f(*t, *runtime.member(rest, s)), runtime.member(leaves, s)) for s in range(len(leaves[0]))
    ]
    return runtime.stack(rows)


def _grad(f: Any, leaves: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
    with torch.enable_grad():
        held = [leaf.detach().requires_grad_() for leaf in leaves]
        value = f(*held)
        grads = torch.autograd.grad(value.sum(), held, materialize_grads=True)
    return value.detach(), grads


def fixed_names(assigned: Mapping[str, Assigned]) -> list[str]:
    """The parameters a prior assignment keeps as they are."""
    return [n for n, p in assigned.items() if isinstance(p, Fixed)]


def point_names(assigned: Mapping[str, Assigned]) -> list[str]:
    """The parameters a prior assignment optimises without a distribution."""
    return [n for n, p in assigned.items() if isinstance(p, Point)]


def random_names(assigned: Mapping[str, Assigned]) -> list[str]:
    """The parameters a prior assignment gives a density."""
    return [n for n, p in assigned.items() if isinstance(p, Prior)]
