"""Scores, measures and views by hand, labelled scale factors, and reasons for what cannot exist."""

import numpy as np
import pytest
import torch

import dubito
from dubito import metrics
from dubito.results import Result
from dubito.tasks import OOD, SCORES, doubt
from dubito.tasks.ood import top_scores


def test_scores_by_hand(shifted):
    probs = torch.tensor([[0.5, 0.5], [0.8, 0.2]])  # the two draws' answers to one input
    x = torch.zeros(1, 2)
    prediction = shifted(0.0, float(np.log(4))).predict(x)
    mean = torch.tensor([0.65, 0.35])
    entropy = -(mean * mean.log()).sum()
    expected = -(probs * probs.log()).sum(1).mean()
    by_hand = {
        "max_probability": -0.65,
        "entropy": entropy,
        "expected_entropy": expected,
        "bald": entropy - expected,
        "variation_ratio": 0.35,
        "vote_ratio": 0.0,
        "top_spread": 0.15,
    }
    assert tuple(by_hand) == SCORES
    for score, value in by_hand.items():
        torch.testing.assert_close(doubt(prediction, score), torch.as_tensor([value]), atol=1e-6, rtol=0)


def test_measures_are_those_of_the_scores(shifted):
    x, far = torch.randn(30, 3, generator=torch.Generator().manual_seed(0)) * 3, torch.rand(20, 3)
    posterior = shifted(0.0, 1.0, -1.0)
    found = OOD(bootstrap=20).run({"p": posterior}, {"inside": x, "far": far}).numbers["detection"]["far"]["p"]
    near, away = posterior.predict(x), posterior.predict(far)
    for score in SCORES:
        value, low, high = found[score]["auroc"]
        assert value == pytest.approx(metrics.auroc(doubt(near, score), doubt(away, score)))
        assert low <= high and low <= value + 0.2 and high >= value - 0.2


def test_a_factor_is_applied_to_the_outside_alone_and_named(shifted):
    x, far = torch.randn(9, 3), torch.randn(8, 3)
    posterior = shifted(0.0, 1.0)
    plain = OOD(bootstrap=0, scales=(1.0, 5.0)).run({"p": posterior}, {"inside": x, "far": far})
    by_hand = OOD(bootstrap=0).run({"p": posterior}, {"inside": x, "far ×5": 5 * far})
    assert list(plain.numbers["detection"]) == ["far", "far ×5"]
    assert plain.numbers["detection"]["far ×5"] == by_hand.numbers["detection"]["far ×5"]
    assert "multiplied by 5" in plain.summary and "multiplied" not in by_hand.summary


def test_a_factor_on_whole_numbers_is_refused(shifted):
    tokens = torch.ones(4, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="the inputs of 'far' are whole numbers, which scales leave alone"):
        OOD(scales=(1.0, 5.0)).run({"p": shifted(0.0, 1.0)}, {"inside": tokens, "far": tokens})


def test_labels_in_a_column_mark_the_true_class_in_the_figures(pair):
    x, y = torch.rand(5, 1, 4, 4), torch.arange(5) % 3
    task = OOD(bootstrap=0, draws=4, shown=5)
    rows, column = (task.run(pair, {"inside": (x, labels), "far": x}).figures for labels in (y, y.unsqueeze(1)))
    told = [[f.panels[0].data["truth"] for f in figures if f.name == "votes-1-0"] for figures in (rows, column)]
    assert told == [[y.tolist()], [y.tolist()]]


def test_what_cannot_exist_says_why(shifted):
    result = OOD(bootstrap=0).run({"one": shifted(0.0)}, {"inside": torch.randn(5, 3), "far": torch.randn(5, 3)})
    assert set(result.numbers["undefined"]["one"]) == {"bald", "vote_ratio", "top_spread"}
    assert "BALD needs several networks" in result.summary
    row = next(row for row in result.tables[0].rows if row[1] == "BALD")
    assert row[2:] == (None,) * 4


