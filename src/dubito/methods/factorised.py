"""A Gaussian over every weight, fitted by stochastic gradients of a bound: what several methods share.

    q(theta) = N(mean, diag std^2),   std a function of the mean and of a raw vector beside it
    loss(q)  = -1/B sum_i E_q[log p(y_i | f(theta, x_i))] / T + w KL(q || p) / N

A method says how std is made and what the KL is. The expectation of the fit is taken over draws by one of three
estimators, see `dubito.noisy`.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dubito import running
from dubito.divergence import Divergence, divergence
from dubito.inputs import Inputs, n_rows
from dubito.layout import Stretches, whole
from dubito.likelihoods import Likelihood
from dubito.methods.base import Fate, Info, Method, Weights, check_count, check_positive
from dubito.net import Buffers, Net
from dubito.noisy import Estimator
from dubito.optim import Optimised, OptimState
from dubito.pooling import pooled
from dubito.posteriors.gaussian import GaussianPosterior
from dubito.priors import Assigned
from dubito.rng import Rng
from dubito.target import Batch, FlatPrior, Target, random_names
from dubito.tick import Number, Tick


class FactorisedState(NamedTuple):
    """Means and raw spreads of each member side by side, (S, 2 D), their optimiser's moments, and statistics."""

    q: Tensor
    optim: OptimState
    buffers: Buffers

    @property
    def mean(self) -> Tensor:
        """(S, D)."""
        return self.q.chunk(2, dim=1)[0]

    @property
    def raw(self) -> Tensor:
        """(S, D): -inf for what has no distribution."""
        return self.q.chunk(2, dim=1)[1]


class Fit(NamedTuple):
    """Mean log-likelihood per datum (S,), its gradients (S, D), and the normals for priors without a closed form."""

    log_lik: Tensor
    by_mean: Stretches
    by_std: Stretches
    eps: Sequence[Tensor]


