"""How far a factorised Gaussian lies from the prior, in nats.

    KL(q || p) = -E_q[log p(theta)] - H[q],   q = N(mean, diag std^2),   H[q] = sum_i log std_i + 1/2 log(2 pi e)

Under normal priors the expectation is closed; under any other it is averaged over draws and only the entropy is closed
(Blundell et al. 2015, https://arxiv.org/abs/1505.05424, draw both). Coordinates without a distribution, `points`, have
std 0: they bring their prior's log density and no entropy.

Under the log-uniform prior p(|w|) ~ 1 / |w| the KL depends on alpha = std^2 / mean^2 alone: `dropout_divergence`.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito.layout import Stretches, dots
from dubito.noisy import log_size
from dubito.priors import LOG_SQRT_2PI, slopes
from dubito.target import FlatPrior

DropoutPrior = Literal["log-uniform", "ard"]
LEAST = 80.0  # of -log alpha, whose exponential is still finite
K1, K2, K3 = 0.63576, 1.87320, 1.48695  # of Molchanov et al.'s approximation

Group = Sequence[slice]  # stretches of theta that share one learned factor on their prior's scale


class Divergence(NamedTuple):
    """Both parts of the KL for each member, (S,), and the gradient of energy / T - entropy, (S, D) each."""

    energy: Tensor
    entropy: Tensor
    by_mean: Tensor
    by_log_std: Tensor

    @property
    def kl(self) -> Tensor:
        """The divergence itself, (S,)."""
        return self.energy - self.entropy

    def plus(self, other: "Divergence") -> "Divergence":
        """That of both, over different coordinates."""
        return Divergence(*(mine + yours for mine, yours in zip(self, other, strict=True)))


def divergence(
    prior: FlatPrior,
    mean: Tensor,
    std: Tensor,
    eps: Sequence[Tensor],
    *,
    points: Sequence[slice] = (),
    groups: Sequence[Group] = (),
    temperature: float = 1.0,
    log_std: Tensor | None = None,
) -> Divergence:
    """KL(q || p) and its gradient at means and stds (S, D), with their logarithms where these are at hand.

    `eps` holds the standard normals of the draws, (S, K, n), for each prior without a closed form. Each of `groups` has
    its prior's scale at the optimum, see `squared_scales`.
    """
    centred = mean if prior.mean is None else mean - prior.mean
    by_mean, by_log_std = centred * prior.precision, std.square().mul_(prior.precision)
    energy = 0.5 * (dots(by_mean, centred) + by_log_std.sum(1)) - prior.log_norm
    scales = squared_scales(prior, mean, std, groups)
    for group, scale in zip(groups, scales.unbind(1), strict=True):
        size = _size(group)
        energy = energy + 0.5 * size * (1 - scale + scale.log())
        for span in group:
            by_mean[:, span] /= scale.unsqueeze(1)
            by_log_std[:, span] /= scale.unsqueeze(1)
    for span, *part in _drawn(prior, mean, std, eps):
        energy, by_mean[:, span], by_log_std[:, span] = energy + part[0], part[1], part[2] * std[:, span]
    if temperature != 1:
        by_mean, by_log_std = by_mean / temperature, by_log_std / temperature
    by_log_std.sub_(1)  # the slope of the entropy
    for span in points:
        by_log_std[:, span].zero_()
    return Divergence(energy, _entropy(std.log() if log_std is None else log_std, points), by_mean, by_log_std)


def sub_isotropic_(
    by_mean: Stretches,
    by_std: Stretches,
    share: float,
    precision: float,
    mean: Tensor,
    std: Tensor,
    log_std: Tensor,
) -> Tensor:
    """The KL from N(0, 1 / precision), (S,), whose gradient times `share` is taken off slopes by mean and std.

    The latter become slopes by log std. What `divergence` finds, in as few passes over memory as can be, which take the
    CPU longer than the arithmetic, and without new vectors.
    """
    sizes = [part.shape[1] for part in by_mean]
    for slope, centre in zip(by_mean, mean.split(sizes, 1), strict=True):
        slope.sub_(centre, alpha=share * precision)
    for slope, spread in zip(by_std, std.split(sizes, 1), strict=True):
        slope.sub_(spread, alpha=share * precision).mul_(spread).add_(share)
    energy = 0.5 * precision * (dots(mean, mean) + dots(std, std)) - mean.shape[1] * (0.5 * math.log(precision))
    return energy + mean.shape[1] * LOG_SQRT_2PI - _entropy(log_std, ())


def dropout_divergence(
    kind: DropoutPrior,
    mean: Tensor,
    std: Tensor,
    *,
    clip: float,
    temperature: float = 1.0,
    log_std: Tensor | None = None,
) -> Divergence:
    """The KL of N(mean, std^2), (S, D), from a prior without a scale; what has std 0 brings nothing.

        log-uniform   K1 (1 - sigmoid(K2 + K3 log alpha)) + 1/2 log(1 + 1 / alpha)
        ard           1/2 log(1 + 1 / alpha)

    The first is the approximation of Molchanov et al. (2017, https://arxiv.org/abs/1701.05369), whose constant
    makes it 0 at alpha = inf; the second has N(0, s^2) for a prior, every weight with its own best s (Kharitonov et
    al. 2018, https://arxiv.org/abs/1811.00596). Above log alpha = clip it has no slope: there the mean may be 0.
    """
    log_std = std.log() if log_std is None else log_std
    ratio, random = 2 * (log_std - log_size(mean)), std > 0
    inside = random & (ratio <= clip)
    ratio = ratio.clamp(-LEAST, clip)
    each, slope = 0.5 * F.softplus(-ratio), -0.5 * torch.sigmoid(-ratio)
    if kind == "log-uniform":
        gate = torch.sigmoid(K2 + K3 * ratio)
        each, slope = each + K1 * (1 - gate), slope - K1 * K3 * gate * (1 - gate)
    doubled = torch.where(inside, 2 * slope, 0.0)
    by_mean, by_log_std = -doubled / torch.where(inside, mean, 1.0), doubled
    entropy = torch.where(random, log_std + (0.5 + LOG_SQRT_2PI), 0.0).sum(1)
    if temperature != 1:  # the energy, which is the KL plus the entropy, is divided by it and the entropy is not
        by_log_std = by_log_std / temperature + torch.where(random, 1 / temperature - 1, 0.0)
        by_mean = by_mean / temperature
    return Divergence(torch.where(random, each, 0.0).sum(1) + entropy, entropy, by_mean, by_log_std)


def squared_scales(prior: FlatPrior, mean: Tensor, std: Tensor, groups: Sequence[Group]) -> Tensor:
    """(S, groups): what the prior's variances are multiplied by so that the KL is least.

    With prior variances c v_i the KL holds sum_i [((mean_i - m_i)^2 + std_i^2) / (2 c v_i) + 1/2 log c], whose minimum
    is at c = mean_i ((mean_i - m_i)^2 + std_i^2) / v_i; there its gradient is that at fixed c (the envelope theorem).
    """
    rows = [torch.stack([_quadratic(prior, mean, std, s) for s in group]).sum(0) / _size(group) for group in groups]
    return torch.stack(rows, dim=1) if rows else mean.new_empty(len(mean), 0)


def _quadratic(prior: FlatPrior, mean: Tensor, std: Tensor, span: slice) -> Tensor:
    centre = 0 if prior.mean is None else prior.mean.expand(mean.shape[1])[span]
    second = (mean[:, span] - centre).square() + std[:, span].square()
    return (second * prior.precision.expand(mean.shape[1])[span]).sum(1)


def _drawn(
    prior: FlatPrior, mean: Tensor, std: Tensor, eps: Sequence[Tensor]
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """-E_q log p over draws for every prior without a closed form, and its gradients by mean and std."""
    for (span, density), noise in zip(prior.others, eps, strict=True):
        centre, spread = (t[:, span].detach().requires_grad_() for t in (mean, std))
        with torch.enable_grad():
            theta = torch.addcmul(centre.unsqueeze(1), spread.unsqueeze(1), noise)
            energy = -density.log_prob(theta).mean(1).sum(1)
            by_centre, by_spread = slopes(energy.sum(), centre, spread)
        yield span, energy.detach(), by_centre, by_spread


def _entropy(log_std: Tensor, points: Sequence[slice]) -> Tensor:
    """H[q], (S,)."""
    finite = log_std.clone() if points else log_std
    for span in points:
        finite[:, span].zero_()
    return finite.sum(1) + (log_std.shape[1] - _size(points)) * (0.5 + LOG_SQRT_2PI)


def _size(spans: Sequence[slice]) -> int:
    return sum(span.stop - span.start for span in spans)
