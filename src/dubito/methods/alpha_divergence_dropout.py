"""Dropout fitted by an alpha-divergence: K masks per datum, joined inside the logarithm (Li & Gal 2017).

    loss = -1/(alpha B) sum_i [ logsumexp_k( alpha log p(y_i | f(theta, mask_ik, x_i)) ) - log K ] - log p(theta) / N

https://arxiv.org/abs/1703.02914. alpha = 0, or K = 1, is MC dropout; alpha = 1 is the likelihood of the averaged
prediction. A larger alpha gives more doubt: it is enough that some of the masks explain a datum.
"""

from dataclasses import dataclass, field

from torch import Tensor

from dubito import running
from dubito.config import check_finite_number
from dubito.methods.base import Info, check_count, info
from dubito.methods.descent import DescentState
from dubito.methods.dropped import Dropped
from dubito.target import Batch, Target
from dubito.tick import Tick


@dataclass(frozen=True)
class AlphaDivergenceDropout(Dropped):
    """Dropout whose masks answer for a datum together, more so the larger `alpha`."""

    alpha: float = 0.5
    draws: int = field(default=10, kw_only=True)  # K, the masks of each datum in each step

    answer = "dropout"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "draws", self.draws, 1)
        check_finite_number(self, "alpha", self.alpha)

    def step(self, state: DescentState, batch: Batch, target: Target, tick: Tick) -> tuple[DescentState, Info]:
        log_lik, grad = self._fit(state, batch, target, tick)
        log_prior, by_prior = target.flat_prior.value_and_grad(state.theta)
        grad = by_prior.div_(-target.n_data).sub_(grad).div_(target.temperature)
        self.descend_(state.theta, grad, state.optim, tick)
        return state, info(log_lik, log_prior, target)

    def _fit(self, state: DescentState, batch: Batch, target: Target, tick: Tick) -> tuple[Tensor, Tensor]:
        """What K masks say together, per datum (S,), and its gradient."""
        members, rng = len(state.theta), tick.rng.child("train")
        masks = target.net.masks(batch.example, members, rng, shared=False, draws=(self.draws,)) or []
        each = running.repeated(state.buffers, self.draws)
        found = target.masked_value_and_grad(state.theta, batch, masks, each, self.alpha)
        running.gather_(state.buffers, each)
        return found