@dataclass(frozen=True, kw_only=True)
class Factorised(Optimised, Method[FactorisedState]):
    """A factorised Gaussian over the weights."""

    estimator: Estimator = "local"
    draws: int = 1  # of the weights in each step
    init_std: float = 0.01  # every weight's standard deviation at the start

    live_norm = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "draws", self.draws, 1)
        check_positive(self, "init_std", self.init_std)
        if self.estimator not in ("local", "weights", "flipout"):
            raise ValueError(f"unknown estimator {self.estimator!r}; use 'local', 'weights' or 'flipout'")

    # -- what a method says ------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, mean: Tensor) -> Tensor:
        """The raw spreads of means (S, D) at the start."""

    @abstractmethod
    def std(self, mean: Tensor, raw: Tensor) -> Tensor:
        """Standard deviations (S, D): exactly 0 where raw is -inf."""

    def pull_(self, by_mean: Tensor, by_log_std: Tensor, state: FactorisedState, target: Target) -> None:
        """The chain rule, in place: gradients by mean and log std become those by mean and raw, if that is another."""

    @abstractmethod
    def divergence(self, mean: Tensor, std: Tensor, raw: Tensor, eps: Sequence[Tensor], target: Target) -> Divergence:
        """KL(q || p) and its gradients by mean and log std."""

    @abstractmethod
    def share(self, step: int, steps: int, batches: int) -> float:
        """w: what the KL of a step is multiplied by; an epoch has so many batches."""

    def power(self) -> float:
        """The alpha of the divergence by which draws are joined: 0 takes their mean."""
        return 0.0

    def random(self, target: Target) -> tuple[str, ...]:
        """The weights that have a distribution."""
        return target.random

    def points(self, target: Target) -> list[slice]:
        """Where theta holds what has none."""
        random = self.random(target)
        return [span for name, span in target.layout.spans.items() if name not in random]

    def prior(self, target: Target) -> FlatPrior:
        """The densities that enter the KL."""
        return target.flat_prior

    # -- what all of them do -----------------------------------------------------------------------------------

    def fates(self, net: Net, names: Sequence[str], x: Inputs | None) -> dict[str, Fate]:
        if self.estimator == "weights":
            return dict.fromkeys(names, Fate("random", "weights"))
        if x is None:
            return dict.fromkeys(names, Fate("random", self.estimator, "where example= shows that it can be"))
        paths = net.scheme(x, names, self.estimator).paths
        return {name: Fate("random", *paths[name]) for name in names}

    def init(self, theta: Tensor, target: Target, tick: Tick) -> FactorisedState:
        raw = self.start(theta)
        for span in self.points(target):
            raw[:, span] = -torch.inf
        q = torch.cat([theta, raw], dim=1)
        return FactorisedState(q, self.optim_init(q), target.net.buffers(len(theta)))

    def step(self, state: FactorisedState, batch: Batch, target: Target, tick: Tick) -> tuple[FactorisedState, Info]:
        mean, std = state.mean, self.std(state.mean, state.raw)
        fit = self.expected(mean, std, batch, target, state.buffers, tick.rng.child("variational"))
        batches = max(1, target.n_data // n_rows(batch.example))
        share = tick.number(lambda step, steps: self.share(step, steps, batches) / target.n_data)
        slopes, kl = self.slopes(state, std, fit, share, target)
        self.descend_(state.q, slopes, state.optim, tick, uphill=True)
        return state, Info(-fit.log_lik, kl / target.n_data)

    def slopes(
        self, state: FactorisedState, std: Tensor, fit: Fit, share: Number, target: Target
    ) -> tuple[Stretches, Tensor]:
        """The gradient of the bound by mean and raw, (S, 2 D), uphill, and the KL, (S,)."""
        kl = self.divergence(state.mean, std, state.raw, fit.eps, target)
        by_mean, by_log_std = kl.by_mean.mul_(-share), kl.by_log_std.mul_(-share)
        by_mean.add_(whole(fit.by_mean), alpha=1 / target.temperature)
        by_log_std.addcmul_(whole(fit.by_std), std, value=1 / target.temperature)
        self.pull_(by_mean, by_log_std, state, target)
        return (by_mean, by_log_std), kl.kl

    def weights(self, state: FactorisedState) -> Weights:
        return Weights(state.mean, state.buffers)

    def posterior(self, state: FactorisedState, target: Target) -> GaussianPosterior:
        buffers = {n: b.clone() for n, b in state.buffers.items()}
        std = self.std(state.mean, state.raw)
        return GaussianPosterior(target.net, target.likelihood, state.mean.clone(), std, buffers)

    @property
    def depends_on_steps(self) -> bool:
        return self.rates.depends_on_steps

    def expected(self, mean: Tensor, std: Tensor, batch: Batch, target: Target, buffers: Buffers, rng: Rng) -> Fit:
        """The fit of one step over `draws` draws."""
        how = self._drawn if self.estimator == "weights" else self._noisy
        return how(mean, std, batch, target, buffers, rng)

    def _drawn(self, mean: Tensor, std: Tensor, batch: Batch, target: Target, buffers: Buffers, rng: Rng) -> Fit:
        """Every draw is one weight vector for all examples."""
        eps = rng.normal_(mean.new_empty(len(mean), self.draws, mean.shape[1]), "weights")
        if self.draws > 1 and self.power() == 0 and not target.side_by_side(batch):
            return self._drawn_in_turn(mean, std, eps, batch, target, buffers)
        theta = torch.addcmul(mean.unsqueeze(1), std.unsqueeze(1), eps).flatten(0, 1)
        each = running.repeated(buffers, self.draws)
        held = {n: b.flatten(0, 1) for n, b in each.items()}
        joined, shared = self._joined(theta, batch, target, held)
        log_lik, grad = target.lik_value_and_grad(theta, shared, "live", held)
        running.gather_(buffers, each)
        grad = grad.view_as(eps)
        value = log_lik.view(len(mean), -1).mean(1) if joined is None else joined
        return Fit(value, [grad.mean(1)], [(grad * eps).mean(1)], self._for_others(eps, target))

    def _drawn_in_turn(
        self, mean: Tensor, std: Tensor, eps: Tensor, batch: Batch, target: Target, buffers: Buffers
    ) -> Fit:
        """The same for large networks: the weights and the gradient of one draw after another stay in the cache."""
        each, value = running.repeated(buffers, self.draws), mean.new_zeros(len(mean))
        by_mean, by_std = torch.zeros_like(mean), torch.zeros_like(std)
        for draw, noise in enumerate(eps.unbind(1)):
            held = {n: b[:, draw] for n, b in each.items()}
            log_lik, grad = target.lik_value_and_grad(torch.addcmul(mean, std, noise), batch, "live", held)
            value.add_(log_lik)
            by_mean.add_(grad)
            by_std.addcmul_(grad, noise)
        running.gather_(buffers, each)
        share = 1 / self.draws
        return Fit(value.mul_(share), [by_mean.mul_(share)], [by_std.mul_(share)], self._for_others(eps, target))

    def _for_others(self, eps: Tensor, target: Target) -> list[Tensor]:
        """The normals (S, draws, n) for the weights whose prior has no closed form."""
        return [eps[:, :, span] for span, _ in self.prior(target).others]

    def _joined(self, theta: Tensor, batch: Batch, target: Target, buffers: Buffers) -> tuple[Tensor | None, Batch]:
        """What draws that answer for a datum together say, and the batch weighted by their shares in each answer.

        The gradient of 1/alpha log 1/K sum_k p_k^alpha is that of sum_k s_k log p_k, with s_k their shares held fixed.
        """
        every = batch.repeated(self.draws)
        if self.power() == 0 or self.draws == 1:
            return None, every
        log_lik = target.log_probs(theta, every, "live", {n: b.clone() for n, b in buffers.items()})
        log_lik = log_lik.unflatten(0, (-1, self.draws))
        shares = (self.draws * (self.power() * log_lik).softmax(1)).flatten(0, 1)
        value = torch.stack([pooled(one, self.power()) for one in log_lik])
        if batch.weight is not None and every.weight is not None:
            value, shares = value * batch.weight, shares * every.weight
        return value.mean(1), every._replace(weight=shares)

    def _noisy(self, mean: Tensor, std: Tensor, batch: Batch, target: Target, buffers: Buffers, rng: Rng) -> Fit:
        """Noise where weights meet their inputs."""
        scheme = target.net.scheme(batch.example, self.random(target), self.estimator)
        noise = target.net.noise(scheme, batch.example, len(mean), self.draws, rng)
        each = running.repeated(buffers, self.draws)
        log_lik, by_mean, by_std = target.noisy_value_and_grad(
            mean, std, batch, scheme, noise, "live", each, self.power()
        )
        running.gather_(buffers, each)
        spans = [span for span, _ in self.prior(target).others]
        empty = [mean.new_empty(len(mean), self.draws, span.stop - span.start) for span in spans]
        eps = [rng.normal_(out, f"prior {number}") for number, out in enumerate(empty)]
        return Fit(log_lik, by_mean, by_std, eps)


@dataclass(frozen=True, kw_only=True)
class Multiplicative(Factorised):
    """A Gaussian over matrices and kernels, in which noise is a matter of dropout; other parameters are points."""

    def check(self, net: Net, assigned: Mapping[str, Assigned], likelihood: Likelihood) -> None:
        if not matrices(net, random_names(assigned)):
            raise ValueError(
                f"{type(self).__name__} acts on matrices and kernels, and none has a prior; give one a prior"
            )

    def random(self, target: Target) -> tuple[str, ...]:
        return matrices(target.net, target.random)

    def prior(self, target: Target) -> FlatPrior:
        random = self.random(target)
        return target.prior_of(tuple(n for n in target.layout.names if n not in random))

    def fates(self, net: Net, names: Sequence[str], x: Inputs | None) -> dict[str, Fate]:
        noisy = super().fates(net, matrices(net, names), x)
        point = Fate("point", "optimised", "no matrix or kernel")
        return {n: noisy[n]._replace(prior=self.prior_name) if n in noisy else point for n in names}

    @property
    def prior_name(self) -> str:
        """What its matrices and kernels have for a prior, where that is not the one they were given."""
        return ""

    def rest(self, mean: Tensor, std: Tensor, eps: Sequence[Tensor], target: Target) -> Divergence:
        """What `prior` says of the points."""
        everything = [slice(0, mean.shape[1])]
        return divergence(self.prior(target), mean, std, eps, points=everything, temperature=target.temperature)


def matrices(net: Net, names: Sequence[str]) -> tuple[str, ...]:
    """The parameters with at least two axes."""
    shapes = dict(zip(net.layout.names, net.layout.shapes, strict=True))
    return tuple(name for name in names if len(shapes.get(name, ())) > 1)
