"""A mixture of diagonal Gaussians over the weights, each with a share of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from dubito.likelihoods import Likelihood
from dubito.net import Net
from dubito.posteriors import files
from dubito.posteriors.gaussian import GaussianPosterior
from dubito.posteriors.storage import Damaged
from dubito.rng import Rng

TENSORS = "mixture.safetensors"


@dataclass(frozen=True, eq=False, repr=False)
class MixturePosterior(GaussianPosterior):
    """sum_k share_k N(mean_k, diag std_k^2) over [net | likelihood]; draw i is a fixed function of (seed, i)."""

    share: Tensor = field(kw_only=True)  # (K,), sums to 1

    kind = "mixture"

    @property
    def shares(self) -> Tensor:
        return self.share

    def components(self, index: Sequence[int], seed: int) -> list[int]:
        """Component of draw i: where a uniform of (seed, i) falls among the cumulated shares."""
        ends = self.share.double().cpu().cumsum(0)[:-1]
        rng = Rng(seed).child("component")
        uniform = [rng.uniform((1,), "which", ends, i) for i in index]
        return torch.searchsorted(ends, torch.cat(uniform), right=True).tolist() if index else []

    def member(self, index: int) -> Self:
        return replace(super().member(index), share=torch.ones_like(self.share[:1]))

    def to(self, device: str | torch.device) -> "MixturePosterior":
        net = self.net.to(device)
        moved = {name: getattr(self, name).to(net.device) for name in ("mean", "std", "share")}
        return replace(self, net=net, **moved)

    def save(self, folder: str | Path) -> None:
        held = {"mean": self.mean, "std": self.std, "share": self.share}
        files.save_tensors(folder, self, TENSORS, held)

    def __repr__(self) -> str:
        count = "one Gaussian" if len(self) == 1 else f"a mixture of {len(self)} Gaussians"
        return f"<Mixture: {count} over {self.net.layout.size:,} weights, {self.likelihood!r}>"


def stored(folder: Path, manifest: Mapping[str, Any], net: Net, likelihood: Likelihood) -> MixturePosterior:
    """The posterior a folder holds."""
    held = files.load_tensors(folder, TENSORS, net, ("mean", "std", "share"))
    mean, std, share = held["mean"], held["std"], held["share"]
    if mean.dim() != 2 or mean.shape != std.shape or share.shape != mean.shape[:1]:
        shapes = ", ".join(f"{n} {tuple(t.shape)}" for n, t in held.items())
        raise Damaged(f"{folder / TENSORS} holds {shapes}, which do not fit together; restore it or distil again")
    made = MixturePosterior(net, likelihood, mean, std, {}, manifest.get("about", {}), share=share)
    if mean.shape[1] != net.layout.size + made.noise_layout.size:
        raise Damaged(
            f"{folder / TENSORS} holds vectors of length {mean.shape[1]}, not those of the network given; give the one "
            "it was made from"
        )
    return made
