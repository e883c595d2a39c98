"""Mean-field variational inference, "Bayes by Backprop": a Gaussian over every weight (Blundell et al. 2015).

    q(theta) = N(mean, diag exp(raw)^2)
    loss(q)  = -1/B sum_i E_q[log p(y_i | f(theta, x_i))] / T + w (-E_q[log p(theta)] / T - H[q]) / N

https://arxiv.org/abs/1505.05424, with an exponential for their softplus: the two agree where a standard deviation is
small. The expectation of the fit is taken over draws by one of three estimators, see
`dubito.noisy`; w is 1, or a schedule that ends at 1 or averages 1 over an epoch. With alpha, E_q[log p] becomes
1/alpha log E_q[p^alpha]: black-box alpha in its energy form (Hernandez-Lobato et al. 2016,
https://arxiv.org/abs/1511.03243; Li & Gal 2017, https://arxiv.org/abs/1703.02914).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from dubito.config import check_finite_number
from dubito.divergence import Divergence, Group, divergence, squared_scales, sub_isotropic_
from dubito.layout import Stretches
from dubito.likelihoods import Likelihood
from dubito.methods.factorised import Factorised, FactorisedState, Fit
from dubito.net import Net
from dubito.posteriors.gaussian import GaussianPosterior
from dubito.priors import Assigned, Normal, Normals
from dubito.schedules import Rise, Schedule, WarmUp, ends_at_one, halving
from dubito.target import Target, random_names
from dubito.tick import Number


@dataclass(frozen=True, kw_only=True)
class Variational(Factorised):
    """A factorised Gaussian over the weights, fitted by stochastic gradients of the evidence lower bound."""

    kl: Literal["uniform", "blundell"] | WarmUp | Rise = "uniform"  # how the KL is shared out among steps
    empirical_bayes: Literal["global", "layer"] | None = None  # learn one factor on normal priors' scales, or one each
    alpha: float = 0.0  # of the divergence: the draws of a datum are joined as 1/alpha log mean p^alpha

    answer = "mean-field"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.empirical_bayes not in (None, "global", "layer"):
            raise ValueError(f"empirical_bayes is {self.empirical_bayes!r}; use 'global', 'layer' or None")
        check_finite_number(self, "alpha", self.alpha)
        if self.alpha != 0 and self.draws == 1:
            raise ValueError(f"alpha={self.alpha} joins several draws, and there is draws={self.draws}; try draws=10")
        if self.kl not in ("uniform", "blundell") and not ends_at_one(self.kl):
            raise ValueError(f"kl is {self.kl!r}; use 'uniform', 'blundell' or schedules.WarmUp(steps), which end at 1")

    def check(self, net: Net, assigned: Mapping[str, Assigned], likelihood: Likelihood) -> None:
        if not random_names(assigned):
            raise ValueError("no parameter has a prior density, so nothing is random; give one a prior, or use MAP")
        if self.empirical_bayes and not any(type(p) in (Normal, Normals) for p in assigned.values()):
            raise ValueError(
                "empirical_bayes learns the scales of normal priors, and there is none; use prior=Normal()"
            )

    def power(self) -> float:
        return self.alpha

    def start(self, mean: Tensor) -> Tensor:
        return torch.full_like(mean, math.log(self.init_std))

    def std(self, mean: Tensor, raw: Tensor) -> Tensor:
        return raw.exp()

    def divergence(self, mean: Tensor, std: Tensor, raw: Tensor, eps: Sequence[Tensor], target: Target) -> Divergence:
        return divergence(
            target.flat_prior,
            mean,
            std,
            eps,
            points=target.points,
            groups=list(self._groups(target).values()),
            temperature=target.temperature,
            log_std=raw,
        )

    def slopes(
        self, state: FactorisedState, std: Tensor, fit: Fit, share: Number, target: Target
    ) -> tuple[Stretches, Tensor]:
        precision = None if target.points or self.empirical_bayes else target.flat_prior.isotropic
        if precision is None or isinstance(share, Tensor) or target.temperature != 1:
            return super().slopes(state, std, fit, share, target)
        kl = sub_isotropic_(fit.by_mean, fit.by_std, share, precision, state.mean, std, state.raw)
        return [*fit.by_mean, *fit.by_std], kl

    def share(self, step: int, steps: int, batches: int) -> float:
        if isinstance(self.kl, Schedule):
            return self.kl(step, steps)
        return halving(step, batches) if self.kl == "blundell" else 1.0

    def posterior(self, state: FactorisedState, target: Target) -> GaussianPosterior:
        made = super().posterior(state, target)
        if not self.empirical_bayes:
            return made
        groups = self._groups(target)
        scales = squared_scales(target.flat_prior, made.mean, made.std, list(groups.values())).sqrt()
        return replace(made, about={"prior_scales": dict(zip(groups, scales.T.tolist(), strict=True))})

    @property
    def depends_on_steps(self) -> bool:
        return super().depends_on_steps or (isinstance(self.kl, Schedule) and self.kl.depends_on_steps)

    def _groups(self, target: Target) -> dict[str, Group]:
        """The stretches whose prior scales are learned together, by the path of the layer they belong to."""
        groups: dict[str, list[slice]] = {}
        for name, span in target.flat_prior.normals.items() if self.empirical_bayes else ():
            if name in target.random:
                layer = "*" if self.empirical_bayes == "global" else name.rpartition(".")[0] or "*"
                groups.setdefault(layer, []).append(span)
        return dict(groups)
