"""The posterior of dark knowledge: one network that predicts like all of a teacher's together."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dubito.functions import Functions
from dubito.likelihoods import Likelihood
from dubito.net import Net
from dubito.posteriors import samples
from dubito.posteriors.samples import SamplesPosterior

ALONE = (
    "a student is one network that has learnt its teacher's average, in which the teacher's networks no longer "
    "disagree; distil with distill.Adversarial, or a classifier into a student with head='dirichlet'"
)


@dataclass(frozen=True, repr=False)
class StudentPosterior(SamplesPosterior):
    """A single network; under a Dirichlet likelihood it still tells doubt that data could remove from the other."""

    kind = "student"

    def draw(self, n: int, seed: int = 0) -> Functions:
        functions = super().draw(n, seed)
        functions.alone = ALONE
        return functions

    def to(self, device: str | torch.device) -> "StudentPosterior":
        moved = super().to(device)
        return replace(self, net=moved.net, samples=moved.samples)

    def __repr__(self) -> str:
        return f"<DarkKnowledge: a student of {self.net.layout.size:,} weights, {self.likelihood!r}>"


def stored(folder: Path, manifest: Mapping[str, Any], net: Net, likelihood: Likelihood) -> StudentPosterior:
    """The posterior a folder holds."""
    held = samples.stored(folder, manifest, net, likelihood)
    return StudentPosterior(held.net, held.likelihood, held.samples, held.form, held.about)
