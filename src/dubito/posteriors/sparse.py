"""The posterior of sparse variational dropout: a Gaussian whose noisiest weights count as zero."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dubito.likelihoods import Likelihood
from dubito.net import Net
from dubito.noisy import log_alpha
from dubito.posteriors import gaussian
from dubito.posteriors.gaussian import GaussianPosterior
from dubito.posteriors.storage import Samples


@dataclass(frozen=True, eq=False, repr=False)
class SparsePosterior(GaussianPosterior):
    """N(mean, diag std^2) whose weights with log alpha = log(std^2 / mean^2) above `threshold` are 0.

    `mean` and `std` hold all of them, so that the threshold can still be moved; draws, moments and the mean network
    are of what is left, `pruned()`.
    """

    threshold: float = 3.0

    kind = "sparse"

    def log_alpha(self) -> Tensor:
        """(S, D): -inf where nothing is random."""
        return log_alpha(self.mean, self.std)

    def pruned(self) -> GaussianPosterior:
        """The Gaussian of what is left: mean and std are exactly 0 where a weight went."""
        gone = self.log_alpha() > self.threshold
        mean, std = (part.masked_fill(gone, 0.0) for part in (self.mean, self.std))
        return GaussianPosterior(self.net, self.likelihood, mean, std, self.buffers, self.about)

    def sparsity(self) -> dict[str, float]:
        """The share of zeros in each random parameter, averaged over members."""
        gone = self.net.layout.split((self.log_alpha() > self.threshold)[:, : self.net.layout.size])
        random = self.net.layout.split(self.random[: self.net.layout.size])
        return {name: float(part.float().mean()) for name, part in gone.items() if bool(random[name].any())}

    def vectors(self, n: int, seed: int = 0) -> tuple[Samples, Sequence[int]]:
        return self.pruned().vectors(n, seed)

    def moments(self) -> tuple[Tensor, Tensor]:
        return self.pruned().moments()

    def mean_network(self) -> nn.Module:
        """The network of the means, the weights that went being exactly 0."""
        return self.pruned().mean_network()

    def __repr__(self) -> str:
        made = self.about.get("method", {}).get("name", "posterior")
        random = self.random[: self.net.layout.size]
        left = int((self.log_alpha()[:, : self.net.layout.size][:, random] <= self.threshold).sum())
        total = len(self) * int(random.sum())
        return f"<{made}: {left:,} of {total:,} weights left in {len(self)} network(s), {self.likelihood!r}>"

    def _settings(self) -> dict[str, float]:
        return {"threshold": self.threshold}


def stored(folder: Path, manifest: Mapping[str, Any], net: Net, likelihood: Likelihood) -> SparsePosterior:
    """The posterior a folder holds."""
    held = gaussian.stored(folder, manifest, net, likelihood)
    parts = {field.name: getattr(held, field.name) for field in fields(held)}
    return SparsePosterior(**parts, threshold=float(manifest["threshold"]))
