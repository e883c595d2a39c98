"""MC dropout: a network trained with dropout, whose masks at prediction time are draws from a posterior.

The masks of training make `loss` a one-draw estimate of the variational bound of Gal & Ghahramani (2016),
https://arxiv.org/abs/1506.02142, with the prior over the weights as its complexity term.
"""

from dataclasses import dataclass

from dubito.methods.dropped import Dropped


@dataclass(frozen=True, kw_only=True)
class MCDropout(Dropped):
    """Dropout at prediction time; `rate` replaces the net's own rates, or puts dropout where it has none."""

    answer = "dropout"
