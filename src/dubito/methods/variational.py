"""Mean-field variational inference, "Bayes by Backprop": a Gaussian over every weight (Blundell et al. 2015).

    q(theta) = N(mean, diag exp(log_std)^2)
    loss(q)  = -1/B sum_i E_q[log p(y_i | f(theta, x_i))] / T + w (-E_q[log p(theta)] / T - H[q]) / N

https://arxiv.org/abs/1505.05424. The expectation of the fit is taken over draws by one of three estimators, see
`dubito.noisy`; w is 1, or a schedule that ends at 1 or averages 1 over an epoch. The paper's softplus has the logarithm
in its place: they agree where a standard deviation is small, and the entropy needs no other function of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dubito import running
from dubito.divergence import Group, divergence, squared_scales
from dubito.inputs import Inputs, n_rows
from dubito.likelihoods import Likelihood
from dubito.methods.base import Fate, Info, Method, Tick, Weights, check_count, check_positive
from dubito.net import Buffers, Net
from dubito.noisy import Estimator
from dubito.optim import Optimised, OptimState
from dubito.posteriors.gaussian import GaussianPosterior
from dubito.priors import Assigned, Normal, Normals
from dubito.rng import Rng
from dubito.schedules import Constant, WarmUp, halving
from dubito.target import Batch, Target, random_names


class VariationalState(NamedTuple):
    """Means and log stds of each member side by side, (S, 2 D), their optimiser's moments, and running statistics."""

    q: Tensor
    optim: OptimState
    buffers: Buffers

    @property
    def mean(self) -> Tensor:
        """(S, D)."""
        return self.q.chunk(2, dim=1)[0]

    @property
    def log_std(self) -> Tensor:
        """(S, D): -inf for what has no distribution."""
        return self.q.chunk(2, dim=1)[1]

    @property
    def std(self) -> Tensor:
        """(S, D): exactly 0 for what has no distribution."""
        return self.log_std.exp()


class Fit(NamedTuple):
    """Mean log-likelihood per datum (S,), its gradients (S, D), and the normals for priors without a closed form."""

    log_lik: Tensor
    by_mean: Tensor
    by_std: Tensor
    eps: Sequence[Tensor]


