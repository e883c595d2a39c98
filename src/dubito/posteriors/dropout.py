"""The posterior of MC dropout: one network, or a few, and all their masks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dubito.config import is_number
from dubito.functions import Functions, MaskedFunctions, Masks, WeightFunctions
from dubito.layout import Layout
from dubito.likelihoods import Likelihood
from dubito.net import Net
from dubito.posteriors import files
from dubito.posteriors.base import Posterior
from dubito.posteriors.storage import Damaged, MemorySamples, Samples, StoredSamples
from dubito.prediction import Undefined
from dubito.rng import Rng


@dataclass(frozen=True, repr=False)
class DropoutPosterior(Posterior):
    """Draw i is the network i mod members under mask i, a fixed function of (seed, i)."""

    net: Net
    likelihood: Likelihood
    samples: Samples
    about: Mapping[str, Any] = field(default_factory=dict)
    rates: Tensor | None = None  # (members, sites), where they were learned: else the network's own

    kind = "dropout"

    @classmethod
    def of(
        cls,
        net: Net,
        likelihood: Likelihood,
        theta: Tensor,
        buffers: Mapping[str, Tensor],
        rates: Tensor | None = None,
    ) -> "DropoutPosterior":
        """A posterior that holds copies of the given vectors (S, D)."""
        copies = {n: b.detach().clone().unsqueeze(0) for n, b in buffers.items()}
        return cls(net, likelihood, MemorySamples(theta.detach().clone().unsqueeze(0), copies), rates=rates)

    def draw(self, n: int, seed: int = 0) -> Functions:
        noise = Layout.of(self.likelihood.parameters())
        index = [i % len(self) for i in range(n)]
        masks = Masks(Rng(seed).child("masks"), rates=None if self.rates is None else self.rates[index])
        if len(self) > 1:
            return WeightFunctions(self.net, noise, self.samples, index, masks)
        device, (theta, buffers) = self.net.device, self.samples.get([0])
        held = {name: buffer[0].to(device) for name, buffer in buffers.items()}
        return MaskedFunctions(self.net, noise, theta[0].to(device), held, masks, n)

    def member(self, index: int) -> "DropoutPosterior":
        """One of several networks, by itself."""
        rates = None if self.rates is None else self.rates[index : index + 1]
        return replace(self, samples=self.samples.chain(index), rates=rates)

    def mean_network(self) -> nn.Module:
        """The weight-scaling rule: the network with dropout off."""
        if len(self) > 1:
            raise Undefined(
                "several dropout networks have no single network that stands for them; use predict() instead"
            )
        theta, buffers = self.samples.get([0])
        return self.net.network(theta[0, : self.net.layout.size], {n: b[0] for n, b in buffers.items()})

    def to(self, device: str | torch.device) -> "DropoutPosterior":
        return replace(self, net=self.net.to(device))

    def save(self, folder: str | Path) -> None:
        learned = {} if self.rates is None else {"rates": self.rates.tolist()}
        files.save_samples(folder, self, {"dropout": self.net.dropout, **learned})

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        rate = "its own rates" if self.net.dropout is None else f"rate {self.net.dropout}"
        if self.rates is not None:
            rate = f"learned rates {', '.join(f'{r:.2g}' for r in self.rates.mean(0).tolist())}"
        made = self.about.get("method", {}).get("name", "dropout")
        return f"<{made}: {len(self)} networks of {self.net.layout.size:,} weights, {rate}, {self.likelihood!r}>"


def stored(folder: Path, manifest: Mapping[str, Any], net: Net, likelihood: Likelihood) -> DropoutPosterior:
    """The posterior a folder holds."""
    rate = manifest.get("dropout")
    if rate is not None and not (is_number(rate) and 0 < rate < 1):
        raise Damaged(f"{folder / files.MANIFEST} says that dropout is {rate!r}; restore it or fit again")
    prepared = net.with_dropout(rate)
    samples = StoredSamples(folder, manifest, net.layout.size + Layout.of(likelihood.parameters()).size)
    rates = torch.tensor(manifest["rates"], dtype=torch.float64) if "rates" in manifest else None
    if rates is not None and not (rates.dim() == 2 and len(rates) == len(samples) and _are_rates(rates)):
        raise Damaged(f"{folder / files.MANIFEST} does not hold a rate of each dropout; restore it or fit again")
    return DropoutPosterior(prepared, likelihood, samples, manifest.get("about", {}), rates)


def _are_rates(values: Tensor) -> bool:
    return bool(((values >= 0) & (values < 1)).all())
