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
from typing import Literal, get_args

import torch
from torch import Tensor

from dubito.config import check_finite_number
from dubito.divergence import Divergence, dropout_divergence
from dubito.layout import whole
from dubito.likelihoods import Likelihood
from dubito.methods.base import Weights, check_positive
from dubito.methods.factorised import FactorisedState, Fit, Multiplicative, matrices
from dubito.net import Buffers, Net
from dubito.posteriors.sparse import SparsePosterior
from dubito.priors import Assigned
from dubito.rng import Rng
from dubito.schedules import Rise, WarmUp, ends_at_one
from dubito.target import Batch, Target, random_names

Masked = Literal["nothing", "mean", "weight"]
WARM_UP = Rise(0.02, 0.1)  # the paper's epochs 4 to 20 of 200


@dataclass(frozen=True, kw_only=True)
class SparseVD(Multiplicative):
    """Weights that learn to be zero, from scratch or from the trained net that the module is."""

    init_std: float = 0.007  # log std^2 about -10, so that weights are fitted before they are doubted
    kl: Literal["log-uniform", "ard"] = "log-uniform"  # the prior's scale: any, or each weight's best
    warm_up: WarmUp | Rise = WARM_UP  # the KL's share over the run; let in at once it empties the network
    threshold: float = 3.0  # on log alpha: weights above it are 0
    clip: float = 8.0  # log alpha above which the KL has no slope
    masked: Masked = "mean"  # what of a weight above the threshold is 0 in training too

    answer = "sparse"
    selects = False  # early states fit better and are not sparse yet

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "clip", self.clip)
        check_finite_number(self, "threshold", self.threshold)
        if self.kl not in ("log-uniform", "ard"):
            raise ValueError(f"SparseVD: kl is {self.kl!r}; use 'log-uniform' or 'ard'")
        if self.masked not in get_args(Masked):
            raise ValueError(f"SparseVD: masked is {self.masked!r}; use 'nothing', 'mean' or 'weight'")
        if not ends_at_one(self.warm_up):
            raise ValueError(
                f"SparseVD: warm_up is {self.warm_up!r}; use schedules.Rise(start, end) or schedules.WarmUp(steps)"
            )
        if not abs(self.threshold) < self.clip:
            raise ValueError(
                f"SparseVD: threshold is {self.threshold}, which clip={self.clip} never lets a weight pass; take a "
                "smaller one"
            )

    def check(self, net: Net, assigned: Mapping[str, Assigned], likelihood: Likelihood) -> None:
        super().check(net, assigned, likelihood)
        held = net.layout.split(net.theta())
        empty = [name for name in matrices(net, random_names(assigned)) if not bool(held[name].any())]
        if empty and self.masked != "nothing":
            raise ValueError(
                f"{', '.join(empty)} starts at 0 throughout, which SparseVD counts as removed and would leave so; use "
                "masked='nothing' to let it grow, or the prior Fixed() to keep it"
            )

    @property
    def prior_name(self) -> str:
        return "log-uniform" if self.kl == "log-uniform" else "normal of the weight's own best scale"

    def start(self, mean: Tensor) -> Tensor:
        return torch.full_like(mean, 2 * math.log(self.init_std))

    def std(self, mean: Tensor, raw: Tensor) -> Tensor:
        return (raw / 2).exp()

    def pull_(self, by_mean: Tensor, by_log_std: Tensor, state: FactorisedState, target: Target) -> None:
        by_log_std.div_(2)  # the slope of exp(raw / 2)

    def divergence(self, mean: Tensor, std: Tensor, raw: Tensor, eps: Sequence[Tensor], target: Target) -> Divergence:
        noise = dropout_divergence(self.kl, mean, std, clip=self.clip, temperature=target.temperature, log_std=raw / 2)
        prior = self.prior(target)
        return noise.plus(self.rest(mean, std, eps, target)) if prior.normals or prior.others else noise

    def share(self, step: int, steps: int, batches: int) -> float:
        return self.warm_up(step, steps)

    def expected(self, mean: Tensor, std: Tensor, batch: Batch, target: Target, buffers: Buffers, rng: Rng) -> Fit:
        if self.masked == "nothing":
            return super().expected(mean, std, batch, target, buffers, rng)
        kept = self.kept(mean, std)
        if self.masked == "mean":
            fit = super().expected(mean * kept, std, batch, target, buffers, rng)
            return fit._replace(by_mean=[whole(fit.by_mean) * kept])
        fit = super().expected(mean * kept, std * kept, batch, target, buffers, rng)
        return fit._replace(by_mean=[whole(fit.by_mean) * kept], by_std=[whole(fit.by_std) * kept])

    def kept(self, mean: Tensor, std: Tensor) -> Tensor:
        """Where log alpha does not exceed the threshold, without a logarithm."""
        return std <= mean.abs().mul_(math.exp(self.threshold / 2))

    def weights(self, state: FactorisedState) -> Weights:
        return Weights(state.mean * self.kept(state.mean, self.std(state.mean, state.raw)), state.buffers)

    def noted(self, state: FactorisedState, target: Target) -> dict[str, float]:
        """The share of zeros in each matrix, as `sparsity/NAME`."""
        kept = target.layout.split(self.kept(state.mean, self.std(state.mean, state.raw)))
        return {f"sparsity/{name}": 1 - float(kept[name].float().mean()) for name in self.random(target)}

    def posterior(self, state: FactorisedState, target: Target) -> SparsePosterior:
        made = super().posterior(state, target)
        parts = {field.name: getattr(made, field.name) for field in fields(made)}
        return SparsePosterior(**parts, threshold=self.threshold)

    @property
    def depends_on_steps(self) -> bool:
        return super().depends_on_steps or self.warm_up.depends_on_steps
