"""Sparse variational dropout: a dropout rate for every weight, and rates without a limit are zeros.

    q(w) = N(mean, std^2),   alpha = std^2 / mean^2,   p(|w|) ~ 1 / |w|
    loss = -1/B sum_i E_q[log p(y_i | f(theta, x_i))] + w KL(alpha) / N - log p(biases) / N

Molchanov, Ashukha & Vetrov (2017), https://arxiv.org/abs/1701.05369: the additive parameterisation (mean, log std^2)
keeps the gradient's noise finite as alpha grows, and a weight with log alpha above the threshold counts as 0. Matrices
and kernels are treated so, recurrent ones too; biases and norms are optimised under the prior they are given.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from dubito.divergence import Divergence, divergence, dropout_divergence
from dubito.inputs import Inputs
from dubito.likelihoods import Likelihood
from dubito.methods.base import Fate, Tick, Weights, check_positive
from dubito.methods.factorised import Factorised, FactorisedState, Fit
from dubito.net import Buffers, Net
from dubito.noisy import log_alpha
from dubito.posteriors.sparse import SparsePosterior
from dubito.priors import Assigned
from dubito.rng import Rng
from dubito.schedules import Rise, WarmUp, ends_at_one
from dubito.target import Batch, FlatPrior, Target, random_names

WARM_UP = Rise(0.02, 0.1)  # the paper's epochs 4 to 20 of 200


@dataclass(frozen=True, kw_only=True)
class SparseVD(Factorised):
    """Weights that learn to be zero, from scratch or from the trained net that the module is."""

    init_std: float = 0.007  # log std^2 about -10, so that weights are fitted before they are doubted
    kl: Literal["log-uniform", "ard"] = "log-uniform"  # the prior's scale: any, or each weight's best
    warm_up: WarmUp | Rise = WARM_UP  # the KL's share over the run; let in at once it empties the network
    threshold: float = 3.0  # on log alpha: weights above it are 0
    clip: float = 8.0  # |log alpha| beyond which the KL has no slope
    masked: bool = True  # weights above the threshold have mean 0 in training too

    answer = "sparse"
    selects = False  # early states fit better and are not sparse yet

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "clip", self.clip)
        if self.kl not in ("log-uniform", "ard"):
            raise ValueError(f"SparseVD: kl is {self.kl!r}; use 'log-uniform' or 'ard'")
        if not ends_at_one(self.warm_up):
            raise ValueError(
                f"SparseVD: warm_up is {self.warm_up!r}; use schedules.Rise(start, end) or schedules.WarmUp(steps)"
            )
        if not abs(self.threshold) < self.clip:
            raise ValueError(
                f"SparseVD: threshold is {self.threshold}, which clip={self.clip} never lets a weight pass"
            )

    def check(self, net: Net, assigned: Mapping[str, Assigned], likelihood: Likelihood) -> None:
        if not _matrices(net, random_names(assigned)):
            raise ValueError("no matrix or kernel has a prior, so no weight can become sparse; give one a prior")

    def random(self, target: Target) -> tuple[str, ...]:
        return _matrices(target.net, target.random)

    def prior(self, target: Target) -> FlatPrior:
        random = self.random(target)
        return target.prior_of(tuple(n for n in target.layout.names if n not in random))

    def fates(self, net: Net, names: Sequence[str], x: Inputs | None) -> dict[str, Fate]:
        why = "vectors are no target of sparsity"
        sparse = super().fates(net, _matrices(net, names), x)
        return {name: sparse.get(name, Fate("point", "optimised", why)) for name in names}

    def start(self, mean: Tensor) -> Tensor:
        return torch.full_like(mean, 2 * math.log(self.init_std))

    def std(self, mean: Tensor, raw: Tensor) -> Tensor:
        return (raw / 2).exp()

    def pull_(self, by_mean: Tensor, by_std: Tensor, state: FactorisedState, target: Target) -> None:
        by_std.mul_(self.std(state.mean, state.raw)).div_(2)  # the slope of exp(raw / 2)

    def divergence(self, mean: Tensor, std: Tensor, eps: Sequence[Tensor], target: Target) -> Divergence:
        everything = [slice(0, mean.shape[1])]
        rest = divergence(self.prior(target), mean, std, eps, points=everything, temperature=target.temperature)
        noise = dropout_divergence(self.kl, mean, std, clip=self.clip, temperature=target.temperature)
        return rest.plus(noise)

    def share(self, tick: Tick, batches: int) -> float:
        return self.warm_up(int(tick.step), tick.steps)

    def expected(self, mean: Tensor, std: Tensor, batch: Batch, target: Target, buffers: Buffers, rng: Rng) -> Fit:
        if not self.masked:
            return super().expected(mean, std, batch, target, buffers, rng)
        kept = log_alpha(mean, std) <= self.threshold
        fit = super().expected(mean * kept, std, batch, target, buffers, rng)
        return fit._replace(by_mean=fit.by_mean * kept)

    def weights(self, state: FactorisedState) -> Weights:
        kept = log_alpha(state.mean, self.std(state.mean, state.raw)) <= self.threshold
        return Weights(state.mean * kept, state.buffers)

    def posterior(self, state: FactorisedState, target: Target) -> SparsePosterior:
        made = super().posterior(state, target)
        parts = {field.name: getattr(made, field.name) for field in fields(made)}
        return SparsePosterior(**parts, threshold=self.threshold)

    @property
    def depends_on_steps(self) -> bool:
        return super().depends_on_steps or self.warm_up.depends_on_steps


def _matrices(net: Net, names: Sequence[str]) -> tuple[str, ...]:
    """The parameters with at least two axes."""
    shapes = dict(zip(net.layout.names, net.layout.shapes, strict=True))
    return tuple(name for name in names if len(shapes.get(name, ())) > 1)
