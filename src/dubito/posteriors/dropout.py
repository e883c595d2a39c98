"""The posterior of MC dropout: one network, or a few, and all their masks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dubito.functions import Functions, WeightFunctions
from dubito.layout import Layout
from dubito.likelihoods import Likelihood
from dubito.net import Net
from dubito.posteriors import files
from dubito.posteriors.base import Posterior
from dubito.posteriors.storage import MemorySamples, Samples, StoredSamples
from dubito.prediction import Undefined
from dubito.rng import Rng


@dataclass(frozen=True, repr=False)
class DropoutPosterior(Posterior):
    """Draw i is the network i mod members under mask i, a fixed function of (seed, i)."""

    net: Net
    likelihood: Likelihood
    samples: Samples
    about: Mapping[str, Any] = field(default_factory=dict)

    kind = "dropout"

    @classmethod
    def of(cls, net: Net, likelihood: Likelihood, theta: Tensor, buffers: Mapping[str, Tensor]) -> "DropoutPosterior":
        """A posterior that holds copies of the given vectors (S, D)."""
        copies = {n: b.detach().clone().unsqueeze(0) for n, b in buffers.items()}
        return cls(net, likelihood, MemorySamples(theta.detach().clone().unsqueeze(0), copies))

    def draw(self, n: int, seed: int = 0) -> Functions:
        noise = Layout.of(self.likelihood.parameters())
        index = [i % len(self) for i in range(n)]
        return WeightFunctions(self.net, noise, self.samples, index, Rng(seed).child("masks"))

    def mean_network(self) -> nn.Module:
        """The weight-scaling rule: the network with dropout off."""
        if len(self) > 1:
            raise Undefined(
                "several dropout networks have no single network that stands for them; use predict() instead"
            )
        theta, buffers = self.samples.get([0])
        return self.net.network(theta[0, : self.net.layout.size], {n: b[0] for n, b in buffers.items()})

    def to(self, device: str | torch.device) -> "DropoutPosterior":
        return DropoutPosterior(self.net.to(device), self.likelihood, self.samples, self.about)

    def save(self, folder: str | Path) -> None:
        files.save_samples(folder, self, {"dropout": self.net.dropout})

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        rate = "its own rates" if self.net.dropout is None else f"rate {self.net.dropout}"
        made = self.about.get("method", {}).get("name", "dropout")
        return f"<{made}: {len(self)} networks of {self.net.layout.size:,} weights, {rate}, {self.likelihood!r}>"


def stored(folder: Path, manifest: Mapping[str, Any], net: Net, likelihood: Likelihood) -> DropoutPosterior:
    """The posterior a folder holds."""
    prepared = net.with_dropout(manifest.get("dropout"))
    size = net.layout.size + Layout.of(likelihood.parameters()).size
    return DropoutPosterior(prepared, likelihood, StoredSamples(folder, manifest, size), manifest.get("about", {}))
