"""The posterior of variational inference: a Gaussian over the weights, or a mixture of a few."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from dubito.layout import Layout
from dubito.likelihoods import Likelihood
from dubito.net import Buffers, Net
from dubito.posteriors import files
from dubito.posteriors.storage import BUFFER, Damaged, Samples
from dubito.posteriors.weights import WeightPosterior
from dubito.prediction import Undefined
from dubito.priors import LOG_SQRT_2PI, Assigned, Fixed, Normals, Point
from dubito.rng import Rng

TENSORS = "gaussian.safetensors"


@dataclass(frozen=True, eq=False, repr=False)
class GaussianPosterior(WeightPosterior):
    """N(mean, diag std^2) over [net | likelihood], (S, D) each, with equal weight; std 0 where nothing is random.

    Draw i is made of component i mod S, and is a fixed function of (seed, i).
    """

    net: Net
    likelihood: Likelihood
    mean: Tensor
    std: Tensor
    buffers: Buffers = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    kind = "gaussian"

    def vectors(self, n: int, seed: int = 0) -> tuple[Samples, Sequence[int]]:
        return _Drawn(self, seed, n), range(n)

    def components(self, index: Sequence[int], seed: int) -> list[int]:
        """Which component each draw is made of."""
        return [i % len(self) for i in index]

    @property
    def shares(self) -> Tensor:
        """(S,): how much each component counts."""
        return self.mean.new_full((len(self),), 1 / len(self))

    def moments(self) -> tuple[Tensor, Tensor]:
        shares = self.shares.unsqueeze(1)
        mean = (shares * self.mean).sum(0)
        return mean, (shares * (self.std.square() + (self.mean - mean).square())).sum(0).sqrt()

    def mean_network(self) -> nn.Module:
        if len(self) > 1:
            raise Undefined("the average weights of several Gaussians are no network that fits the data; use predict()")
        return self.net.network(self.mean[0, : self.net.layout.size], {n: b[0] for n, b in self.buffers.items()})

    def log_prob(self, theta: Tensor | Mapping[str, Tensor]) -> Tensor:
        """log q(theta) of vectors (..., D) or of named weights (n, *shape), over the coordinates that are random."""
        joined = self._joined(theta)
        random = self.random[: joined.shape[-1]].nonzero().squeeze(1)
        mean, std = self.mean[:, random], self.std[:, random]
        if not bool(std.all()):
            raise Undefined(
                f"the {len(self)} Gaussians spread over different weights, as after pruning, so that their mixture has "
                "no density; take one of them with member(0)"
            )
        scaled = (joined.to(mean)[..., None, random] - mean) / std
        each = (-0.5 * scaled.square() - std.log() - LOG_SQRT_2PI).sum(-1)
        return (each + self.shares.log()).logsumexp(-1)

    def kl(self, other: "GaussianPosterior") -> float:
        """KL(self || other) in nats."""
        if not isinstance(other, GaussianPosterior):
            raise ValueError(f"{other!r} is no Gaussian over weights, so there is no KL to it; give the other Gaussian")
        for one in (self, other):
            one._check_single("KL divergence")
        if self.net.layout != other.net.layout or not torch.equal(self.random.cpu(), other.random.cpu()):
            raise ValueError(f"{self!r} and {other!r} spread over different weights, so there is no KL between them")
        (mean, std), (other_mean, other_std) = self._spread(), other._spread()
        ratio = (std / other_std).square()
        return float(0.5 * (ratio + ((mean - other_mean) / other_std).square() - 1 - ratio.log()).sum())

    def as_prior(self) -> dict[str, Assigned]:
        """This posterior as the prior of another fit: `fit(net, data, method, prior=posterior.as_prior())`."""
        self._check_single("normal prior")
        means, stds = (self.net.layout.split(t[0, : self.net.layout.size]) for t in (self.mean, self.std))
        prior: dict[str, Assigned] = {n: _prior(n, means[n], stds[n]) for n in means}
        return prior | dict.fromkeys(self.net.fixed, Fixed())

    def member(self, index: int) -> Self:
        """One Gaussian of a mixture, by itself."""
        if not 0 <= index < len(self):
            raise ValueError(f"there is no member {index} of {len(self)}; they are counted from 0")
        buffers = {n: b[index : index + 1] for n, b in self.buffers.items()}
        one = slice(index, index + 1)
        return replace(self, mean=self.mean[one], std=self.std[one], buffers=buffers)

    @property
    def random(self) -> Tensor:
        """(D,): which coordinates have a spread."""
        return (self.std > 0).any(0)

    def to(self, device: str | torch.device) -> "GaussianPosterior":
        net = self.net.to(device)
        buffers = {n: b.to(net.device) for n, b in self.buffers.items()}
        return replace(self, net=net, mean=self.mean.to(net.device), std=self.std.to(net.device), buffers=buffers)

    def save(self, folder: str | Path) -> None:
        held = {"mean": self.mean, "std": self.std, **{BUFFER + n: b for n, b in self.buffers.items()}}
        files.save_tensors(folder, self, TENSORS, held, self._settings())

    def _settings(self) -> dict[str, float]:
        """What else its file must tell."""
        return {}

    def __len__(self) -> int:
        return len(self.mean)

    def __repr__(self) -> str:
        made = self.about.get("method", {}).get("name", "posterior")
        count = "a Gaussian" if len(self) == 1 else f"{len(self)} Gaussians"
        spread = int(self.random[: self.net.layout.size].sum())
        return f"<{made}: {count} over {spread:,} of {self.net.layout.size:,} weights, {self.likelihood!r}>"

    def _joined(self, theta: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Vectors over the network's weights, or over these and what the likelihood learns."""
        layout = self.net.layout
        if isinstance(theta, Tensor) and theta.shape[-1:] in ((layout.size,), (self.mean.shape[1],)):
            return theta
        if isinstance(theta, Mapping) and set(layout.names) <= set(theta):
            return layout.join(theta)
        given = f"a tensor of shape {tuple(theta.shape)}" if isinstance(theta, Tensor) else f"{', '.join(theta)}"
        raise ValueError(f"theta is {given}; give vectors of {layout.size} weights, or named ones as sample() makes")

    def _spread(self) -> tuple[Tensor, Tensor]:
        """Means and standard deviations of what is random, in double precision."""
        return self.mean[0, self.random].double().cpu(), self.std[0, self.random].double().cpu()

    def _check_single(self, what: str) -> None:
        if len(self) > 1:
            raise Undefined(f"a mixture of {len(self)} Gaussians has no {what} in closed form; fit with members=1")


