"""Maximum a posteriori: one network, or several side by side, at a mode of the log-posterior."""

from dataclasses import dataclass
from typing import ClassVar

from dubito.methods.base import Answer
from dubito.methods.descent import Descent, DescentState
from dubito.posteriors.base import Posterior
from dubito.posteriors.samples import Form, SamplesPosterior
from dubito.target import Target


@dataclass(frozen=True, kw_only=True)
class MAP(Descent):
    """A point estimate: argmax of log p(theta | D). Several members make an ensemble."""

    answer: ClassVar[Answer] = "point"

    def posterior(self, state: DescentState, target: Target) -> Posterior:
        form: Form = "point" if len(state.theta) == 1 else "ensemble"
        return SamplesPosterior.of(target.net, target.likelihood, state.theta, state.buffers, form)
