"""Smaller posteriors from posteriors: a mixture, a generator of networks, or a student; posterior in, posterior out."""

from dubito.distill.adversarial import adversarial
from dubito.distill.game import Adversarial
from dubito.distill.mixture import Mixture, mixture
from dubito.distill.optimisers import Optimiser

__all__ = ["Adversarial", "Mixture", "Optimiser", "adversarial", "mixture"]
