"""Detection measures from counts: what sklearn says, and bootstrap intervals that are what they claim to be."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from dubito import detection, metrics


def sides(n: int = 40, m: int = 30, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(size=n), rng.normal(1, 1, m)
    return (inside.round(1), outside.round(1)) if ties else (inside, outside)


@pytest.mark.parametrize("ties", [False, True])
def test_measures_equal_sklearn(ties):
    inside, outside = sides(ties=ties)
    y, s = np.repeat([0, 1], [len(inside), len(outside)]), np.concatenate([inside, outside])
    false, true, _ = roc_curve(y, s, drop_intermediate=False)
    found = detection.measured(detection.Ranked(inside, outside))
    assert found["auroc"] == pytest.approx(roc_auc_score(y, s), abs=1e-12)
    assert found["aupr_out"] == pytest.approx(average_precision_score(y, s), abs=1e-12)
    assert found["aupr_in"] == pytest.approx(average_precision_score(1 - y, -s), abs=1e-12)
    assert found["fpr95"] == pytest.approx(false[true >= 0.95][0], abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
def test_weights_count_inputs_as_often_as_they_say(ties):
    inside, outside = sides(12, 9, ties)
    ranked = detection.Ranked(inside, outside)
    weight = torch.randint(0, 3, (5, 21), generator=torch.Generator().manual_seed(1)).float()
    for row in weight:
        times = row.long().numpy()
        repeated = detection.Ranked(np.repeat(inside, times[:12]), np.repeat(outside, times[12:]))
        for name, measure in detection.MEASURES.items():
            assert float(measure(ranked.counts(row))) == pytest.approx(detection.measured(repeated)[name])
    stacked = detection.auroc(ranked.counts(weight))
    assert stacked.tolist() == [float(detection.auroc(ranked.counts(row))) for row in weight]


def test_bootstrap_agrees_with_delong_on_many_inputs():
    inside, outside = sides(800, 600)
    low, high = metrics.detection_intervals(inside, outside)["auroc"]
    assert (low, high) == pytest.approx(metrics.auroc_interval(inside, outside), abs=0.004)


def test_bootstrap_is_a_function_of_its_seed_and_the_same_for_all_scores():
    inside, outside = sides()
    both = {"a": detection.Ranked(inside, outside), "b": detection.Ranked(2 * inside, 2 * outside)}
    found = detection.intervals(both, rounds=50)
    assert found["a"] == found["b"] == detection.intervals(both, rounds=50)["a"]
    assert found["a"] != detection.intervals(both, rounds=50, seed=1)["a"]


@pytest.mark.parametrize(("options", "says"), [({"level": 1.0}, "level=1.0"), ({"rounds": 1}, "rounds=1")])
def test_bad_settings_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        metrics.detection_intervals(*sides(), **options)
