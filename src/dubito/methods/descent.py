"""Training by gradient descent, shared by the methods that look for a mode.

    loss(theta) = -1/B sum_i log p(y_i | f(theta, x_i)) - log p(theta) / N

The network's own dropout is on while it trains and BatchNorm is live.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dubito.methods.base import Info, Method, Weights, info
from dubito.net import Buffers
from dubito.optim import Optimised, OptimState
from dubito.target import Batch, Target
from dubito.tick import Tick


class DescentState(NamedTuple):
    """Weights, optimiser moments and running statistics of each member; bootstrap counts where asked for."""

    theta: Tensor
    optim: OptimState
    buffers: Buffers
    counts: Tensor


@dataclass(frozen=True, kw_only=True)
class Descent(Optimised, Method[DescentState]):
    """Gradient descent on the negative log-posterior per datum."""

    live_norm = True
    drops = True

    def init(self, theta: Tensor, target: Target, tick: Tick) -> DescentState:
        counts = torch.zeros(len(theta), 0)
        return DescentState(theta.clone(), self.optim_init(theta), target.net.buffers(len(theta)), counts)

    def step(self, state: DescentState, batch: Batch, target: Target, tick: Tick) -> tuple[DescentState, Info]:
        weighted = self._reweight(batch, state)
        parts, grad = target.value_and_grad(
            state.theta, weighted, mode="train", buffers=state.buffers, rng=tick.rng.child("train")
        )
        self.descend_(state.theta, grad.div_(-target.n_data), state.optim, tick)
        return state, info(parts.log_lik, parts.log_prior, target)

    def weights(self, state: DescentState) -> Weights:
        return Weights(state.theta, state.buffers)

    def _reweight(self, batch: Batch, state: DescentState) -> Batch:
        """The batch with each member's bootstrap counts as weights, where there are any."""
        if not state.counts.shape[1]:
            return batch
        counts = state.counts[:, batch.rows]
        return batch._replace(weight=counts if batch.weight is None else counts * batch.weight)

    @property
    def depends_on_steps(self) -> bool:
        return self.rates.depends_on_steps
