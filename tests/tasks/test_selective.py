"""Risk and coverage by hand, unknown classes as errors, and thresholds that are chosen before they are applied."""

import math

import pytest
import torch

from dubito.tasks import Selective
from dubito.tasks.selective import keep, threshold


def certain(*gaps: float) -> torch.Tensor:
    """Inputs that get class 0 with the given log odds: the larger, the more certain."""
    return torch.tensor([[gap, 0.0] for gap in gaps])


def test_curve_area_and_filter_by_hand(shifted):
    x, y = certain(4.0, 3.0, 2.0, 1.0), torch.tensor([0, 0, 1, 0])  # the third most certain answer is wrong
    found = Selective(counts=(1, 2, 3, 4)).run({"p": shifted(0.0)}, {"test": (x, y)}).numbers
    assert found["most certain"]["p"]["entropy"] == pytest.approx([1, 1, 2 / 3, 3 / 4])
    assert found["aurc"]["p"]["entropy"] == pytest.approx((0 + 0 + 1 / 3 + 1 / 4) / 4)
    assert found["error"]["p"] == 0.25
    assert "bald" not in found["aurc"]["p"] and "several networks" in found["undefined"]["p"]["bald"]


def test_unknown_inputs_are_errors_wherever_they_stand(shifted):
    x, y, strange = certain(4.0, 2.0), torch.tensor([0, 0]), certain(3.0)
    found = Selective(counts=(1, 2, 3)).run({"p": shifted(0.0)}, {"test": (x, y), "unknown": strange})
    assert found.numbers["most certain"]["p"]["variation_ratio"] == pytest.approx([1, 1 / 2, 2 / 3])
    assert "unknown class" in found.summary and found.settings["unknown"] == 1


@pytest.mark.parametrize(("target", "expected"), [(0.0, 0.2), (0.34, 0.4), (0.25, 0.4), (0.2, 0.2), (0.5, 0.4)])
def test_the_largest_threshold_with_the_wanted_error(target, expected):
    doubt, errors = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.0, 0.0, 1.0, 0.0])
    assert threshold(doubt, errors, target) == pytest.approx(expected)


def test_inputs_of_equal_doubt_go_together():
    doubt, errors = torch.tensor([0.1, 0.2, 0.2]), torch.tensor([0.0, 0.0, 1.0])
    assert threshold(doubt, errors, 0.1) == pytest.approx(0.1)


def test_no_threshold_where_even_the_most_certain_is_wrong():
    doubt, errors = torch.tensor([0.1, 0.2]), torch.tensor([1.0, 0.0])
    assert threshold(doubt, errors, 0.1) == -math.inf
    assert keep(doubt, errors, -math.inf) == (-math.inf, 0.0, None)


def test_the_threshold_comes_from_validation_and_is_applied_to_the_test(shifted):
    held = certain(4.0, 3.0, 2.0), torch.tensor([0, 0, 1])
    test = certain(5.0, 3.5, 2.5, 1.0), torch.tensor([0, 1, 0, 0])
    task = Selective(scores=("variation_ratio",), target_error=0.1)
    kept = task.run({"p": shifted(0.0)}, {"test": test, "validation": held}).numbers["threshold"]["p"]
    limit = 1 - torch.tensor(3.0).sigmoid().item()
    assert kept["variation_ratio"]["validation"] == pytest.approx([limit, 2 / 3, 0.0])
    assert kept["variation_ratio"]["test"] == pytest.approx([limit, 0.5, 0.5])


def test_figures_are_drawn(pair, tmp_path):
    from dubito.report import write_figures

    data = torch.rand(12, 16), torch.arange(12) % 3
    result = Selective().run(pair, {"test": data, "validation": data, "unknown": torch.rand(4, 16)})
    assert [figure.name for figure in result.figures] == ["risk-coverage", "most-certain"]
    assert len(write_figures(result, tmp_path)) == 2
    assert len(result.tables) == 2


@pytest.mark.parametrize(
    ("task", "data", "says"),
    [
        ({"target_error": 1.0}, {}, "target_error=1.0"),
        (
            {"counts": (9,)},
            {"test": (torch.zeros(3, 2), torch.zeros(3).long())},
            "more than the 3 inputs",
        ),
        ({}, {"test": torch.zeros(3, 2)}, "no labels"),
        ({}, {"test": torch.zeros(3, 2), "valid": torch.zeros(3, 2)}, "did you mean 'validation'"),
    ],
)
def test_bad_arguments_are_one_sentence(shifted, task, data, says):
    with pytest.raises(ValueError, match=says):
        Selective(**task).run({"p": shifted(0.0)}, data)
