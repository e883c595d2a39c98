"""What weights are removed by: a score for every weight, the larger the later it goes."""

import copy
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dubito.config import is_number, is_real
from dubito.noisy import log_alpha
from dubito.posteriors.base import Posterior
from dubito.posteriors.gaussian import GaussianPosterior
from dubito.posteriors.sparse import SparsePosterior
from dubito.prediction import Undefined

By = Literal["log_alpha", "signal_to_noise", "magnitude"]
BY: tuple[By, ...] = ("log_alpha", "signal_to_noise", "magnitude")
ALIKE = 1e-3  # of log alpha: rounding


@dataclass(frozen=True, eq=False)
class Scored:
    """A network with all its weights, a score for each entry of its matrices and kernels, and where to cut by default.

    `log_alpha` counts downwards, so its scores are -log alpha and its cut is minus the posterior's threshold.
    """

    network: nn.Module
    scores: dict[str, Tensor]
    by: By
    cut: float | None = None

    def masked(self, cut: float) -> nn.Module:
        """The network with zeros where the score lies below the cut."""
        if not is_real(cut):
            raise ValueError(f"cut is {cut}, below which no score lies; give a number, or none to have it chosen")
        network = copy.deepcopy(self.network)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if name in self.scores:
                    parameter.masked_fill_(self.scores[name] < cut, 0.0)
        return network

    def at_share(self, share: float) -> float:
        """The cut that removes a share of the weights."""
        flat = torch.cat([score.flatten() for score in self.scores.values()]).sort().values
        gone = count(share, len(flat))
        return float(flat[gone]) if gone < len(flat) else torch.inf


def scored(posterior: Posterior, by: By | None = None) -> Scored:
    """The network of a posterior and its scores: its own kind of score, or the one asked for."""
    chosen = by or _own(posterior)
    if chosen not in BY:
        raise ValueError(f"there is no score {chosen!r}; use one of {', '.join(BY)}")
    if chosen == "magnitude":
        network = _whole(posterior)
        return Scored(network, {n: p.detach().abs() for n, p in network.named_parameters() if p.ndim > 1}, chosen)
    if not isinstance(posterior, GaussianPosterior):
        raise ValueError(f"{type(posterior).__name__} holds no spread of each weight; use by='magnitude'")
    mean, std = (posterior.net.layout.split(t[0, : posterior.net.layout.size]) for t in (posterior.mean, posterior.std))
    names = [n for n in mean if mean[n].ndim > 1 and bool(std[n].any())]
    check_spread(names)
    if chosen == "signal_to_noise":
        return Scored(_whole(posterior), {n: certainty(mean[n], std[n]) for n in names}, chosen)
    cut = -posterior.threshold if isinstance(posterior, SparsePosterior) else None
    return Scored(_whole(posterior), {n: -_rate(mean[n], std[n]) for n in names}, chosen, cut)


def certainty(mean: Tensor, std: Tensor) -> Tensor:
    """Signal to noise, |mean| / std (Blundell et al. 2015, section 5.1.1, after Graves 2011); 0 for what has gone."""
    return torch.where(mean == 0, 0.0, mean.abs() / std)


def _rate(mean: Tensor, std: Tensor) -> Tensor:
    """log alpha, large for a weight that is 0 already, whatever its spread."""
    return log_alpha(mean, torch.where(mean == 0, 1.0, std))


def count(share: float, weights: int) -> int:
    """How many weights a share of them is."""
    if not (is_number(share) and 0 <= share <= 1):
        raise ValueError(f"share is {share!r}, but a share of the weights lies between 0 and 1; 0.95 removes 95 %")
    return round(share * weights)


def as_shares(given: Any) -> list[float]:
    """The shares of a curve, which has at least one."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"shares is {given!r}; give several shares of the weights to remove, such as (0.5, 0.95)")
    shares = given.tolist() if isinstance(given, Tensor) else list(given)
    if not shares:
        raise ValueError("shares is empty; give at least one share of the weights to remove, such as 0.95")
    for share in shares:
        count(share, 1)
    return [float(share) for share in shares]


def check_spread(random: Sized) -> None:
    """Refuse to tell weights apart by a spread that none has."""
    if not len(random):
        raise ValueError(
            "no weight of the network has a spread, so none is less certain than another; score by='magnitude', or fit "
            "a posterior with a spread, such as Variational"
        )


def counts(network: nn.Module) -> dict[str, tuple[int, int]]:
    """For each matrix and kernel, how many entries are not zero, and how many there are; biases do not count."""
    named = ((name, p) for name, p in network.named_parameters() if p.ndim > 1)
    return {name: (int(p.detach().count_nonzero()), p.numel()) for name, p in named}


def ratio(network: nn.Module) -> float:
    """All weights over those that are not zero, biases left out; infinite for an empty network."""
    kept, total = (sum(pair[i] for pair in counts(network).values()) for i in (0, 1))
    return total / kept if kept else float("inf")


def _own(posterior: Posterior) -> By:
    """A spread that follows the mean at one rate, as in Gaussian dropout, tells no weight from another."""
    if isinstance(posterior, SparsePosterior):
        return "log_alpha"
    if not isinstance(posterior, GaussianPosterior):
        return "magnitude"
    random = posterior.random & (posterior.mean != 0).all(0)
    rates = log_alpha(posterior.mean[:, random], posterior.std[:, random])
    alike = rates.numel() > 0 and float(rates.max() - rates.min()) < ALIKE
    return "magnitude" if alike else "signal_to_noise"


def _whole(posterior: Posterior) -> nn.Module:
    """The mean network before anything went."""
    try:
        if isinstance(posterior, SparsePosterior):
            return GaussianPosterior.mean_network(posterior)
        return posterior.mean_network()
    except Undefined as error:
        raise Undefined(
            f"{posterior!r} is no single network to make smaller ({error}); fit with members=1, or take one of "
            "several with posterior.member(0)"
        ) from error
