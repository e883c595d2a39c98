"""Figure specifications: what fits together is kept, what does not is named."""

import numpy as np
import pytest

from dubito import plots
from dubito.plots import Band, Series

X = [0.0, 1.0, 2.0]


def test_empty_fields_are_left_out():
    figure = plots.lines("a", "A", [Series("s", X, X)], x_label="x", y_label="y")
    assert figure.panels[0].data["series"][0].keys() == {"label", "y", "x", "style"}


def test_panels_set_figures_side_by_side():
    parts = {name: plots.lines("p", "P", [Series(name, X, X)], x_label="x", y_label="y", log_y=True) for name in "ab"}
    both = plots.panels("both", "Both", parts, caption="c")
    assert [panel.title for panel in both.panels] == ["a", "b"]
    assert (both.name, both.title, both.caption, both.x_label) == ("both", "Both", "c", "x")
    assert both.options["log_y"] is True


def test_labels_of_votes_default_to_class_numbers():
    figure = plots.images("i", "I", np.zeros((1, 2, 2)), ["c"], votes=np.ones((1, 3)))
    assert figure.panels[0].data["labels"] == ["0", "1", "2"]


bars = plots.bars("b", "B", ["a"], [Series("s", [1.0])], y_label="y")
curve = plots.lines("l", "L", [Series("s", X, X)], x_label="x", y_label="y")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.lines("a", "A", [Series("s", X, X[:2])], x_label="", y_label=""), "2 x and 3 y values"),
        (lambda: plots.lines("a", "A", [Series("s", X, X, low=X[:1])], x_label="", y_label=""), "1 values for low"),
        (lambda: plots.bars("a", "A", ["k", "l"], [Series("s", X)], y_label=""), "3 values for y instead of 2"),
        (lambda: plots.histogram("a", "A", X, [Series("s", X)], x_label="", y_label=""), "3 values for y instead of 2"),
        (lambda: plots.reliability("a", "A", [Series("s", X, X)]), "needs a weight"),
        (
            lambda: plots.images("a", "A", np.zeros((2, 4, 4)), ["c"]),
            r"1 captions do not fit pixels of shape \(2, 4, 4\)",
        ),
        (lambda: plots.images("a", "A", np.zeros((1, 4, 4)), ["c"], votes=np.ones((2, 3))), r"votes \(2, 3\)"),
        (lambda: plots.field("a", "A", X, X, np.zeros((2, 3)), value_label=""), r"must have shape .* = \(3, 3\)"),
        (lambda: plots.bands("a", "A", X, X, [Band("90 %", X, X[:2])]), "'90 %' must have one low and one high"),
        (lambda: plots.panels("a", "A", {"x": bars, "y": curve}), "one kind, not"),
        (lambda: plots.panels("a", "A", {}), "one kind, not"),
    ],
)
def test_misfits_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_ballots_need_votes_and_captions_for_every_image():
    good = plots.Ballot("SGLD", np.ones((2, 3)), ["a", "b"])
    figure = plots.ballots("b", "B", np.zeros((2, 4, 4)), ["x", "y"], [good])
    assert figure.panels[0].data["labels"] == ["0", "1", "2"]
    assert figure.options["columns"] == 2
    with pytest.raises(ValueError, match="every row needs votes"):
        plots.ballots("b", "B", np.zeros((2, 4, 4)), ["x", "y"], [good, plots.Ballot("MAP", np.ones((2, 3)), ["a"])])
    with pytest.raises(ValueError, match="captions do not fit"):
        plots.ballots("b", "B", np.zeros((3, 4, 4)), ["x", "y"], [good])


def test_panels_take_a_number_of_columns():
    one = plots.bars("b", "B", ["x"], [plots.Series("s", [1.0])], y_label="y")
    assert plots.panels("p", "P", {"a": one, "b": one}, columns=1).options["columns"] == 1
    assert "columns" not in plots.panels("p", "P", {"a": one, "b": one}).options