@dataclass(frozen=True, kw_only=True)
class Variational(Optimised, Method[VariationalState]):
    """A factorised Gaussian over the weights, fitted by stochastic gradients of the evidence lower bound."""

    estimator: Estimator = "local"
    draws: int = 1  # of the weights in each step
    init_std: float = 0.01  # every weight's standard deviation at the start
    kl: Literal["uniform", "blundell"] | WarmUp = "uniform"  # how the KL is shared out among steps
    empirical_bayes: Literal["global", "layer"] | None = None  # learn one factor on normal priors' scales, or one each

    answer = "mean-field"
    live_norm = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "draws", self.draws, 1)
        check_positive(self, "init_std", self.init_std)
        if self.estimator not in ("local", "weights", "flipout"):
            raise ValueError(f"unknown estimator {self.estimator!r}; use 'local', 'weights' or 'flipout'")
        if self.empirical_bayes not in (None, "global", "layer"):
            raise ValueError(f"empirical_bayes is {self.empirical_bayes!r}; use 'global', 'layer' or None")
        ends_at_one = isinstance(self.kl, WarmUp) and self.kl.then == Constant()
        if self.kl not in ("uniform", "blundell") and not ends_at_one:
            raise ValueError(f"kl is {self.kl!r}; use 'uniform', 'blundell' or schedules.WarmUp(steps), which end at 1")

    def check(self, net: Net, assigned: Mapping[str, Assigned], likelihood: Likelihood) -> None:
        if not random_names(assigned):
            raise ValueError("no parameter has a prior density, so nothing is random; give one a prior, or use MAP")
        if self.empirical_bayes and not any(type(p) in (Normal, Normals) for p in assigned.values()):
            raise ValueError(
                "empirical_bayes learns the scales of normal priors, and there is none; use prior=Normal()"
            )

    def fates(self, net: Net, names: Sequence[str], x: Inputs | None) -> dict[str, Fate]:
        if self.estimator == "weights":
            return dict.fromkeys(names, Fate("random", "weights"))
        if x is None:
            return dict.fromkeys(names, Fate("random", self.estimator, "where example= shows that it can be"))
        paths = net.scheme(x, names, self.estimator).paths
        return {name: Fate("random", *paths[name]) for name in names}

    def init(self, theta: Tensor, target: Target, tick: Tick) -> VariationalState:
        log_std = torch.full_like(theta, math.log(self.init_std))
        for span in target.points:
            log_std[:, span] = -torch.inf
        q = torch.cat([theta, log_std], dim=1)
        return VariationalState(q, self.optim_init(q), target.net.buffers(len(theta)))

    def step(self, state: VariationalState, batch: Batch, target: Target, tick: Tick) -> tuple[VariationalState, Info]:
        mean, std = state.mean, state.std
        expected = self._drawn if self.estimator == "weights" else self._noisy
        fit = expected(mean, std, batch, target, state.buffers, tick.rng.child("variational"))
        kl = divergence(
            target.flat_prior,
            mean,
            std,
            state.log_std,
            fit.eps,
            points=target.points,
            groups=self._groups(target),
            temperature=target.temperature,
        )
        share = self._share(int(tick.step), tick.steps, target.n_data // n_rows(batch.x)) / target.n_data
        grad = torch.empty_like(state.q)
        by_mean, by_log_std = grad.chunk(2, dim=1)
        torch.mul(kl.by_mean, share, out=by_mean).sub_(fit.by_mean, alpha=1 / target.temperature)
        torch.mul(kl.by_log_std, share, out=by_log_std).addcmul_(fit.by_std, std, value=-1 / target.temperature)
        self.descend_(state.q, grad, state.optim, int(tick.step), tick.steps)
        return state, Info(-fit.log_lik, kl.kl / target.n_data)

    def weights(self, state: VariationalState) -> Weights:
        return Weights(state.mean, state.buffers)

    def posterior(self, state: VariationalState, target: Target) -> GaussianPosterior:
        scales = squared_scales(target.flat_prior, state.mean, state.std, self._groups(target)).sqrt()
        about = {"prior_scales": scales.tolist()} if self.empirical_bayes else {}
        buffers = {n: b.clone() for n, b in state.buffers.items()}
        return GaussianPosterior(target.net, target.likelihood, state.mean.clone(), state.std, buffers, about)

    @property
    def depends_on_steps(self) -> bool:
        return self.rates.depends_on_steps

    def _drawn(self, mean: Tensor, std: Tensor, batch: Batch, target: Target, buffers: Buffers, rng: Rng) -> Fit:
        """Every draw is one weight vector for all examples."""
        eps = rng.normal_(mean.new_empty(len(mean), self.draws, mean.shape[1]), "weights")
        theta = torch.addcmul(mean.unsqueeze(1), std.unsqueeze(1), eps)
        each = running.repeated(buffers, self.draws)
        log_lik, grad = target.lik_value_and_grad(
            theta.flatten(0, 1), batch, "live", {n: b.flatten(0, 1) for n, b in each.items()}
        )
        running.gather_(buffers, each)
        grad = grad.view_as(eps)
        parts = [eps[:, :, span] for span, _ in target.flat_prior.others]
        return Fit(log_lik.view(len(mean), -1).mean(1), grad.mean(1), (grad * eps).mean(1), parts)

    def _noisy(self, mean: Tensor, std: Tensor, batch: Batch, target: Target, buffers: Buffers, rng: Rng) -> Fit:
        """Noise where weights meet their inputs."""
        scheme = target.net.scheme(batch.x, target.random, self.estimator)
        noise = target.net.noise(scheme, batch.x, len(mean), self.draws, rng)
        each = running.repeated(buffers, self.draws)
        log_lik, by_mean, by_std = target.noisy_value_and_grad(mean, std, batch, scheme, noise, "live", each)
        running.gather_(buffers, each)
        spans = [span for span, _ in target.flat_prior.others]
        empty = [mean.new_empty(len(mean), self.draws, span.stop - span.start) for span in spans]
        eps = [rng.normal_(out, f"prior {number}") for number, out in enumerate(empty)]
        return Fit(log_lik, by_mean, by_std, eps)

    def _share(self, step: int, steps: int, batches: int) -> float:
        """w: what the KL of this step is multiplied by."""
        if isinstance(self.kl, WarmUp):
            return self.kl(step, steps)
        return halving(step, max(1, batches)) if self.kl == "blundell" else 1.0

    def _groups(self, target: Target) -> list[Group]:
        """The stretches whose prior scales are learned together."""
        spans = [span for name, span in target.flat_prior.normals.items() if name in target.random]
        if self.empirical_bayes is None or not spans:
            return []
        return [spans] if self.empirical_bayes == "global" else [[span] for span in spans]
