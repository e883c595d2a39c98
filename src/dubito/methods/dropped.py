"""Training under dropout masks, shared by the methods whose draws are masks."""

from dataclasses import dataclass

from dubito.config import is_number
from dubito.inputs import Inputs
from dubito.methods.descent import Descent, DescentState
from dubito.net import Net
from dubito.posteriors.base import Posterior
from dubito.posteriors.dropout import DropoutPosterior
from dubito.target import Target

DEFAULT_RATE = 0.1  # for a network without dropout of its own


@dataclass(frozen=True, kw_only=True)
class Dropped(Descent):
    """Dropout in training and at prediction; `rate` replaces the net's own rates, or puts dropout where it has none."""

    rate: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate is not None and not (is_number(self.rate) and 0 < self.rate < 1):
            raise ValueError(f"{type(self).__name__}: rate must lie between 0 and 1, got {self.rate!r}")

    def prepare(self, net: Net, x: Inputs) -> Net:
        if fused := net.fused_dropout(x):
            raise ValueError(
                f"dropout inside {fused[0]!r} is part of a fused call that masks cannot reach; set its "
                "dropout to 0 and put nn.Dropout after it"
            )
        if net.draws(x):
            raise ValueError(
                "forward() draws random numbers that masks cannot reach; draw them in nn.Dropout, or use DeepEnsemble"
            )
        rate = self.rate if self.rate is not None or net.sites(x) else DEFAULT_RATE
        prepared = net if rate is None else net.with_dropout(rate)
        if not prepared.sites(x):
            raise ValueError(
                f"{type(self).__name__} found nowhere to drop: the network has one layer and no dropout; add "
                "nn.Dropout to it"
            )
        return prepared

    def posterior(self, state: DescentState, target: Target) -> Posterior:
        return DropoutPosterior.of(target.net, target.likelihood, state.theta, state.buffers)
