"""Scores of predictions: classification, detection, selective prediction, regression, and two posteriors compared.

Every function takes torch tensors or numpy arrays, computes in double precision and returns Python floats or small
numpy arrays. Logarithms are natural, so likelihoods are in nats. In classification the class axis is last; all axes
before it (rows, tokens, pixels) are pooled, and entries of `y` equal to `ignore_index` are dropped.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubito import detection as detecting

Floats = NDArray[np.float64]
Array = Tensor | NDArray[Any]

IGNORE_INDEX = -100
_CHUNK = 1 << 20
_SMALLEST = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False)
class Reliability:
    """Equal-width bins of the top probability: edges (B + 1), and per bin (B) what was claimed and what came true."""

    edges: Floats
    confidence: Floats
    accuracy: Floats
    count: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Mean error (`risk`) among the share of inputs (`coverage`) with the least doubt, for 1 to N inputs kept."""

    coverage: Floats
    risk: Floats


class Predicted(Protocol):
    """What `evaluate` reads of a Prediction."""

    @property
    def kind(self) -> Literal["classification", "regression", "outputs"]: ...
    @property
    def probs(self) -> Tensor: ...
    @property
    def mean(self) -> Tensor: ...
    @property
    def components(self) -> tuple[Tensor, Tensor] | None:
        """Means and stds (S, N, C) of the Gaussian mixture; None if it is another or the draws were not kept."""

    def interval(self, level: float) -> tuple[Tensor, Tensor]: ...
    def log_prob(self, y: Tensor) -> Tensor: ...


def evaluate(prediction: Predicted, y: Array, *, ignore_index: int = IGNORE_INDEX) -> dict[str, float]:
    """The usual scores of a prediction against what came true.

    Classification: accuracy, nll, brier, ece. Regression: rmse, nll, coverage of the 90 % interval, and the crps of the
    Gaussian mixture where its components are known. Likelihoods of other kinds: nll.
    """
    if prediction.kind == "classification":
        measures = (accuracy, nll, brier, ece)
        return {measure.__name__: measure(prediction.probs, y, ignore_index=ignore_index) for measure in measures}
    if prediction.kind == "regression":
        return _evaluate_regression(prediction, y)
    return {"nll": _mean_nll(prediction, y)}


def _evaluate_regression(prediction: Predicted, y: Array) -> dict[str, float]:
    # First, because it checks y before log_prob sees it.
    error = rmse(prediction.mean, y)
    lower, upper = prediction.interval(0.9)
    found = {"rmse": error, "nll": _mean_nll(prediction, y), "coverage": coverage(lower, upper, y)}
    components = prediction.components
    if components is not None:
        found["crps"] = crps_mixture(*components, y)
    return found


def _mean_nll(prediction: Predicted, y: Array) -> float:
    return -float(prediction.log_prob(torch.as_tensor(y)).double().mean())


# Classification


def accuracy(probs: Array, y: Array, *, ignore_index: int = IGNORE_INDEX) -> float:
    """Share of rows whose most probable class is the label."""
    p, labels = _labelled(probs, y, ignore_index)
    return float(np.mean(p.argmax(1) == labels))


def nll(probs: Array, y: Array, *, ignore_index: int = IGNORE_INDEX) -> float:
    """Mean of -log p(y), in nats; at most 87.3 a row, as where a softmax underflows p counts as float32's smallest."""
    p, labels = _labelled(probs, y, ignore_index)
    hit = p[np.arange(len(p)), labels]
    return float(-np.log(np.maximum(hit, _SMALLEST)).mean())


def brier(probs: Array, y: Array, *, ignore_index: int = IGNORE_INDEX) -> float:
    """Mean over rows of sum_c (p_c - 1[y = c])^2, the multi-class form, in [0, 2] (Brier, 1950)."""
    p, labels = _labelled(probs, y, ignore_index)
    hit = p[np.arange(len(p)), labels]
    return float(((p**2).sum(1) - hit**2 + (1.0 - hit) ** 2).mean())


def reliability(probs: Array, y: Array, bins: int = 15, *, ignore_index: int = IGNORE_INDEX) -> Reliability:
    """Top probability against accuracy in `bins` equal bins, each closed on the right; NaN in empty bins."""
    if bins < 1:
        raise ValueError(f"bins={bins} leaves no bin; give 1 or more.")
    p, labels = _labelled(probs, y, ignore_index)
    edges = np.linspace(0.0, 1.0, bins + 1)
    confidence = p.max(1)
    where = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    count = np.bincount(where, minlength=bins)
    with np.errstate(invalid="ignore"):
        claimed = np.bincount(where, confidence, bins) / count
        true = np.bincount(where, p.argmax(1) == labels, bins) / count
    return Reliability(edges, claimed, true, count)


