"""Mixtures of diagonal Gaussians fitted to weight vectors by expectation and maximisation.

    r_nk   = share_k N(theta_n; mean_k, std_k^2) / sum_j share_j N(theta_n; mean_j, std_j^2)
    share_k = mean_n r_nk,   mean_k, std_k^2 = moments of theta_n weighted by r_nk

(Dempster, Laird and Rubin, 1977). The vectors are read a few at a time in every pass, so a chain on disk stays there.
The start is that of k-means++ (Arthur and Vassilvitskii, 2007). One component is the single-mode approximation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dubito.distill.bank import Bank, standard, teacher
from dubito.distill.work import chosen, describe
from dubito.methods.base import check_count, check_positive
from dubito.posteriors.base import Posterior
from dubito.posteriors.mixture import MixturePosterior
from dubito.priors import LOG_SQRT_2PI
from dubito.progress import track
from dubito.rng import Rng
from dubito.runtime import pick_device


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Diagonal Gaussians over the whole weight vector, 2 K D numbers."""

    components: int = 1
    passes: int = 50  # over the vectors, at most
    tolerance: float = 1e-6  # of the log-likelihood per vector and coordinate, in nats, between passes
    floor: float = 0.05  # least standard deviation of a component, as a share of the coordinate's own over all vectors

    def __post_init__(self) -> None:
        check_count(self, "components", self.components, 1)
        check_count(self, "passes", self.passes, 1)
        check_positive(self, "tolerance", self.tolerance)
        check_positive(self, "floor", self.floor)


class Fitted(NamedTuple):
    """A mixture in standardised coordinates, (K,), (K, D), (K, D)."""

    share: Tensor
    mean: Tensor
    var: Tensor


def mixture(
    posterior: Posterior,
    distiller: Mixture | None = None,
    *,
    seed: int = 0,
    device: str | torch.device = "auto",
    progress: bool = True,
) -> MixturePosterior:
    """Fit a mixture to the weight vectors of a posterior."""
    settings = chosen(distiller, Mixture)
    samples = teacher(posterior, seed)
    if settings.components > len(samples):
        raise ValueError(
            f"{settings.components} components need as many weight vectors, but there are {len(samples)}; ask for fewer"
        )
    net = posterior.net.to(pick_device(device))
    bank = Bank(samples, standard(samples, net.device))
    fitted = _em(bank, settings, Rng(seed).child("mixture"), progress)
    mean = bank.standard.outward(fitted.mean.to(net.dtype))
    std = (fitted.var.sqrt() * bank.standard.scale).to(net.dtype)
    about = describe(settings, posterior, seed)
    return MixturePosterior(net, posterior.likelihood, mean, std, {}, about, share=fitted.share.to(net.dtype))


def _em(bank: Bank, settings: Mixture, rng: Rng, progress: bool) -> Fitted:
    """Passes until the log-likelihood stands still; the first gives every vector to the nearest centre."""
    centres = _centres(bank, settings.components, rng)
    fitted, _ = _pass(bank, lambda x: _to_nearest(x, centres), settings)
    before = -torch.inf
    for _ in track(range(settings.passes if settings.components > 1 else 0), settings.passes, "mixture", progress):
        fitted, level = _pass(bank, _Expectation(fitted), settings)
        if abs(level - before) < settings.tolerance * bank.size:
            break
        before = level
    return fitted


Assign = Callable[[Tensor], tuple[Tensor, Tensor]]  # vectors (b, D) -> responsibilities (b, K), log-densities (b,)


def _pass(bank: Bank, assign: Assign, settings: Mixture) -> tuple[Fitted, float]:
    """One reading of all vectors: the mixture that their responsibilities give, and their mean log-density."""
    count = total = square = level = torch.zeros((), dtype=torch.float64, device=bank.device)
    for part in bank.pieces():
        x = part.double()
        shares, log_prob = assign(x)
        count, level = count + shares.sum(0), level + log_prob.sum()
        total, square = total + shares.T @ x, square + shares.T @ x.square()
    weight = count.clamp_min(1e-12).unsqueeze(1)
    mean = total / weight
    var = (square / weight - mean.square()).clamp_min(settings.floor**2)
    return Fitted(count / bank.n, mean, var), float(level / bank.n)


class _Expectation:
    """Responsibilities of the components for vectors, by two matrix products."""

    def __init__(self, fitted: Fitted) -> None:
        self.precision = 1 / fitted.var
        self.pull = fitted.mean * self.precision
        spread = fitted.var.log() + fitted.mean * self.pull
        self.level = fitted.share.log() - 0.5 * spread.sum(1) - LOG_SQRT_2PI * fitted.mean.shape[1]

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        joint = self.level + x @ self.pull.T - 0.5 * x.square() @ self.precision.T
        log_prob = joint.logsumexp(1)
        return (joint - log_prob.unsqueeze(1)).exp(), log_prob


def _to_nearest(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """All of each vector to one component."""
    nearest = torch.cdist(x, centres).argmin(1)
    return torch.nn.functional.one_hot(nearest, len(centres)).to(x.dtype), torch.zeros_like(x[:, 0])


def _centres(bank: Bank, count: int, rng: Rng) -> Tensor:
    """Vectors far from each other: each is drawn with odds of its squared distance to those before, (K, D)."""
    uniform = rng.uniform((1, count), "centres", torch.empty(0, dtype=torch.float64))[0].tolist()
    chosen = [int(uniform[0] * bank.n)]
    distance = torch.full((bank.n,), torch.inf, dtype=torch.float64, device=bank.device)
    for u in uniform[1:]:
        newest = bank.take(torch.tensor([chosen[-1]], device=bank.device)).double()
        apart = torch.cat([(part.double() - newest).square().sum(1) for part in bank.pieces()])
        distance = torch.minimum(distance, apart)
        ends = distance.cumsum(0)
        chosen.append(min(int(torch.searchsorted(ends, u * ends[-1], right=True)), bank.n - 1))
    return bank.take(torch.tensor(chosen, device=bank.device)).double()
