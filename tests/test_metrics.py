"""Metrics against values by hand, scikit-learn and torchmetrics, numerical integration, and their invariances."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dubito import metrics

PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.5, 0.25, 0.25]])
LABELS = np.array([0, 1, 0, 2])

small_floats = st.floats(-10, 10, width=32)
scores = arrays(np.float64, st.integers(2, 30), elements=st.integers(-3, 3).map(float))


def random_probs(n: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(classes), n), rng.integers(0, classes, n)


def test_classification_by_hand() -> None:
    assert metrics.accuracy(PROBS, LABELS) == 0.5
    assert metrics.nll(PROBS, LABELS) == pytest.approx(-math.log(0.7 * 0.8 * 0.3 * 0.25) / 4)
    rows = [0.3**2 + 0.2**2 + 0.1**2, 0.1**2 + 0.2**2 + 0.1**2, 0.7**2 + 0.3**2 + 0.4**2, 0.5**2 + 0.25**2 + 0.75**2]
    assert metrics.brier(PROBS, LABELS) == pytest.approx(sum(rows) / 4)


def test_reliability_and_ece_by_hand() -> None:
    curve = metrics.reliability(PROBS, LABELS, bins=2)
    np.testing.assert_array_equal(curve.edges, [0.0, 0.5, 1.0])
    # Bins are closed on the right: 0.5 belongs to the first.
    np.testing.assert_array_equal(curve.count, [2, 2])
    np.testing.assert_allclose(curve.confidence, [0.45, 0.75])
    np.testing.assert_allclose(curve.accuracy, [0.0, 1.0])
    assert metrics.ece(PROBS, LABELS, bins=2) == pytest.approx((0.45 + 0.25) / 2)


def test_empty_bins_are_nan_and_do_not_count() -> None:
    curve = metrics.reliability(PROBS, LABELS, bins=10)
    assert np.isnan(curve.accuracy[curve.count == 0]).all()
    assert curve.count.sum() == 4
    assert math.isfinite(metrics.ece(PROBS, LABELS, bins=10))


def test_certain_and_right_is_perfect() -> None:
    probs = np.eye(3)[[0, 1, 2]]
    assert (
        metrics.nll(probs, np.arange(3)) == metrics.brier(probs, np.arange(3)) == metrics.ece(probs, np.arange(3)) == 0
    )


def test_underflow_costs_much_but_not_infinitely_much() -> None:
    probs = torch.tensor([[0.0, 200.0], [0.0, 0.0]]).softmax(1)
    assert probs[0, 0] == 0.0
    assert metrics.nll(probs, np.array([0, 0])) == pytest.approx((126 * math.log(2) + math.log(2)) / 2)


@pytest.mark.parametrize("classes", [2, 7])
def test_classification_equals_the_libraries(classes: int) -> None:
    from sklearn.metrics import log_loss
    from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

    probs, y = random_probs(200, classes, seed=classes)
    p, t = torch.from_numpy(probs), torch.from_numpy(y)
    assert metrics.nll(p, t) == pytest.approx(log_loss(y, probs, labels=np.arange(classes)))
    assert metrics.accuracy(p, t) == pytest.approx(multiclass_accuracy(p, t, classes, average="micro").item())
    expected = multiclass_calibration_error(p, t, classes, n_bins=15, norm="l1").item()
    assert metrics.ece(p, t) == pytest.approx(expected, abs=1e-6)


def test_tokens_are_pooled_and_ignored_entries_dropped() -> None:
    tokens, labels = PROBS.reshape(2, 2, 3), np.array([[0, -100], [0, 2]])
    kept = [0, 2, 3]
    for measure in (metrics.accuracy, metrics.nll, metrics.brier, metrics.ece):
        assert measure(tokens, labels) == pytest.approx(measure(PROBS[kept], LABELS[kept]))
        assert measure(PROBS, LABELS, ignore_index=2) == pytest.approx(measure(PROBS[:3], LABELS[:3]))


def test_tensors_arrays_and_half_precision_agree() -> None:
    y = torch.from_numpy(LABELS)
    assert metrics.nll(torch.from_numpy(PROBS).requires_grad_(), y) == metrics.nll(PROBS, LABELS)
    assert metrics.nll(torch.from_numpy(PROBS).bfloat16(), y) == pytest.approx(metrics.nll(PROBS, LABELS), abs=0.01)
    assert (
        metrics.accuracy(PROBS[:, :1] * [1, 0] + [0, 1] - PROBS[:, :1] * [0, 1], np.array([[0.0], [1.0], [1], [1]]))
        == 0.75
    )


@given(st.integers(1, 40), st.integers(2, 6), st.integers(0, 99), st.integers(1, 20))
@settings(max_examples=40, deadline=None)
def test_classification_bounds_and_invariances(n: int, classes: int, seed: int, bins: int) -> None:
    probs, y = random_probs(n, classes, seed)
    order, relabel = (np.random.default_rng(seed + 1).permutation(k) for k in (n, classes))
    for measure, upper in ((metrics.accuracy, 1.0), (metrics.nll, math.inf), (metrics.brier, 2.0), (metrics.ece, 1.0)):
        value = measure(probs, y)
        assert 0.0 <= value <= upper
        assert measure(probs[order], y[order]) == pytest.approx(value)
        assert measure(probs[:, relabel], np.argsort(relabel)[y]) == pytest.approx(value)
    assert metrics.reliability(probs, y, bins).count.sum() == n


def test_detection_by_hand() -> None:
    inside, outside = np.array([1.0, 2.0, 3.0, 4.0]), np.array([3.5, 5.0])
    assert metrics.auroc(inside, outside) == 7 / 8
    assert metrics.aupr_out(inside, outside) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    # Inside by falling confidence: 1, 2, 3 found at precision 1, then 4 as the fourth of five.
    assert metrics.aupr_in(inside, outside) == pytest.approx(0.75 + 0.25 * 4 / 5)
    assert metrics.fpr95(inside, outside) == 0.25
    assert metrics.fpr95(-outside, -inside) == 0.5


def test_ties_count_one_half_and_infinities_are_scores() -> None:
    assert metrics.auroc(np.zeros(5), np.zeros(3)) == 0.5
    assert metrics.auroc(np.array([0.0, 1.0]), np.array([1.0, 2.0])) == 7 / 8
    assert metrics.auroc(np.array([-np.inf, 1.0]), np.array([np.inf, np.inf])) == 1.0
    assert metrics.fpr95(np.zeros(5), np.zeros(3)) == 1.0


def test_fpr95_may_miss_exactly_five_per_cent() -> None:
    outside = np.arange(20.0)
    assert metrics.fpr95(np.array([0.5, 0.0, 1.0, 2.0]), outside) == 0.5


def test_detection_equals_torchmetrics() -> None:
    from torchmetrics.functional.classification import binary_auroc, binary_average_precision

    rng = np.random.default_rng(0)
    inside, outside = rng.normal(0, 1, 80).round(1), rng.normal(1, 1, 50).round(1)
    # Plain arithmetic keeps ties; a vectorised sigmoid may split them by one rounding.
    score, label = torch.tensor(np.r_[inside, outside]) / 16 + 0.5, torch.arange(130) >= 80
    found = metrics.detection(torch.tensor(inside), torch.tensor(outside))
    assert list(found) == ["auroc", "aupr_out", "aupr_in", "fpr95"]
    assert found["auroc"] == pytest.approx(binary_auroc(score, label.int()).item(), abs=1e-6)
    assert found["aupr_out"] == pytest.approx(binary_average_precision(score, label.int()).item(), abs=1e-6)
    assert found["aupr_in"] == pytest.approx(binary_average_precision(1 - score, (~label).int()).item(), abs=1e-6)
    flagged = [(np.mean(inside >= t), np.mean(outside >= t)) for t in np.unique(outside)]
    assert found["fpr95"] == min(false for false, true in flagged if true >= 0.95)


@given(scores, scores)
@settings(max_examples=40, deadline=None)
def test_detection_bounds_and_invariances(inside: np.ndarray, outside: np.ndarray) -> None:
    found = metrics.detection(inside, outside)
    assert all(0.0 <= value <= 1.0 for value in found.values())
    assert metrics.detection(np.exp(inside), np.exp(outside)) == found
    assert metrics.auroc(outside, inside) == pytest.approx(1.0 - found["auroc"])
    pairs = outside[:, None] - inside[None]
    assert found["auroc"] == pytest.approx(np.mean((pairs > 0) + 0.5 * (pairs == 0)))
    assert metrics.aupr_out(-outside, -inside) == pytest.approx(found["aupr_in"])
    lower, upper = metrics.auroc_interval(inside, outside)
    assert lower - 1e-9 <= found["auroc"] <= upper + 1e-9


def test_auroc_interval_covers_at_its_level() -> None:
    rng = np.random.default_rng(0)
    truth = 0.5 * (1 + math.erf(0.5))  # P(N(1, 1) > N(0, 1))
    intervals = [metrics.auroc_interval(rng.normal(0, 1, 60), rng.normal(1, 1, 40), 0.9) for _ in range(400)]
    covered = np.mean([lower <= truth <= upper for lower, upper in intervals])
    # Three standard errors of a share of 400 at 0.9.
    assert covered == pytest.approx(0.9, abs=3 * math.sqrt(0.9 * 0.1 / 400))


def test_risk_coverage_by_hand() -> None:
    doubt, errors = np.array([0.3, 0.1, 0.2, 0.4]), np.array([0, 0, 1, 1])
    curve = metrics.risk_coverage(doubt, errors)
    np.testing.assert_allclose(curve.coverage, [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(curve.risk, [0, 1 / 2, 1 / 3, 1 / 2])
    assert metrics.aurc(doubt, errors) == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)


def test_constant_doubt_has_constant_risk() -> None:
    errors = torch.tensor([True, False, False, True, False])
    np.testing.assert_allclose(metrics.risk_coverage(torch.zeros(5), errors).risk, 0.4)


@given(scores, st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_risk_coverage_ends_at_the_mean_and_ignores_order(doubt: np.ndarray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    errors, order = rng.integers(0, 2, len(doubt)), rng.permutation(len(doubt))
    curve = metrics.risk_coverage(doubt, errors)
    assert curve.risk[-1] == pytest.approx(errors.mean())
    assert ((curve.risk >= -1e-12) & (curve.risk <= 1 + 1e-12)).all()
    np.testing.assert_allclose(metrics.risk_coverage(doubt[order], errors[order]).risk, curve.risk)
    assert metrics.aurc(errors, errors) <= metrics.aurc(doubt, errors) + 1e-12


def test_regression_by_hand() -> None:
    mean, y = np.array([[0.0], [1.0], [2.0]]), np.array([0.0, 2.0, 4.0])
    assert metrics.rmse(mean, y) == pytest.approx(math.sqrt(5 / 3))
    assert metrics.rmse(mean[:, 0], y[:, None]) == pytest.approx(math.sqrt(5 / 3))
    assert metrics.coverage(mean - 1, mean + 1, y) == pytest.approx(2 / 3)


def crps_by_integration(cdf, y: float) -> float:
    grid = np.linspace(-30, 30, 400_001)
    return float(np.trapezoid((cdf(grid) - (grid >= y)) ** 2, grid))


def test_crps_of_mixtures_is_the_integral() -> None:
    from scipy.stats import norm

    rng = np.random.default_rng(0)
    means, stds, y = rng.normal(0, 2, (3, 2, 2)), rng.uniform(0.1, 2, (3, 2, 2)), rng.normal(0, 2, (2, 2))
    expected = [
        crps_by_integration(lambda z, c=c: norm.cdf(z[:, None], means[(..., *c)], stds[(..., *c)]).mean(1), y[c])
        for c in np.ndindex(2, 2)
    ]
    assert metrics.crps_mixture(means, stds, y) == pytest.approx(np.mean(expected), abs=1e-4)
    single = crps_by_integration(lambda z: norm.cdf(z, means[0, 0, 0], stds[0, 0, 0]), y[0, 0])
    assert metrics.crps_gaussian(means[0, :1, :1], stds[0, :1, :1], y[:1, :1]) == pytest.approx(single, abs=1e-4)


def test_crps_of_a_standard_normal_at_its_mean() -> None:
    value = metrics.crps_gaussian(torch.zeros(4, 1), torch.ones(4, 1), torch.zeros(4))
    assert value == pytest.approx((math.sqrt(2) - 1) / math.sqrt(math.pi))


def test_crps_in_chunks_equals_crps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    means, stds, y = rng.normal(size=(4, 13, 2)), rng.uniform(0.1, 1, (4, 13, 2)), rng.normal(size=(13, 2))
    whole = metrics.crps_mixture(means, stds, y)
    monkeypatch.setattr(metrics, "_CHUNK", 12)
    assert metrics.crps_mixture(means, stds, y) == pytest.approx(whole, rel=1e-12)


def test_crps_without_noise_is_that_of_the_points() -> None:
    draws, y = np.array([[0.0], [1.0], [4.0]]), np.array([2.0])
    # E|X - y| = 5/3; the ordered pairs differ by 1, 3, 4, twice each, over 9 pairs (points) or 6 (fair).
    assert metrics.crps_mixture(draws, np.zeros((3, 1)), y) == pytest.approx(5 / 3 - 16 / 18)
    assert metrics.crps_samples(draws, y) == pytest.approx(5 / 3 - 16 / 12)


def test_crps_of_samples_is_unbiased() -> None:
    draws = torch.randn(3, 200_000, generator=torch.Generator().manual_seed(0))
    expected = metrics.crps_gaussian(np.zeros(1), np.ones(1), np.array([0.5]))
    # 200,000 scores of standard deviation below one.
    assert metrics.crps_samples(draws, torch.full((200_000,), 0.5)) == pytest.approx(expected, abs=0.007)


@given(arrays(np.float64, (5, 3), elements=small_floats), arrays(np.float64, 3, elements=small_floats), small_floats)
@settings(max_examples=40, deadline=None)
def test_crps_moves_with_the_data(draws: np.ndarray, y: np.ndarray, shift: float) -> None:
    stds = np.full_like(draws, 0.5)
    value = metrics.crps_mixture(draws, stds, y)
    assert value >= -1e-9
    assert metrics.crps_mixture(draws + shift, stds, y + shift) == pytest.approx(value, abs=1e-6)
    assert metrics.crps_mixture(3 * draws, 3 * stds, 3 * y) == pytest.approx(3 * value, abs=1e-6)
    assert metrics.crps_samples(draws[::-1], y) == pytest.approx(metrics.crps_samples(draws, y), abs=1e-9)


def test_comparison_by_hand() -> None:
    other = np.array([[0.2, 0.7, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.5, 0.25, 0.25]])
    assert metrics.agreement(PROBS, other) == 0.75
    assert metrics.total_variation(PROBS, other) == pytest.approx(0.5 / 4)
    assert metrics.total_variation(np.eye(2), np.eye(2)[::-1]) == 1.0


@given(st.integers(1, 20), st.integers(2, 5), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_total_variation_is_a_distance(n: int, classes: int, seed: int) -> None:
    p, q, r = (random_probs(n, classes, seed + k)[0] for k in range(3))
    assert metrics.total_variation(p, p) == 0.0
    assert metrics.agreement(p, p) == 1.0
    assert 0.0 <= metrics.total_variation(p, q) == pytest.approx(metrics.total_variation(q, p))
    assert metrics.total_variation(p, r) <= metrics.total_variation(p, q) + metrics.total_variation(q, r) + 1e-12


@dataclass
class Mixture:
    """A prediction made by hand: S Gaussians for each of N targets."""

    components: tuple[torch.Tensor, torch.Tensor] | None
    means: torch.Tensor
    stds: torch.Tensor
    probs: torch.Tensor
    kind: Literal["classification", "regression", "outputs"] = "regression"

    @property
    def mean(self) -> torch.Tensor:
        return self.means.mean(0)

    def interval(self, level: float) -> tuple[torch.Tensor, torch.Tensor]:
        return self.mean - 10 * level, self.mean + 10 * level

    def log_prob(self, y: torch.Tensor) -> torch.Tensor:
        each = torch.distributions.Normal(self.means, self.stds).log_prob(y.reshape(-1, 1)).sum(-1)
        return each.logsumexp(0) - math.log(len(each))


def mixture(known: bool = True) -> tuple[Mixture, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    means, stds = torch.randn(3, 6, 1, generator=rng), torch.rand(3, 6, 1, generator=rng) + 0.1
    y = torch.randn(6, generator=rng)
    y[0] = 50.0
    return Mixture((means, stds) if known else None, means, stds, torch.tensor(PROBS)), y


def test_evaluate_regression() -> None:
    prediction, y = mixture()
    found = metrics.evaluate(prediction, y)
    assert list(found) == ["rmse", "nll", "coverage", "crps"]
    assert found["rmse"] == pytest.approx((prediction.mean[:, 0] - y).square().mean().sqrt().item())
    assert found["nll"] == pytest.approx(-prediction.log_prob(y).mean().item())
    assert found["coverage"] == pytest.approx(5 / 6)
    assert found["crps"] == metrics.crps_mixture(prediction.means, prediction.stds, y)
    assert metrics.evaluate(prediction, y.numpy()[:, None]) == found


def test_evaluate_leaves_out_what_cannot_be_known() -> None:
    prediction, y = mixture(known=False)
    assert list(metrics.evaluate(prediction, y)) == ["rmse", "nll", "coverage"]
    prediction.kind = "outputs"
    assert list(metrics.evaluate(prediction, y)) == ["nll"]


def test_evaluate_classification() -> None:
    prediction, _ = mixture()
    prediction.kind = "classification"
    found = metrics.evaluate(prediction, LABELS)
    assert list(found) == ["accuracy", "nll", "brier", "ece"]
    assert found["brier"] == metrics.brier(PROBS, LABELS)
    assert metrics.evaluate(prediction, LABELS, ignore_index=2)["accuracy"] == pytest.approx(2 / 3)


ZERO, ONE = np.zeros(4), np.ones(4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: metrics.nll(PROBS, LABELS[:3]), r"y has shape \(3,\).*give y of shape \(4,\)"),
        (lambda: metrics.nll(PROBS, LABELS + 1), "labels from 1 to 3 for 3 classes"),
        (lambda: metrics.nll(PROBS, LABELS - 1), "labels from -1 to 1"),
        (lambda: metrics.nll(PROBS, LABELS + 0.5), "y holds 0.5"),
        (lambda: metrics.nll(PROBS, np.full(4, np.inf)), "y holds inf"),
        (lambda: metrics.nll(PROBS * np.nan, LABELS), "probs holds 12 NaN"),
        (lambda: metrics.nll(np.log(PROBS), LABELS), "give softmax of the logits"),
        (lambda: metrics.nll(PROBS[0], LABELS), "class axis last"),
        (lambda: metrics.nll(PROBS, np.full(4, -100)), "Every label equals ignore_index=-100"),
        (lambda: metrics.nll(PROBS[:0], LABELS[:0]), "probs is empty"),
        (lambda: metrics.ece(PROBS, LABELS, bins=0), "bins=0"),
        (lambda: metrics.auroc(ZERO, ONE[:0]), "outside is empty"),
        (lambda: metrics.auroc(ZERO[:, None], ONE), "one number per input"),
        (lambda: metrics.auroc(ZERO * np.nan, ONE), "inside holds 4 NaN"),
        (lambda: metrics.auroc_interval(ZERO, ONE, 95), "level=95"),
        (lambda: metrics.auroc_interval(ZERO[:1], ONE), "at least 2 scores"),
        (lambda: metrics.risk_coverage(ZERO, ONE[:3]), "doubt has 4 entries and errors 3"),
        (lambda: metrics.rmse(np.zeros((4, 2)), ONE), r"y has shape \(4,\) and mean \(4, 2\)"),
        (lambda: metrics.rmse(ZERO, ONE[:3]), "one target per prediction"),
        (lambda: metrics.rmse(ZERO, ONE * np.nan), "y holds 4 NaN"),
        (lambda: metrics.coverage(ZERO, ONE[:3], ONE), r"upper \(3,\)"),
        (lambda: metrics.crps_samples(np.zeros((1, 4)), ONE), "got 1; give 2 or more"),
        (lambda: metrics.crps_mixture(np.zeros((2, 4)), np.zeros((2, 3)), ONE), "one std per mean"),
        (lambda: metrics.crps_gaussian(ZERO, -ONE, ONE), "stds holds -1"),
        (lambda: metrics.evaluate(mixture()[0], ONE), r"y has shape \(4,\) and mean \(6, 1\)"),
        (lambda: metrics.evaluate(mixture()[0], np.full(6, np.nan)), "y holds 6 NaN"),
        (lambda: metrics.agreement(PROBS, PROBS[:2]), "predict the same inputs with both"),
    ],
)
def test_bad_input_gets_one_sentence(call, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert str(caught.value).count("\n") == 0
