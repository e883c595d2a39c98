"""The digits: how well they are read, how sure each method is, and what it makes of images that are no digits."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dubito import metrics, plots
from dubito.data import Split, load, toys
from dubito.demo import scores, words
from dubito.demo.problems import PLAIN, Fit
from dubito.demo.scores import SURE, Scores
from dubito.results import Figure, Table
from dubito.studies.base import Settings

DRAWS = 200
SHOWN = 8  # images in a row
_BINS = 10
_FEW = 5  # bins with fewer images say nothing
_ENTROPY = np.linspace(0, np.log(10), 24)


class Reading:
    """Every method's answers for unseen digits and for images that are none."""

    def __init__(self, fits: Mapping[str, Fit], inputs: Any, settings: Settings) -> None:
        self.digits, self.others = load("digits").part("test"), toys.not_digits(seed=settings.seed)
        if settings.quick:
            self.digits, self.others = (Split(part.x[:60], part.y[:60]) for part in (self.digits, self.others))
        self.scores = {name: self._scores(fit, inputs, settings.seed) for name, fit in fits.items()}

    def _scores(self, fit: Fit, inputs: Any, seed: int) -> Scores:
        inside, outside = (
            fit.posterior.predict(inputs(part.x), draws=DRAWS, seed=seed) for part in (self.digits, self.others)
        )
        return Scores(inside, outside, self.digits.y, fit.seconds)

    @property
    def others_than_plain(self) -> dict[str, Scores]:
        """All but the baseline."""
        return {name: found for name, found in self.scores.items() if name != PLAIN}

    # -- tables ------------------------------------------------------------------------------------------------

    def table(self) -> Table:
        """The scores of every method."""
        sure = f"over {SURE:.0%} sure"
        columns = ("method", "networks", "accuracy", "NLL", "ECE", "AUROC entropy", "AUROC BALD", sure, "seconds")
        return Table(
            "What each method knows, and what it knows about itself",
            columns,
            [(name, *found.row) for name, found in self.scores.items()],
            note=f"On {len(self.digits.y)} unseen digits: accuracy, negative log-likelihood in nats and expected "
            f"calibration error, both better when lower. Against {len(self.others.y)} images that are no digits: AUROC, "
            "the chance that such an image is doubted more than a digit (0.5 is a coin, 1 is perfect), and the share of "
            f"them that is taken for some digit with more than {SURE:.0%} probability. BALD is the disagreement between "
            "networks and cannot exist for one. Seconds are for fitting.",
            formats={"accuracy": ".1%", "NLL": ".3f", "ECE": ".3f", "AUROC entropy": ".3f", "AUROC BALD": ".3f",
                     sure: ".1%", "seconds": ".1f"},
        )  # fmt: skip

    def by_kind(self) -> Table:
        """AUROC against each kind of image that is no digit."""
        kinds = {kind: torch.nonzero(self.others.y == i).flatten() for i, kind in enumerate(toys.KINDS)}
        rows = [(name, *(found.auroc("entropy", at) for at in kinds.values())) for name, found in self.scores.items()]
        return Table(
            "AUROC by entropy, against each kind of image that is no digit",
            ("method", *kinds),
            rows,
            note=f"About {len(self.others.y) // len(kinds)} images of each kind. Letters and patchwork are made of "
            "strokes, as digits are; stripes and inverted digits look like nothing in the training data.",
            formats=dict.fromkeys(kinds, ".3f"),
        )

    # -- words -------------------------------------------------------------------------------------------------

    def summary(self, weights: int, trained: int) -> str:
        """What was done, and what came out."""
        base, rest = self.scores[PLAIN], self.others_than_plain
        accuracy = {name: metrics.accuracy(s.inside.probs, s.y) for name, s in self.scores.items()}
        likelihood = {name: scores.by_likelihood(found, base) for name, found in rest.items()}
        return (
            f"{len(self.scores)} methods learn to read {trained:,} handwritten digits of 8 x 8 pixels with the same "
            f"network of {weights:,} weights. They are then asked about {len(self.digits.y)} digits they have not seen, "
            f"and about {len(self.others.y)} images that are no digits at all: {words.listed(toys.KINDS)}.\n\n"
            f"On unseen digits they are right in {words.span(accuracy, '.1%')} of cases. "
            f"{words.compared('the likelihood they give the truth', likelihood, PLAIN, 'higher', 'lower')} "
            f"{self._on_others()}\n\n"
            f"A difference is called clear from {scores.CLEAR:g} standard errors of the paired difference on. One seed, "
            "one small data set: this page shows what doubt is for, not which method wins."
        )

    def _on_others(self) -> str:
        base = self.scores[PLAIN]
        detection = {name: scores.by_detection(found, base) for name, found in self.others_than_plain.items()}
        fooled = {name: found.fooled for name, found in self.scores.items()}
        return (
            f"Shown an image that is no digit, they take it for one with more than {SURE:.0%} probability in "
            f"{words.each(fooled, '.1%')} of cases. "
            f"{words.compared('telling the two apart by entropy', detection, PLAIN, 'better', 'worse')}"
        )

    # -- figures -----------------------------------------------------------------------------------------------

    def reliability(self) -> Figure:
        """Accuracy over confidence."""
        leaning = {name: found.leaning for name, found in self.scores.items()}
        sides = words.listed([f"{words.named(n)} by {abs(v):.3f} too {_side(v)}" for n, v in leaning.items()])
        return plots.panels(
            "reliability",
            "Is it right as often as it says?",
            {name: plots.reliability("curve", name, [self._curve(name, s)]) for name, s in self.scores.items()},
            caption="Of all digits read with 80 % confidence, 80 % should be read correctly: dots on the diagonal. Below "
            "it a method is too sure of itself, above it too modest; larger dots stand for more images, the strip below "
            f"shows where they are, and bins of fewer than {_FEW} are left out. On average, {sides}.",
            columns=len(self.scores),
        )

    def _curve(self, name: str, found: Scores) -> plots.Series:
        curve = metrics.reliability(found.inside.probs, found.y, _BINS)
        kept = curve.count >= min(_FEW, curve.count.max())
        count = np.where(kept, curve.count, 0)
        ece = f"ECE {metrics.ece(found.inside.probs, found.y):.3f}"
        return plots.Series(name, np.where(kept, curve.accuracy, np.nan), curve.confidence, weight=count, note=ece)

    def entropy(self) -> Figure:
        """Histograms of doubt, inside and outside."""
        certain = float(_ENTROPY[1])
        share = {name: float((s.outside.entropy < certain).double().mean()) for name, s in self.scores.items()}
        return plots.panels(
            "entropy",
            "How much it doubts digits, and images that are none",
            {name: self._histogram(found) for name, found in self.scores.items()},
            caption="Entropy is 0 for an answer without any doubt and ln 10 = 2.3 for a blind guess among ten digits. "
            "Digits should pile up on the left and the others lie to the right: the less the two overlap, the better a "
            "threshold on doubt sends the right images to a person. In the leftmost bar, where nothing is doubted, are "
            f"{words.each(share, '.0%', 'of the non-digits for')}.",
        )

    def _histogram(self, found: Scores) -> Figure:
        sides = {"digits": found.inside.entropy, "no digits": found.outside.entropy}
        series = [plots.Series(label, _shares(values)) for label, values in sides.items()]
        return plots.histogram("h", "h", _ENTROPY, series, x_label="entropy (nats)", y_label="share of images")

    def same_images(self) -> Figure:
        """One image of every kind, as each method sees it."""
        at = torch.tensor([int(torch.nonzero(self.others.y == i)[0]) for i in range(len(toys.KINDS))])
        pictures = {name: self._seen(found, at) for name, found in self.scores.items()}
        return plots.panels(
            "no-digits",
            f"The same {len(at)} images, none of them a digit",
            pictures,
            caption="The first image of each kind, not a selection. Above each: the answer and its probability; below: how "
            "often each digit came first among the networks drawn. One network has one vote and cannot disagree with "
            "itself; bars spread over several digits are the sign that nobody knows.",
        )

    def _seen(self, found: Scores, at: Tensor) -> Figure:
        probs = found.outside.probs[at]
        captions = [
            f"{toys.KINDS[k]}\n{int(p.argmax())}, {float(p.max()):.0%}".replace("%", " %")
            for k, p in zip(self.others.y[at].tolist(), probs, strict=True)
        ]
        return plots.images(
            "seen", "seen", self.others.x[at, 0].numpy(), captions, votes=found.outside.votes[at].numpy()
        )

    def most_doubted(self) -> Figure:
        """The unseen digits of highest entropy."""
        wrong = {name: self._wrong_among_doubted(found) for name, found in self.scores.items()}
        return plots.panels(
            "most-doubted",
            "The digits each method doubts most",
            {name: self._doubted(found) for name, found in self.scores.items()},
            caption=f"Of {len(self.digits.y)} unseen digits the {SHOWN} of highest entropy, with the truth, the answer and "
            "the entropy above, and the votes of the networks below. Many are hard for people too, and doubt is where the "
            f"mistakes are: of these {SHOWN}, {words.each(wrong, '.0f', 'misread by')}.",
        )

    def _wrong_among_doubted(self, found: Scores) -> float:
        top = found.inside.entropy.topk(SHOWN).indices
        return float((found.inside.probs[top].argmax(-1) != self.digits.y[top]).sum())

    def _doubted(self, found: Scores) -> Figure:
        doubt, top = found.inside.entropy.topk(SHOWN)
        truth = self.digits.y[top].tolist()
        answers = found.inside.probs[top].argmax(-1).tolist()
        captions = [
            f"{t}, read as {a}\n{d:.2f} nats" for t, a, d in zip(truth, answers, doubt.tolist(), strict=True)
        ]
        votes = found.inside.votes[top].numpy()
        return plots.images("doubted", "d", self.digits.x[top, 0].numpy(), captions, votes=votes, truth=truth)


def _shares(values: Tensor) -> "np.ndarray[Any, Any]":
    return np.histogram(values.numpy(), _ENTROPY)[0] / len(values)


def _side(leaning: float) -> str:
    return "sure" if leaning > 0 else "modest"
