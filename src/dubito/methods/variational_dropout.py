"""Gaussian dropout as a posterior, its rate given or learned (Kingma, Salimans & Welling 2015).

    w = mean (1 + sqrt(alpha) eps),   alpha = rate / (1 - rate),   q(w) = N(mean, alpha mean^2)

https://arxiv.org/abs/1506.02557. With the rate given, the means are fitted under their prior. With the rate learned,
the prior is log-uniform, so that the KL depends on alpha alone and the bound chooses it: one for each matrix, for each
of its input units, or for each weight. Matrices and kernels are treated so; biases and norms are optimised.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from dubito.config import is_number
from dubito.divergence import Divergence, dropout_divergence
from dubito.layout import whole
from dubito.methods.base import Info, check_positive
from dubito.methods.factorised import FactorisedState, Fit, Multiplicative
from dubito.net import Buffers
from dubito.rng import Rng
from dubito.target import Batch, FlatPrior, Target
from dubito.tick import Tick

CLIP = 8.0  # log alpha above which the KL has no slope


@dataclass(frozen=True, kw_only=True)
class GaussianDropout(Multiplicative):
    """Multiplicative Gaussian noise of a given rate on every matrix and kernel, in training and at prediction."""

    rate: float = 0.1  # of the binary dropout with the same mean and variance
    init_std: float = field(default=0.01, init=False)

    answer = "multiplicative"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_number(self.rate) and 0 < self.rate < 1):
            raise ValueError(f"{type(self).__name__}: rate must lie between 0 and 1, got {self.rate!r}")

    def prior(self, target: Target) -> FlatPrior:
        return target.flat_prior

    def start(self, mean: Tensor) -> Tensor:
        return torch.full_like(mean, math.log(self.rate / (1 - self.rate)))

    def std(self, mean: Tensor, raw: Tensor) -> Tensor:
        return mean.abs() * (raw / 2).exp()

    def pull_(self, by_mean: Tensor, by_log_std: Tensor, state: FactorisedState, target: Target) -> None:
        by_log_std.zero_()

    def divergence(self, mean: Tensor, std: Tensor, raw: Tensor, eps: Sequence[Tensor], target: Target) -> Divergence:
        return self.rest(mean, torch.zeros_like(std), eps, target)

    def share(self, step: int, steps: int, batches: int) -> float:
        return 1.0

    def expected(self, mean: Tensor, std: Tensor, batch: Batch, target: Target, buffers: Buffers, rng: Rng) -> Fit:
        """With the way through std, which follows the mean."""
        fit = super().expected(mean, std, batch, target, buffers, rng)
        slope = torch.where(mean != 0, std / torch.where(mean != 0, mean, 1.0), 0.0)
        return fit._replace(by_mean=[torch.addcmul(whole(fit.by_mean), whole(fit.by_std), slope)])


@dataclass(frozen=True, kw_only=True)
class VariationalDropout(GaussianDropout):
    """Gaussian dropout that learns its rates, one for each layer, input neuron or weight."""

    rate: float = 0.1  # at the start
    per: Literal["layer", "neuron", "weight"] = "layer"
    most: float = 1.0  # alpha's largest value, a rate of one half, as in the paper

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "most", self.most)
        if self.rate / (1 - self.rate) > self.most:
            raise ValueError(
                f"VariationalDropout: rate {self.rate} is alpha {self.rate / (1 - self.rate):.3g}, above "
                f"most={self.most}; start at a smaller rate or raise most"
            )
        if self.per not in ("layer", "neuron", "weight"):
            raise ValueError(f"VariationalDropout: per is {self.per!r}; use 'layer', 'neuron' or 'weight'")

    @property
    def prior_name(self) -> str:
        return "log-uniform"

    def prior(self, target: Target) -> FlatPrior:
        return Multiplicative.prior(self, target)

    def pull_(self, by_mean: Tensor, by_log_std: Tensor, state: FactorisedState, target: Target) -> None:
        by_log_std.div_(2)  # log alpha moves log std by half as much
        for name in self.random(target) if self.per != "weight" else ():
            part = target.layout.split(by_log_std)[name]
            part.copy_(shared(part, self.per, target.net.module.get_submodule(name.rpartition(".")[0])))

    def divergence(self, mean: Tensor, std: Tensor, raw: Tensor, eps: Sequence[Tensor], target: Target) -> Divergence:
        noise = dropout_divergence("log-uniform", mean, std, clip=CLIP, temperature=target.temperature)
        still = noise._replace(by_mean=torch.zeros_like(mean))  # at a given alpha the mean does not matter
        return super().divergence(mean, std, raw, eps, target).plus(still)

    def step(self, state: FactorisedState, batch: Batch, target: Target, tick: Tick) -> tuple[FactorisedState, Info]:
        state, told = super().step(state, batch, target, tick)
        state.raw.clamp_(max=math.log(self.most))
        return state, told


def shared(slopes: Tensor, per: str, owner: nn.Module) -> Tensor:
    """Slopes of a layer's weights, (S, *shape), with the sum over all that have one rate in the place of each."""
    if per == "layer":
        return slopes.sum(list(range(1, slopes.ndim)), keepdim=True).expand_as(slopes)
    rows = isinstance(owner, nn.modules.conv._ConvTransposeNd)  # whose kernels begin with the inputs
    groups = owner.groups if isinstance(owner, nn.modules.conv._ConvNd) else 1
    apart: Tensor = slopes.unflatten(1, (slopes.shape[1] if rows else groups, -1))
    axes = [axis for axis in range(2, apart.ndim) if rows or axis != 3]
    return apart.sum(axes, keepdim=True).expand_as(apart).reshape(slopes.shape)
