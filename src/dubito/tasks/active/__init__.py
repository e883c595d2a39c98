"""What to label next."""

from dubito.tasks.active.acquire import Acquisition, batch_bald, stochastic_top
from dubito.tasks.active.oracle import Known, Oracle, Person, Waiting
from dubito.tasks.active.task import Active, labels_needed

__all__ = [
    "Acquisition",
    "Active",
    "Known",
    "Oracle",
    "Person",
    "Waiting",
    "batch_bald",
    "labels_needed",
    "stochastic_top",
]
