"""Posteriors made of stored networks: a point, an ensemble, or the samples of Markov chains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor, nn

from dubito.layout import Layout
from dubito.likelihoods import Likelihood
from dubito.net import Net
from dubito.posteriors import files
from dubito.posteriors.storage import MemorySamples, Samples, StoredSamples
from dubito.posteriors.weights import WeightPosterior
from dubito.prediction import Undefined
from dubito.rng import choose

if TYPE_CHECKING:
    from dubito.diagnostics import Diagnostics

Form = Literal["point", "ensemble", "chains"]
COORDINATES = 1000  # weights whose chains are diagnosed


@dataclass(frozen=True, repr=False)
class SamplesPosterior(WeightPosterior):
    """Weight vectors [net | likelihood] with equal weight."""

    net: Net
    likelihood: Likelihood
    samples: Samples
    form: Form = "chains"
    about: Mapping[str, Any] = field(default_factory=dict)

    kind = "samples"

    @classmethod
    def of(
        cls, net: Net, likelihood: Likelihood, theta: Tensor, buffers: Mapping[str, Tensor], form: Form
    ) -> "SamplesPosterior":
        """A posterior that holds copies of the given vectors (S, D)."""
        copies = {n: b.detach().clone().unsqueeze(0) for n, b in buffers.items()}
        return cls(net, likelihood, MemorySamples(theta.detach().clone().unsqueeze(0), copies), form)

    def vectors(self, n: int, seed: int = 0) -> tuple[Samples, Sequence[int]]:
        return self.samples, choose(len(self.samples), n, seed)

    def moments(self) -> tuple[Tensor, Tensor]:
        return moments(self.samples)

    def member(self, index: int) -> Self:
        """One chain of several, or one network of an ensemble, left where it is."""
        samples = self.samples.chain(index)
        form: Form = "point" if self.form == "ensemble" and len(samples) == 1 else self.form
        return replace(self, samples=samples, form=form)

    def thinned(self, every: int) -> Self:
        """One sample in so many of each chain: those that a sampler with so many times its `thin` would have kept."""
        if not 1 <= every <= self.samples.rows:
            raise ValueError(f"every is {every}, of {self.samples.rows} samples a chain; give a number from 1 to that")
        return replace(self, samples=self.samples.part(rows=slice(every - 1, None, every)))

    def mean_network(self) -> nn.Module:
        if len(self) > 1 and (self.form == "ensemble" or self.samples.chains > 1):
            what = "an ensemble" if self.form == "ensemble" else "several chains"
            raise Undefined(f"the average weights of {what} are no network that fits the data; use predict() instead")
        mean, _ = self.moments()
        _, buffers = self.samples.get([len(self) - 1])
        return self.net.network(mean[: self.net.layout.size], {n: b[0] for n, b in buffers.items()})

    def diagnose(self, x: Any = None) -> "Diagnostics":
        if self.form != "chains":
            what = "an ensemble" if self.form == "ensemble" else "a point"
            raise Undefined(f"{what} has no chain to diagnose; R-hat and ESS belong to samplers")
        return diagnosed(self, self.samples, x)

    def to(self, device: str | torch.device) -> "SamplesPosterior":
        net, samples = self.net.to(device), self.samples
        if isinstance(samples, MemorySamples):
            buffers = {n: b.to(net.device) for n, b in samples.buffers.items()}
            samples = MemorySamples(samples.theta.to(net.device), buffers)
        return SamplesPosterior(net, self.likelihood, samples, self.form, self.about)

    def save(self, folder: str | Path) -> None:
        files.save_samples(folder, self, {"form": self.form})

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        made = self.about.get("method", {}).get("name", "posterior")
        count = (
            f"{len(self)} networks" if self.form != "chains" else f"{self.samples.chains} x {self.samples.rows} samples"
        )
        return f"<{made}: {count} of {self.net.layout.size:,} weights, {self.likelihood!r}>"


def moments(samples: Samples) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over all samples, in double precision, a few at a time."""
    first = samples.get([0])[0][0]
    total = square = torch.zeros(())
    for part in samples.pieces():
        theta = part.double() - first  # centring on the first keeps the variance free of cancellation
        total, square = total + theta.sum(0), square + theta.square_().sum(0)
    n = len(samples)
    mean = total / n
    var = ((square - n * mean.square()) / max(1, n - 1)).clamp_min(0)
    return (first.double() + mean).to(first.dtype), var.sqrt().to(first.dtype)


def diagnosed(posterior: WeightPosterior, samples: Samples, x: Any) -> "Diagnostics":
    """R-hat and ESS of some weights over chains of samples and, where x is given, of predictions by all of them."""
    from dubito import diagnostics

    columns = diagnostics.choose(posterior.net.layout.size, COORDINATES).tolist()
    names = coordinate_names(posterior.net.layout, columns)
    weights = diagnostics.summarise(samples.coordinates(columns).cpu().numpy(), names)
    predicted = None
    if x is not None:
        draws = posterior.predict(x, draws=len(samples), keep_draws=True).draws
        paths = draws.unflatten(0, (samples.rows, samples.chains)).transpose(0, 1).flatten(2)
        predicted = diagnostics.summarise(paths.cpu().numpy())
    return diagnostics.Diagnostics(weights, predicted)


def coordinate_names(layout: Layout, columns: Sequence[int]) -> list[str]:
    """`name[i]` of some coordinates of theta."""
    ends = [(layout.spans[n].start, layout.spans[n].stop, n) for n in layout.names]
    return [next(f"{n}[{c - a}]" for a, b, n in ends if a <= c < b) for c in columns]


def stored(folder: Path, manifest: Mapping[str, Any], net: Net, likelihood: Likelihood) -> SamplesPosterior:
    """The posterior a folder holds, its samples left on disk."""
    about = manifest.get("about", {})
    size = net.layout.size + Layout.of(likelihood.parameters()).size
    return SamplesPosterior(net, likelihood, StoredSamples(folder, manifest, size), manifest["form"], about)
