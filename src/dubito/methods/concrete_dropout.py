"""Dropout that learns its rates, one for each place where the network drops (Gal, Hron & Kendall 2017).

    w = z m / (1 - p),  z ~ Bernoulli(1 - p) for each input unit of a layer,  p learned with the means m
    loss = -1/B sum_i log p(y_i | f(w_i, x_i)) - [ sum (1 - p) log p(m / (1 - p)) + p log p(0) + sum_units H(p) ] / N

https://arxiv.org/abs/1705.07832. While it trains, masks are relaxed to lie between 0 and 1, so that the fit has a slope
by p; H(p) = -p log p - (1 - p) log(1 - p) is the entropy of a unit's mask, and the expected log prior is exact for any
prior. Left out is the entropy of the narrow densities around 0 and m / (1 - p), which is constant. The posterior has
binary masks of the learned rates. A rate belongs to the matrix or kernel of the layer that comes next.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito.dropout import Site, make_uniforms
from dubito.inputs import Inputs, n_rows
from dubito.layout import dots
from dubito.methods.base import Info, Weights, check_positive
from dubito.methods.descent import DescentState
from dubito.methods.dropped import Dropped
from dubito.net import Net
from dubito.posteriors.dropout import DropoutPosterior
from dubito.target import Batch, Target
from dubito.tick import Tick


class Nats(NamedTuple):
    """A number of nats for each member, (S,), and its gradients by theta (S, D) and by the rates' logits (S, sites)."""

    value: Tensor
    by_theta: Tensor
    by_logit: Tensor


@dataclass(frozen=True, kw_only=True)
class ConcreteDropout(Dropped):
    """Dropout whose rates are learned; `rate` is where they start, else the net's own rates are."""

    relaxation: float = 0.1  # the temperature of the masks in training: 0 would be binary, without a slope

    answer = "dropout"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "relaxation", self.relaxation)

    def prepare(self, net: Net, x: Inputs) -> Net:
        prepared = super().prepare(net, x)
        for site in prepared.sites(x):
            if site.kind.endswith("alpha"):
                raise ValueError("ConcreteDropout has no rate to learn for alpha dropout; put nn.Dropout in its place")
            if not 0 < site.rate < 1:
                raise ValueError(f"ConcreteDropout cannot start at the network's own rate {site.rate}; give rate=0.1")
        return prepared

    def init(self, theta: Tensor, target: Target, tick: Tick) -> DescentState:
        """Descent on [net | likelihood | logits of the rates]."""
        logit = theta.new_tensor([math.log(s.rate / (1 - s.rate)) for s in target.net.known_sites])
        return super().init(torch.cat([theta, logit.expand(len(theta), -1)], 1), target, tick)

    def step(self, state: DescentState, batch: Batch, target: Target, tick: Tick) -> tuple[DescentState, Info]:
        theta, logit = _parts(state, target)
        sites = target.net.sites(batch.example)
        drawn = make_uniforms(sites, len(theta), n_rows(batch.example), tick.rng.child("train"), theta, shared=False)
        noise = [uniform.logit() for uniform in drawn]
        fit = Nats(*target.relaxed_value_and_grad(theta, logit, batch, noise, self.relaxation, state.buffers))
        prior, (entropy, slope) = expected_log_prior(theta, logit, sites, target), mask_entropy(logit, sites)
        by_theta = fit.by_theta.add(prior.by_theta, alpha=1 / target.n_data)
        by_logit = fit.by_logit.add(prior.by_logit, alpha=1 / target.n_data)
        grad = torch.cat([by_theta, by_logit.add(slope, alpha=target.temperature / target.n_data)], 1)
        self.descend_(state.theta, grad.div_(-target.temperature), state.optim, tick)
        return state, Info(-fit.value, -(prior.value + entropy) / target.n_data)

    def shown(self, state: DescentState, target: Target) -> Weights:
        return Weights(_parts(state, target)[0], state.buffers)

    def noted(self, state: DescentState, target: Target) -> dict[str, float]:
        """The rate of each site, averaged over members, as `rate/NAME` of the weight that follows."""
        rates = _parts(state, target)[1].sigmoid().mean(0).tolist()
        return {f"rate/{name}": rate for name, rate in zip(_names(target.net.known_sites), rates, strict=True)}

    def posterior(self, state: DescentState, target: Target) -> DropoutPosterior:
        theta, logit = _parts(state, target)
        rates = logit.double().sigmoid().cpu()
        return DropoutPosterior.of(target.net, target.likelihood, theta, state.buffers, rates)


def expected_log_prior(theta: Tensor, logit: Tensor, sites: Sequence[Site], target: Target) -> Nats:
    """E log p(w) over masks: (1 - p) log p(m / (1 - p)) + p log p(0) where a site drops, log p(m) elsewhere."""
    owned = _owned(sites, target)
    value, by_theta = target.prior_without(owned).value_and_grad(theta)
    by_logit = torch.zeros_like(logit)
    for name, number in owned.items():
        span, prior = target.layout.spans[name], target.prior_alone(name)
        own, p = theta[:, span], logit[:, number].sigmoid()
        kept = (-logit[:, number]).sigmoid()
        density, slope = prior.value_and_grad(own / kept.unsqueeze(1))
        value = value + kept * density + p * prior.at_zero
        by_theta[:, span] = slope
        by_logit[:, number] = p * (kept * (prior.at_zero - density) + dots(slope, own))
    return Nats(value, by_theta, by_logit)


def mask_entropy(logit: Tensor, sites: Sequence[Site]) -> tuple[Tensor, Tensor]:
    """The entropy of all masks of a draw, (S,), and its gradient by the logits of their rates, (S, sites).

    H = softplus(a) - a p with a = logit p, whose slope is -a p (1 - p).
    """
    p = logit.sigmoid()
    each, slope = F.softplus(logit) - logit * p, -logit * p * (-logit).sigmoid()
    value = sum((each[:, i] * site.units for i, site in enumerate(sites)), torch.zeros_like(each[:, 0]))
    return value, torch.stack([slope[:, i] * site.units for i, site in enumerate(sites)], 1)


def _parts(state: DescentState, target: Target) -> tuple[Tensor, Tensor]:
    """[net | likelihood], (S, D), and the logits of the rates, (S, sites)."""
    return state.theta[:, : target.layout.size], state.theta[:, target.layout.size :]


def _owned(sites: Sequence[Site], target: Target) -> Mapping[str, int]:
    """The weights that have a prior and that a site drops, each with the first site that does."""
    owned: dict[str, int] = {}
    for number, site in enumerate(sites):
        if site.weight is not None and site.weight in target.random:
            owned.setdefault(site.weight, number)
    return owned


def _names(sites: Sequence[Site]) -> Iterator[str]:
    """What each site is called: by the weight that follows, or by its number."""
    seen: set[str] = set()
    for number, site in enumerate(sites):
        name = site.weight if site.weight is not None and site.weight not in seen else str(number)
        seen.add(name)
        yield name
