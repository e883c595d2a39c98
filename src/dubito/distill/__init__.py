"""Smaller posteriors from posteriors: a mixture, a generator of networks, or a student; posterior in, posterior out."""

from dubito.distill.adversarial import adversarial
from dubito.distill.dark_knowledge import dark_knowledge
from dubito.distill.game import Adversarial
from dubito.distill.mixture import Mixture, mixture
from dubito.distill.optimisers import Optimiser
from dubito.distill.student import DarkKnowledge

__all__ = ["Adversarial", "DarkKnowledge", "Mixture", "Optimiser", "adversarial", "dark_knowledge", "mixture"]