def test_a_posterior_without_the_only_score_is_a_dash_beside_others(shifted):
    data = {"inside": (torch.randn(5, 3), torch.zeros(5).long()), "far": torch.randn(5, 3)}
    result = OOD(scores=("bald",), bootstrap=5).run({"one": shifted(0.0), "two": shifted(0.0, 1.0)}, data)
    assert result.numbers["detection"]["far"]["one"] == {} and "bald" in result.numbers["detection"]["far"]["two"]
    assert [row[2] is None for row in result.tables[0].rows] == [True, False]
    with pytest.raises(ValueError, match=r"give \{name: posterior\}"):
        OOD().run(shifted(0.0), data)


def test_wrong_answers_are_detected_by_hand(shifted):
    x = torch.tensor([[4.0, 0.0], [3.0, 0.0], [0.2, 0.0], [0.1, 0.0]])
    y = torch.tensor([0, 0, 0, 1])  # the least certain answer is the wrong one
    result = OOD(bootstrap=0).run({"p": shifted(0.0)}, {"inside": (x, y), "far": x})
    assert result.numbers["misclassified"]["p"]["entropy"]["auroc"][0] == 1.0
    assert result.numbers["accuracy"]["p"] == 0.75
    right = OOD(bootstrap=0).run({"p": shifted(0.0)}, {"inside": (x, torch.zeros(4).long()), "far": x})
    assert right.numbers["misclassified"]["p"] == {}


def test_top_scores_follow_the_common_answer(shifted):
    prediction = shifted(0.0, 2.0, -9.0).predict(torch.tensor([[1.0, 0.0]]), keep_draws=True)
    at = torch.tensor([1.0, 3.0, -8.0]).sigmoid()
    assert prediction.probs.argmax(-1).item() == 0
    np.testing.assert_allclose(top_scores(prediction)[:, 0], at, atol=1e-6)


def test_views_and_histograms_are_drawn(pair, tmp_path):
    from dubito.report import write_figures

    x = torch.rand(7, 1, 4, 4)
    result = OOD(bootstrap=0, shown=2).run(pair, {"inside": (x, torch.arange(7) % 3), "far": torch.rand(5, 1, 4, 4)})
    names = [figure.name for figure in result.figures]
    assert "doubt-bald" in names and "votes-1-1" in names and "scores-1-0" in names
    assert "scores-0-0" not in names  # one network has one score
    view = next(figure for figure in result.figures if figure.name == "votes-1-0")
    assert view.panels[0].data["votes"].shape == (2, 3) and view.panels[0].data["truth"] == [0, 1]
    assert len(write_figures(result, tmp_path)) == len(names)
    assert Result.load(result.save(tmp_path / "ood.json")).numbers == result.numbers


@pytest.mark.parametrize(
    ("task", "data", "says"),
    [
        ({}, {"inside": torch.zeros(3, 2)}, "no outside inputs"),
        ({}, {"far": torch.zeros(3, 2)}, "needs data called 'inside'"),
        ({}, {"inside": (torch.zeros(3, 2), torch.zeros(2)), "far": torch.zeros(3, 2)}, "3 inputs and 2 labels"),
        ({"scores": ("entropie",)}, {}, "did you mean 'entropy'"),
        ({"scales": ()}, {}, "at least one number"),
        ({"scores": ()}, {}, "no score to look at"),
    ],
)
def test_bad_arguments_are_one_sentence(shifted, task, data, says):
    with pytest.raises(ValueError, match=says):
        OOD(**task).run({"p": shifted(0.0)}, data)


def test_regression_is_refused_in_one_sentence():
    posterior = dubito.fit(
        torch.nn.Linear(2, 1), (torch.randn(9, 2), torch.randn(9, 1)), "map", steps=2, progress=False
    )
    with pytest.raises(ValueError, match="no classes to doubt"):
        OOD().run({"p": posterior}, {"inside": torch.zeros(3, 2), "far": torch.zeros(3, 2)})
