"""The digits: how well they are read, how sure each method is, and what it makes of images that are no digits."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from dubito import metrics, plots
from dubito.data import Split, load, toys
from dubito.demo import scores, words
from dubito.demo.problems import PLAIN, Fit
from dubito.demo.scores import SURE, Scores, Verdict
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

    # -- in numbers and words ----------------------------------------------------------------------------------

    def table(self) -> Table:
        """The scores of every method."""
        columns = ("method", "networks", "accuracy", "NLL", "ECE", "AUROC entropy", "AUROC BALD", "fooled", "seconds")
        return Table(
            "What each method knows, and what it knows about itself",
            columns,
            [(name, *found.row) for name, found in self.scores.items()],
            note=f"On {len(self.digits.y)} unseen digits: accuracy, negative log-likelihood in nats and expected "
            f"calibration error, these two the lower the better. Against {len(self.others.y)} images that are no "
            "digits: AUROC, the chance that such an image is doubted more than a digit (0.5 is a coin, 1 perfect), "
            f"and how many of them fooled the method: taken for some digit with more than {SURE:.0%} probability. "
            "BALD is the disagreement between networks and cannot exist for one. Networks are those averaged over; "
            "seconds are for fitting.",
            formats={"accuracy": ".1%", "NLL": ".3f", "ECE": ".3f", "AUROC entropy": ".3f", "AUROC BALD": ".3f",
                     "fooled": ".1%", "seconds": ".1f"},
        )  # fmt: skip

    def summary(self, weights: int, trained: int) -> str:
        """What was done, and what came out."""
        accuracy = {name: metrics.accuracy(s.inside.probs, s.y) for name, s in self.scores.items()}
        likelihood, detection = (self._verdicts(by) for by in (scores.by_likelihood, scores.by_detection))
        fooled = words.listed([f"{words.named(n)} in {s.fooled:.1%}" for n, s in self.scores.items()])
        return (
            f"Each method below learns to read {trained:,} handwritten digits of 8 × 8 pixels with the same network "
            f"of {weights:,} weights. It is then asked about {len(self.digits.y)} digits it has not seen, and about "
            f"{len(self.others.y)} images that are no digits at all: {words.listed(toys.KINDS)}. A network has to "
            "answer one of ten digits either way; the question is whether it also says how little that answer is "
            "worth.\n\n"
            f"Unseen digits are read correctly in {words.span(accuracy, '.1%')} of cases. "
            f"{words.compared('The likelihood of the true answers', likelihood, PLAIN, 'higher', 'lower')}\n\n"
            f"An image that is no digit is taken for one with more than {SURE:.0%} probability by {fooled} of cases. "
            f"{words.compared('Telling such images from digits by entropy', detection, PLAIN, 'better', 'worse')}\n\n"
            f"A difference is called clear from {scores.CLEAR:g} standard errors of the paired difference on. One "
            "seed and one small data set: the page shows what doubt is good for, not which method wins."
        )

    def _verdicts(self, by: Callable[[Scores, Scores], Verdict]) -> dict[str, Verdict]:
        """Everybody against the plain net."""
        return {name: by(found, self.scores[PLAIN]) for name, found in self.scores.items() if name != PLAIN}

    # -- in pictures -------------------------------------------------------------------------------------------

    def fooled(self) -> Figure:
        """How often each method is sure of an image that is no digit, by kind."""
        kinds = {kind: self.others.y == i for i, kind in enumerate(toys.KINDS)}
        shares = {n: [float(s.sure[at].double().mean()) for at in kinds.values()] for n, s in self.scores.items()}
        order = np.argsort(-np.mean(list(shares.values()), axis=0), kind="stable")
        return plots.bars(
            "fooled",
            "How often it is sure of an image that is no digit",
            toys.KINDS,
            [plots.Series(name, share) for name, share in shares.items()],
            y_label="share of images",
            caption=f"The share of images that are taken for some digit with more than {SURE:.0%} probability; a "
            "program that trusts such answers would act on every one of them. The lower the bar the better, and no "
            f"bar is best. It happens most often with {toys.KINDS[order[0]]}, then with {toys.KINDS[order[1]]}; there "
            f"are about {len(self.others.y) // len(kinds)} images of each kind.",
        )

    def entropy(self) -> Figure:
        """Histograms of doubt, inside and outside."""
        share = {name: float((s.outside.entropy < _ENTROPY[1]).double().mean()) for name, s in self.scores.items()}
        return plots.panels(
            "entropy",
            "How much it doubts digits, and images that are none",
            {name: self._histogram(found) for name, found in self.scores.items()},
            caption="Entropy is 0 for an answer without any doubt and ln 10 = 2.3 for a blind guess among ten. "
            "Digits should pile up on the left and the other images lie to the right: the less the two overlap, the "
            "better a threshold on doubt decides which answers a person should check. Of the images that are no "
            f"digits the leftmost bar, no doubt at all, holds {words.each(share, '.0%')}.",
            columns=len(self.scores),
        )

    def _histogram(self, found: Scores) -> Figure:
        sides = {"digits": found.inside.entropy, "no digits": found.outside.entropy}
        series = [plots.Series(label, _shares(values)) for label, values in sides.items()]
        return plots.histogram("h", "h", _ENTROPY, series, x_label="entropy (nats)", y_label="share of images")

    def same_images(self) -> Figure:
        """A few images that are no digits, as each method sees them."""
        kinds = [toys.KINDS[k] for k in self.others.y[:SHOWN].tolist()]
        return plots.ballots(
            "no-digits",
            "What each method sees in images that are no digits",
            self.others.x[:SHOWN, 0].numpy(),
            kinds,
            [_ballot(name, found) for name, found in self.scores.items()],
            caption=f"The first {SHOWN} images, not a selection. Under each, for every method: its answer with the "
            "probability, and how often each digit came first among the networks drawn. One network has one vote and "
            "cannot disagree with itself; votes spread over many digits are the sign that nobody knows.",
        )

    def reliability(self) -> Figure:
        """Accuracy over confidence."""
        leaning = {name: found.leaning for name, found in self.scores.items()}
        return plots.panels(
            "reliability",
            "Is it right as often as it says?",
            {
                f"{name}, ECE {metrics.ece(s.inside.probs, s.y):.3f}": plots.reliability("r", name, [_curve(name, s)])
                for name, s in self.scores.items()
            },
            caption="Of all digits read with 80% confidence, 80% should be read correctly: dots on the diagonal. "
            "Below it a method is too sure of itself, above it too modest. Larger dots stand for more images, the "
            f"strip shows where they are, and bins of fewer than {_FEW} are left out. Mean confidence minus accuracy "
            f"is {words.each(leaning, '+.3f')}.",
            columns=len(self.scores),
        )

    def most_doubted(self) -> Figure:
        """The unseen digits of highest entropy."""
        wrong = {name: float(self._misread(found)[:SHOWN].sum()) for name, found in self.scores.items()}
        total = {name: float(self._misread(found).sum()) for name, found in self.scores.items()}
        share = [f"{wrong[n]:.0f} of {total[n]:.0f} for {words.named(n)}" for n in wrong]
        return plots.panels(
            "most-doubted",
            "The digits each method doubts most",
            {name: self._doubted(found) for name, found in self.scores.items()},
            caption=f"Of {len(self.digits.y)} unseen digits the {SHOWN} of highest entropy: truth, answer and entropy "
            "above, the votes of the networks below. Would you have doubted them too? Doubt is useful where it finds "
            f"mistakes: of all digits misread, these {SHOWN} hold {words.listed(share)}.",
        )

    def _misread(self, found: Scores) -> Tensor:
        """Whether each digit is misread, the most doubted first."""
        order = found.inside.entropy.argsort(descending=True)
        return found.inside.probs[order].argmax(-1) != self.digits.y[order]

    def _doubted(self, found: Scores) -> Figure:
        doubt, top = found.inside.entropy.topk(SHOWN)
        truth, answers = self.digits.y[top].tolist(), found.inside.probs[top].argmax(-1).tolist()
        captions = [f"{t}, read as {a}\n{d:.2f} nats" for t, a, d in zip(truth, answers, doubt.tolist(), strict=True)]
        votes = found.inside.votes[top].numpy()
        return plots.images("doubted", "d", self.digits.x[top, 0].numpy(), captions, votes=votes, truth=truth)


def _curve(name: str, found: Scores) -> plots.Series:
    curve = metrics.reliability(found.inside.probs, found.y, _BINS)
    kept = curve.count >= min(_FEW, curve.count.max())
    accuracy = np.where(kept, curve.accuracy, np.nan)
    return plots.Series(name, accuracy, curve.confidence, weight=np.where(kept, curve.count, 0))


def _ballot(name: str, found: Scores) -> plots.Ballot:
    top, answer = found.outside.probs[:SHOWN].max(-1)
    captions = [f"{a}, {p:.0%}" for a, p in zip(answer.tolist(), top.tolist(), strict=True)]
    return plots.Ballot(name, found.outside.votes[:SHOWN].numpy(), captions)


def _shares(values: Tensor) -> "np.ndarray[Any, Any]":
    return np.histogram(values.numpy(), _ENTROPY)[0] / len(values)
