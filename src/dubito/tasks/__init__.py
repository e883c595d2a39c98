"""What doubt is for: tasks that take any posterior, or several side by side, and return a `Result`."""

from dubito.tasks import bandit
from dubito.tasks.active import Active, Known, Oracle, Person, Waiting
from dubito.tasks.attack import FGSM, PGD, Attack, Robustness, TargetedFGSM, Trajectory
from dubito.tasks.base import SCORES, Data, Loop, Refit, Score, Task, doubt
from dubito.tasks.ood import OOD
from dubito.tasks.selective import Selective

__all__ = [
    "FGSM",
    "OOD",
    "PGD",
    "SCORES",
    "Active",
    "Attack",
    "Data",
    "Known",
    "Loop",
    "Oracle",
    "Person",
    "Refit",
    "Robustness",
    "Score",
    "Selective",
    "TargetedFGSM",
    "Task",
    "Trajectory",
    "Waiting",
    "bandit",
    "doubt",
]
