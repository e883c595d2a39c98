"""What is measured on the digits, and which differences are more than chance."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dubito import metrics
from dubito.prediction import Prediction, Undefined

Verdict = Literal["better", "alike", "worse"]
Floats = NDArray[np.float64]

SURE = 0.9  # a probability from which one would act
CLEAR = 2.0  # standard errors from which a difference is called one


@dataclass(frozen=True, eq=False)
class Scores:
    """One method's answers for digits and for inputs that are none."""

    inside: Prediction
    outside: Prediction
    y: Tensor
    seconds: float

    @property
    def row(self) -> list[float | int | None]:
        """Networks averaged, accuracy, NLL, ECE, both AUROCs, share of non-digits it is sure of, seconds."""
        found = metrics.evaluate(self.inside, self.y)
        auroc = [self.auroc(measure) for measure in ("entropy", "bald")]
        return [self.inside.n_draws, found["accuracy"], found["nll"], found["ece"], *auroc, self.fooled, self.seconds]

    @property
    def sure(self) -> Tensor:
        """(N,): whether an input that is no digit is taken for one with more than `SURE` probability."""
        return self.outside.probs.amax(-1) > SURE

    @property
    def fooled(self) -> float:
        """The share of them."""
        return float(self.sure.double().mean())

    def auroc(self, measure: Literal["entropy", "bald"]) -> float | None:
        """How well a doubt tells digits from others; None where it cannot exist."""
        try:
            return metrics.auroc(getattr(self.inside, measure), getattr(self.outside, measure))
        except Undefined:
            return None

    @property
    def leaning(self) -> float:
        """Mean confidence minus accuracy on the digits: positive where it is too sure."""
        hit = self.inside.probs.argmax(-1) == self.y
        return float(self.inside.probs.amax(-1).double().mean() - hit.double().mean())


def by_likelihood(one: Scores, base: Scores) -> Verdict:
    """Whether unseen digits are more probable under `one` than under `base`, image by image."""
    gain = (one.inside.log_prob(one.y) - base.inside.log_prob(base.y)).double().numpy()
    return _verdict(gain.mean(), gain.var(ddof=1) / len(gain))


def by_detection(one: Scores, base: Scores) -> Verdict:
    """Whether entropy detects non-digits better under `one`: two AUROCs on the same inputs (DeLong et al., 1988)."""
    ours, theirs = (_wins(s.inside.entropy, s.outside.entropy) for s in (one, base))
    gains = [a - b for a, b in zip(ours, theirs, strict=True)]
    return _verdict(gains[0].mean(), sum(gain.var(ddof=1) / len(gain) for gain in gains))


def _wins(inside: Tensor, outside: Tensor) -> tuple[Floats, Floats]:
    """For each input the share of inputs of the other side on whose right side it is; both average to the AUROC."""
    beats = ((outside[:, None] > inside).double() + 0.5 * (outside[:, None] == inside)).numpy()
    return beats.mean(1), beats.mean(0)


def _verdict(gain: float, variance: float) -> Verdict:
    if abs(gain) <= CLEAR * np.sqrt(variance):
        return "alike"
    return "better" if gain > 0 else "worse"
