"""Inputs moved a little so that a posterior errs, and whether its doubt notices."""

from dubito.tasks.attack.steps import FGSM, PGD, Attack, TargetedFGSM
from dubito.tasks.attack.task import Robustness, Trajectory
from dubito.tasks.attack.victim import Victim

__all__ = ["FGSM", "PGD", "Attack", "Robustness", "TargetedFGSM", "Trajectory", "Victim"]
