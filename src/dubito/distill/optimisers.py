"""Optimisers on named tensors, in place and with their counter on the device: the step can be captured and replayed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim.adam import adam

from dubito.config import check_positive, is_number
from dubito.optim import EPSILON


class Moments(NamedTuple):
    """Running first and second moments of each gradient, and how many updates were made, 0-d."""

    first: dict[str, Tensor]
    second: dict[str, Tensor]
    updates: Tensor


@dataclass(frozen=True)
class Optimiser:
    """Adam (Kingma and Ba, 2015), or RMSProp without momentum (Tieleman and Hinton, 2012)."""

    kind: Literal["adam", "rmsprop"] = "adam"
    learning_rate: float = 1e-4
    first_decay: float = 0.9
    second_decay: float = 0.999

    def __post_init__(self) -> None:
        if self.kind not in ("adam", "rmsprop"):
            raise ValueError(f"unknown optimiser {self.kind!r}; use 'adam' or 'rmsprop'")
        check_positive(self, "learning_rate", self.learning_rate)
        decays = (self.first_decay, self.second_decay)
        if not all(is_number(decay) and 0 <= decay < 1 for decay in decays):
            raise ValueError(f"decay rates must lie in [0, 1), got {decays[0]!r} and {decays[1]!r}")

    def init(self, parameters: Mapping[str, Tensor]) -> Moments:
        """Zero moments."""
        zeros = [{n: torch.zeros_like(p) for n, p in parameters.items()} for _ in range(2)]
        device = next(iter(parameters.values())).device
        return Moments(zeros[0], zeros[1], torch.zeros((), device=device))

    def descend_(
        self, parameters: Mapping[str, Tensor], grads: Sequence[Tensor], moments: Moments, rate: Tensor
    ) -> None:
        """One update along -gradient, with the learning rate times `rate`, 0-d."""
        step_size = self.learning_rate * rate
        held = [p.detach() for p in parameters.values()]
        first, second = list(moments.first.values()), list(moments.second.values())
        if self.kind == "rmsprop":
            for p, g, v in zip(held, grads, second, strict=True):
                v.mul_(self.second_decay).addcmul_(g, g, value=1 - self.second_decay)
                p.sub_(g / v.sqrt().add_(EPSILON) * step_size)
        elif moments.updates.device.type == "cpu":
            self._fused_(held, grads, first, second, moments.updates, step_size)
        else:
            self._adam_(held, grads, first, second, moments.updates, step_size)
        moments.updates.add_(1)

    def _adam_(
        self,
        held: Sequence[Tensor],
        grads: Sequence[Tensor],
        first: Sequence[Tensor],
        second: Sequence[Tensor],
        updates: Tensor,
        step_size: Tensor,
    ) -> None:
        """Adam in plain operations, which a compiler can fuse."""
        bias1, bias2 = (1 - torch.pow(decay, updates + 1) for decay in (self.first_decay, self.second_decay))
        for p, g, m, v in zip(held, grads, first, second, strict=True):
            m.lerp_(g, 1 - self.first_decay)
            v.mul_(self.second_decay).addcmul_(g, g, value=1 - self.second_decay)
            p.sub_(m / (v / bias2).sqrt().add_(EPSILON) * (step_size / bias1))

    def _fused_(
        self,
        held: list[Tensor],
        grads: Sequence[Tensor],
        first: list[Tensor],
        second: list[Tensor],
        updates: Tensor,
        step_size: Tensor,
    ) -> None:
        """The same in one pass over memory, for the CPU."""
        counts = [updates.clone() for _ in held]  # the kernel counts this update in each
        adam(
            held, list(grads), first, second, [], counts, fused=True, amsgrad=False, beta1=self.first_decay,
            beta2=self.second_decay, lr=step_size, weight_decay=0.0, eps=EPSILON, maximize=False,
        )  # fmt: skip
