"""What is measured on the digits, and which differences are more than chance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
    def fooled(self) -> float:
        """The share of inputs that are no digits which it calls one with more than `SURE` probability."""
        return float((self.outside.probs.amax(-1) > SURE).double().mean())

    def auroc(self, measure: Literal["entropy", "bald"], at: Tensor | None = None) -> float | None:
        """How well a doubt tells digits from others (or from some of them); None where it cannot exist."""
        try:
            inside, outside = (_doubt(p, measure) for p in (self.inside, self.outside))
        except Undefined:
            return None
        return metrics.auroc(inside, outside if at is None else outside[at.numpy()])

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
    ours, theirs = (_wins(_doubt(s.inside, "entropy"), _doubt(s.outside, "entropy")) for s in (one, base))
    gains = [a - b for a, b in zip(ours, theirs, strict=True)]
    return _verdict(gains[0].mean(), sum(gain.var(ddof=1) / len(gain) for gain in gains))


def sort(verdicts: Mapping[str, Verdict]) -> dict[Verdict, list[str]]:
    """The names under each verdict."""
    kinds: Sequence[Verdict] = ("better", "alike", "worse")
    return {kind: [name for name, verdict in verdicts.items() if verdict == kind] for kind in kinds}


def _wins(inside: Floats, outside: Floats) -> tuple[Floats, Floats]:
    """For each input the share of inputs of the other side on whose right side it is; both average to the AUROC."""
    beats = (outside[:, None] > inside) + 0.5 * (outside[:, None] == inside)
    return beats.mean(1), beats.mean(0)


def _verdict(gain: float, variance: float) -> Verdict:
    if abs(gain) <= CLEAR * np.sqrt(variance):
        return "alike"
    return "better" if gain > 0 else "worse"


def _doubt(prediction: Prediction, measure: str) -> Floats:
    values: Any = getattr(prediction, measure)
    return np.asarray(values.double().numpy())