class _Drawn(Samples):
    """Draws of a Gaussian posterior as samples, made when they are asked for."""

    def __init__(self, posterior: GaussianPosterior, seed: int, n: int) -> None:
        self.posterior, self.seed, self.rng = posterior, seed, Rng(seed).child("gaussian")
        self.rows, self.chains = n, 1

    def get(self, index: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        held = self.posterior
        theta = held.mean.new_empty(len(index), held.mean.shape[1])
        for row, i in zip(theta, index, strict=True):
            self.rng.normal_(row.unsqueeze(0), "weights", i)
        at = torch.as_tensor(held.components(index, self.seed), device=held.mean.device)
        return torch.addcmul(held.mean[at], held.std[at], theta), {n: b[at] for n, b in held.buffers.items()}


def _prior(name: str, mean: Tensor, std: Tensor) -> Assigned:
    if not bool(std.any()):
        return Point()
    if not bool(std.all()):
        raise ValueError(
            f"some weights of {name!r} have no spread, as after pruning; a prior needs one for all or none"
        )
    return Normals(mean, std)


def stored(folder: Path, manifest: Mapping[str, Any], net: Net, likelihood: Likelihood) -> GaussianPosterior:
    """The posterior a folder holds."""
    size = net.layout.size + Layout.of(likelihood.parameters()).size
    held = files.load_tensors(folder, TENSORS, net, ("mean", "std"))
    mean, std = held.pop("mean"), held.pop("std")
    if mean.dim() != 2 or mean.shape != std.shape or mean.shape[1] != size:
        raise Damaged(
            f"{folder / TENSORS} holds vectors of {tuple(mean.shape)} where (members, {size}) was expected; "
            "restore it or fit again"
        )
    buffers = {n.removeprefix(BUFFER): b for n, b in held.items()}
    return GaussianPosterior(net, likelihood, mean, std, buffers, manifest.get("about", {}))
