"""Inputs moved a little so that a posterior errs, and whether its doubt notices."""

from dubito.tasks.attack.steps import FGSM, PGD, Attack, TargetedFGSM
from dubito.tasks.attack.task import Fared, Robustness, Trajectory, fared
from dubito.tasks.attack.victim import Victim

__all__ = ["FGSM", "PGD", "Attack", "Fared", "Robustness", "TargetedFGSM", "Trajectory", "Victim", "fared"]