def ece(probs: Array, y: Array, bins: int = 15, *, ignore_index: int = IGNORE_INDEX) -> float:
    """Expected calibration error, sum_b n_b / N |accuracy_b - confidence_b| (Guo et al., 2017)."""
    curve = reliability(probs, y, bins, ignore_index=ignore_index)
    gaps = np.abs(curve.accuracy - curve.confidence)
    return float(np.nansum(curve.count * gaps) / curve.count.sum())


# Detection: higher scores mean more doubt, and inputs from outside are the positives


def auroc(inside: Array, outside: Array) -> float:
    """P(a score outside > a score inside), with ties counting one half."""
    return _detected(inside, outside, "auroc")


def auroc_interval(inside: Array, outside: Array, level: float = 0.95) -> tuple[float, float]:
    """Normal confidence interval of the AUROC by the variance of DeLong et al. (1988); no width where it is 0 or 1."""
    from scipy.stats import rankdata

    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level} is no confidence level; give one between 0 and 1, such as 0.95.")
    is_outside, ranks = _outside_positive(inside, outside)
    above = rankdata(ranks)
    wins = []
    for group in (is_outside, ~is_outside):
        if group.sum() < 2:
            raise ValueError("An interval of the AUROC needs at least 2 scores on each side; give more inputs.")
        wins.append((above[group] - rankdata(ranks[group])) / (~group).sum())
    centre = float(wins[0].mean())
    width = NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(sum(float(w.var(ddof=1)) / len(w) for w in wins))
    return max(0.0, centre - width), min(1.0, centre + width)


def aupr_out(inside: Array, outside: Array) -> float:
    """Average precision (a step sum, no interpolation) when doubtful inputs are called outside."""
    return _detected(inside, outside, "aupr_out")


def aupr_in(inside: Array, outside: Array) -> float:
    """Average precision when inputs of little doubt are called inside: the positives are the inside inputs."""
    return _detected(inside, outside, "aupr_in")


def fpr95(inside: Array, outside: Array) -> float:
    """Least share of inside inputs flagged by a threshold that flags 95 % of the outside inputs.

    Positive is outside, as in Hendrycks et al. (2019); `fpr95(-outside, -inside)` is the other convention, which passes
    95 % of the inside inputs and counts the outside ones that pass too (Liang et al., 2018).
    """
    return _detected(inside, outside, "fpr95")


def detection(inside: Array, outside: Array) -> dict[str, float]:
    """Every detection score: auroc, aupr_out, aupr_in and fpr95."""
    return detecting.measured(detecting.Ranked(inside, outside))


