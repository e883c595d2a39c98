"""The log-posterior: the only place that sees data and knows N.

    log p(theta | D) = [ N * mean_i log p(y_i | f(theta, x_i)) + log p(theta) ] / T + const,

estimated without bias from a mini-batch. theta is [net | likelihood]: learned noise follows the weights.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dubito import runtime
from dubito.inputs import Inputs
from dubito.layout import Layout
from dubito.likelihoods import Likelihood
from dubito.net import Buffers, Mode, Net
from dubito.priors import Assigned, Fixed, Normal, Point, Prior
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
        self.others = [
            (layout.spans[n], p) for n, p in assigned.items() if isinstance(p, Prior) and type(p) is not Normal
        ]
        mean, precision = torch.zeros(2, layout.size, dtype=torch.float64)
        log_norm = 0.0
        for name, prior in assigned.items():
            if type(prior) is Normal:
                span = layout.spans[name]
                mean[span], precision[span] = prior.mean, prior.std**-2
                log_norm += (span.stop - span.start) * float(
                    prior.log_prob(torch.tensor(prior.mean, dtype=torch.float64))
                )
        self.mean = _short(mean, like) if mean.any() else None
        self.precision, self.log_norm = _short(precision, like), log_norm

    def value_and_grad(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """log p(theta), (S,), and its gradient, (S, D)."""
        centred = theta if self.mean is None else theta - self.mean
        grad = centred * -self.precision
        value = 0.5 * torch.einsum("sd,sd->s", grad, centred) + self.log_norm
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
            log_lik, grad = self._lik_value_and_grad(theta, batch, mode, buffers or {}, masks)
        log_prior, prior_grad = self.flat_prior.value_and_grad(theta)
        grad = prior_grad.add_(grad, alpha=float(self.n_data))
        return Parts(log_lik, log_prior), grad if self.temperature == 1 else grad.div_(self.temperature)

    def _lik_value_and_grad(
        self, theta: Tensor, batch: Batch, mode: Mode, buffers: Buffers, masks: list[Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Mean log-likelihood per datum (S,) and its gradient (S, D)."""

        def mean_log_lik(vector: Tensor, buffers: Buffers, masks: list[Tensor], weight: list[Tensor]) -> Tensor:
            return self._mean_log_lik(vector, batch, mode, buffers, masks if has_masks else None, weight)

        has_masks = masks is not None
        weight = [] if batch.weight is None else [batch.weight.expand(len(theta), -1)]
        rest: tuple[Any, ...] = (buffers, masks or [], weight)
        if self.net.vectorises(mean_log_lik, (theta, *rest), batch.x, mode):
            return _grad(lambda t: runtime.over_members(mean_log_lik, (t, *rest), len(theta), True), theta)
        rows = [_grad(lambda t, s=s: mean_log_lik(t, *runtime.member(rest, s)), theta[s]) for s in range(len(theta))]
        values, grads = zip(*rows, strict=True)
        return runtime.stack(list(values)), runtime.stack(list(grads))

    def _mean_log_lik(
        self,
        vector: Tensor,
        batch: Batch,
        mode: Mode,
        buffers: Buffers,
        masks: list[Tensor] | None,
        weight: list[Tensor],
    ) -> Tensor:
        weights, noise = vector.split([self.net.layout.size, self.noise_layout.size])
        outputs = self.net(weights, batch.x, mode, buffers, masks)
        log_prob = self.likelihood.bind(self.noise_layout.split(noise)).log_prob(outputs, batch.y)
        return (log_prob * weight[0] if weight else log_prob).mean()

    def _like(self) -> Tensor:
        return torch.empty(0, dtype=self.net.dtype, device=self.net.device)


def _grad(f: Any, theta: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        leaf = theta.detach().requires_grad_()
        value = f(leaf)
        (grad,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), grad


def fixed_names(assigned: Mapping[str, Assigned]) -> list[str]:
    """The parameters a prior assignment keeps as they are."""
    return [n for n, p in assigned.items() if isinstance(p, Fixed)]


def point_names(assigned: Mapping[str, Assigned]) -> list[str]:
    """The parameters a prior assignment optimises without a distribution."""
    return [n for n, p in assigned.items() if isinstance(p, Point)]