def detection_intervals(
    inside: Array, outside: Array, level: float = 0.95, rounds: int = detecting.ROUNDS, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Percentile bootstrap interval of every detection score, inputs of each side drawn with replacement."""
    return detecting.intervals({"": detecting.Ranked(inside, outside)}, rounds, level, seed)[""]


def _detected(inside: Array, outside: Array, measure: str) -> float:
    return float(detecting.MEASURES[measure](detecting.Ranked(inside, outside).counts()))


# Selective prediction


def risk_coverage(doubt: Array, errors: Array) -> RiskCoverage:
    """Risk of answering only the k least doubtful inputs, k = 1 to N; `errors` are 0/1 or any loss, one per input.

    Inputs of equal doubt each count with their group's mean error: the mean over all orders of the ties.
    """
    scores, losses = _scores(doubt, "doubt"), _scores(errors, "errors")
    if len(scores) != len(losses):
        raise ValueError(f"doubt has {len(scores)} entries and errors {len(losses)}; give one of each per input.")
    _, group, size = np.unique(scores, return_inverse=True, return_counts=True)
    expected = np.repeat(np.bincount(group, losses) / size, size)
    kept = np.arange(1, len(scores) + 1)
    return RiskCoverage(kept / len(scores), np.cumsum(expected) / kept)


def aurc(doubt: Array, errors: Array) -> float:
    """Area under the risk-coverage curve: the mean risk over k = 1 to N (Geifman et al., 2019); lower is better."""
    return float(risk_coverage(doubt, errors).risk.mean())


# Regression


def rmse(mean: Array, y: Array) -> float:
    """Root of the mean squared error over all rows and output columns."""
    target, centre = _targets(y, mean=mean)
    return math.sqrt(float(np.mean((centre - target) ** 2)))


def coverage(lower: Array, upper: Array, y: Array) -> float:
    """Share of targets inside the closed intervals [lower, upper]."""
    target, low, high = _targets(y, lower=lower, upper=upper)
    return float(np.mean((low <= target) & (target <= high)))


def crps_gaussian(mean: Array, std: Array, y: Array) -> float:
    """Mean continuous ranked probability score of N(mean, std^2), in closed form (Gneiting and Raftery, 2007)."""
    centre, scale = _floats(mean, "mean"), _floats(std, "std")
    return crps_mixture(centre[None], np.broadcast_to(scale, centre.shape)[None], y)


def crps_samples(draws: Array, y: Array) -> float:
    """Mean fair CRPS of draws (S, N, ...) of y, by sorting in O(S log S) (Ferro, 2014).

    E|X - y| - 1/2 E|X - X'| with X' another draw than X: unbiased for the distribution the draws come from, where
    the score of the S draws themselves (division by S^2 for S (S - 1)) is too high by O(1 / S).
    """
    values = _floats(draws, "draws")
    n = len(values)
    if n < 2:
        raise ValueError(f"The fair CRPS compares draws with each other and got {n}; give 2 or more.")
    target, _ = _targets(y, draws=values[0])
    weight = 2.0 * np.arange(1, n + 1) - n - 1.0
    spread = np.tensordot(weight, np.sort(values, axis=0), axes=1) / (n * (n - 1))
    return float(np.mean(np.abs(values - target).mean(0) - spread))


def crps_mixture(means: Array, stds: Array, y: Array) -> float:
    """Mean CRPS of equal mixtures of S Gaussians, means and stds (S, N, ...), in closed form (Grimit et al., 2006).

    1/S sum_i A(y - m_i, s_i^2) - 1/(2 S^2) sum_ij A(m_i - m_j, s_i^2 + s_j^2), A(d, v) = E|N(d, v)|; O(S^2) a target.
    """
    centres, scales = _floats(means, "means"), _floats(stds, "stds")
    if centres.shape != scales.shape:
        raise ValueError(f"means has shape {centres.shape} and stds {scales.shape}; give one std per mean.")
    if scales.min() < 0.0:
        raise ValueError(f"stds holds {scales.min():g}; give standard deviations of 0 or more.")
    target, _ = _targets(y, means=centres[0])
    n = len(centres)
    m, v, t = centres.reshape(n, -1), scales.reshape(n, -1) ** 2, target.reshape(1, -1)
    step = max(1, _CHUNK // n)
    cuts = [slice(i, i + step) for i in range(0, t.size, step)]
    return sum(_mixture_sum(*(torch.tensor(a[:, cut]) for a in (m, v, t))) for cut in cuts) / t.size


def _mixture_sum(means: Tensor, variances: Tensor, y: Tensor) -> float:
    """Sum over columns of the mixture's CRPS; (S, n), (S, n), (1, n)."""
    n = len(means)
    total = _mean_abs(y - means, variances).sum() / n
    for i in range(n):
        # Pairs i < j stand for (i, j) and (j, i), and i with itself for one.
        total -= _mean_abs(means[i] - means[i + 1 :], variances[i] + variances[i + 1 :]).sum() / n**2
        total -= _mean_abs(torch.zeros_like(means[i]), 2.0 * variances[i]).sum() / (2 * n**2)
    return float(total)


def _mean_abs(mean: Tensor, variance: Tensor) -> Tensor:
    """E|N(mean, variance)| = 2 s phi(mean / s) + mean (2 Phi(mean / s) - 1); |mean| where the variance is 0."""
    std = variance.sqrt()
    z = mean / std.clamp_min(1e-300)
    density = torch.exp(-0.5 * z**2) * math.sqrt(2.0 / math.pi)
    expected: Tensor = std * density + mean * torch.special.erf(z / math.sqrt(2.0))
    return expected


# Two posteriors compared in function space


def agreement(p: Array, q: Array) -> float:
    """Share of rows with the same most probable class under p and q, both (N, C)."""
    first, second = _pair(p, q)
    return float(np.mean(first.argmax(-1) == second.argmax(-1)))


def total_variation(p: Array, q: Array) -> float:
    """Mean over rows of 1/2 sum_c |p_c - q_c|, in [0, 1]."""
    first, second = _pair(p, q)
    return float(0.5 * np.abs(first - second).sum(-1).mean())


# Arguments


def _floats(value: Array, name: str) -> Floats:
    """As double precision numpy, refusing emptiness and NaN."""
    raw = value.detach().cpu().double().numpy() if isinstance(value, Tensor) else value
    array = np.asarray(raw, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"{name} is empty (shape {array.shape}); give at least one row.")
    if np.isnan(array).any():
        raise ValueError(
            f"{name} holds {np.isnan(array).sum()} NaN; find the inputs that cause them and leave them out."
        )
    return array


def _probabilities(value: Array, name: str) -> Floats:
    """(..., C) rows of probabilities."""
    p = _floats(value, name)
    if p.ndim < 2:
        raise ValueError(f"{name} has shape {p.shape}; give (N, C), with the class axis last.")
    # Wide enough for half precision, too narrow for logits to pass.
    if p.min() < 0.0 or np.abs(p.sum(-1) - 1.0).max() > 0.01:
        worst = p.sum(-1).flat[np.abs(p.sum(-1) - 1.0).argmax()]
        raise ValueError(
            f"{name} holds a row with sum {worst:.4g} and minimum {p.min():.4g}; give softmax of the logits."
        )
    return p


def _labelled(probs: Array, y: Array, ignore_index: int) -> tuple[Floats, NDArray[np.int64]]:
    """Probabilities (M, C) and integer labels (M,), all leading axes pooled and ignored entries gone."""
    p = _probabilities(probs, "probs")
    labels = _integers(y)
    if labels.shape not in (p.shape[:-1], (*p.shape[:-1], 1)):
        raise ValueError(f"y has shape {labels.shape} and probs {p.shape}; give y of shape {p.shape[:-1]}.")
    labels = labels.reshape(p.shape[:-1])
    kept = labels != ignore_index
    classes = labels[kept]
    if classes.size == 0:
        raise ValueError(f"Every label equals ignore_index={ignore_index}; give at least one that counts.")
    if classes.min() < 0 or classes.max() >= p.shape[-1]:
        raise ValueError(
            f"y holds labels from {classes.min()} to {classes.max()} for {p.shape[-1]} classes; "
            f"count from 0 to {p.shape[-1] - 1}."
        )
    return p[kept], classes


def _integers(y: Array) -> NDArray[np.int64]:
    """Labels as integers; floating labels pass where they are whole, as the 0.0 and 1.0 of a binary target are."""
    labels = _floats(y, "y")
    whole = np.isfinite(labels) & (labels == np.floor(labels))
    if not whole.all():
        raise ValueError(f"y holds {labels[~whole][0]:g}; give integer class labels.")
    return labels.astype(np.int64)


def _scores(value: Array, name: str) -> Floats:
    """One number per input, (N,)."""
    scores = _floats(value, name)
    if scores.ndim != 1:
        raise ValueError(f"{name} has shape {scores.shape}; give one number per input.")
    return scores


def _outside_positive(inside: Array, outside: Array) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Labels, true outside, and the scores as dense ranks, which admit infinities."""
    pair = [_scores(inside, "inside"), _scores(outside, "outside")]
    is_outside = np.repeat([False, True], [len(scores) for scores in pair])
    return is_outside, np.unique(np.concatenate(pair), return_inverse=True)[1]


def _targets(y: Array, **predicted: Array) -> tuple[Floats, ...]:
    """Targets and predictions of one shape, (N,) and (N, 1) being the same, so that nothing broadcasts to (N, N)."""
    target = _floats(y, "y")
    arrays = {name: _floats(value, name) for name, value in predicted.items()}
    for name, array in arrays.items():
        if array.shape != target.shape and {array.shape, target.shape} != {(len(target),), (len(target), 1)}:
            raise ValueError(f"y has shape {target.shape} and {name} {array.shape}; give one target per prediction.")
    shape = next(iter(arrays.values())).shape
    return target.reshape(shape), *(array.reshape(shape) for array in arrays.values())


def _pair(p: Array, q: Array) -> tuple[Floats, Floats]:
    """Two tables of probabilities of one shape."""
    first, second = _probabilities(p, "p"), _probabilities(q, "q")
    if first.shape != second.shape:
        raise ValueError(f"p has shape {first.shape} and q {second.shape}; predict the same inputs with both.")
    return first, second
