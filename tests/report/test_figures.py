"""Every kind of figure draws what it was given, as PNG and as SVG for a page."""

import io
import xml.etree.ElementTree as ElementTree
from typing import get_args

import matplotlib
import numpy as np
import pytest
from PIL import Image

from dubito import plots
from dubito.plots import Series
from dubito.report.figures import draw, inline_svg, render, write_figures
from dubito.report.style import BLUE, ORANGE, RC, Palette
from dubito.results import Kind, Result


def drawn(figure, titled=True):
    with matplotlib.rc_context(RC):
        canvas = draw(figure, Palette([figure]), titled)
        canvas.canvas.draw()
    return canvas


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_draws_as_png(figures, kind):
    image = Image.open(io.BytesIO(render(figures[kind], Palette([figures[kind]]), "png", titled=True)))
    pixels = np.asarray(image.convert("L"), dtype=float)
    assert min(image.size) > 300
    assert pixels[0].min() == 255  # nothing runs over the edge
    assert pixels[:, -1].min() == 255
    assert pixels.std() > 2


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_is_sound_svg_with_the_page_s_colours(figures, kind):
    text = inline_svg(figures[kind], Palette([figures[kind]]), "r0")
    root = ElementTree.fromstring(text)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert root.get("aria-label") == figures[kind].title
    assert all(name.startswith("r0-") for name in ids)
    assert "var(--c-" in text
    assert BLUE not in text
    assert "DejaVu" not in text


def test_drawing_is_the_same_each_time_and_leaves_matplotlib_alone(figures):
    before = dict(matplotlib.rcParams)
    palette = Palette(figures.values())
    assert inline_svg(figures["lines"], palette, "a") == inline_svg(figures["lines"], palette, "a")
    assert dict(matplotlib.rcParams) == before


def test_lines_show_the_numbers_given(figures):
    axes = drawn(figures["lines"]).axes[0]
    np.testing.assert_array_equal(axes.lines[2].get_ydata(), figures["lines"].panels[0].data["series"][2]["y"])
    assert axes.lines[2].get_color() == BLUE
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["MAP", "deep ensemble", "SGLD", "exact"]


def test_histogram_panels_share_an_axis_that_holds_the_tallest():
    parts = {
        str(top): plots.histogram("h", "H", [0, 1, 2], [Series("s", [top, 1.0])], x_label="x", y_label="y")
        for top in (1.0, 9.0)
    }
    axes = drawn(plots.panels("h", "H", parts)).axes
    assert all(one.get_ylim()[1] > 9 for one in axes)


def test_histogram_panels_show_all_of_each():
    parts = {
        str(end): plots.histogram("h", "H", [start, end], [Series("s", [1.0])], x_label="x", y_label="y")
        for start, end in ((2.0, 9.0), (0.0, 1.0))
    }
    axes = drawn(plots.panels("h", "H", parts)).axes
    assert all(one.get_xlim() == (0, 9) for one in axes)


def test_an_incomplete_row_of_panels_keeps_its_labels(figures):
    curve = plots.lines("l", "L", [Series("s", [0.0, 1.0], [0.0, 1.0])], x_label="time", y_label="y")
    axes = drawn(plots.panels("l", "L", dict.fromkeys("abcde", curve))).axes
    assert [one.get_xlabel() for one in axes] == ["", "", "time", "time", "time"]
    assert [one.get_ylabel() for one in axes] == ["y", "", "", "y", ""]


def test_votes_mark_the_true_class(figures):
    bars = [bar for group in drawn(figures["images"]).axes[0].containers for bar in group]
    assert [matplotlib.colors.to_hex(bar.get_facecolor()) for bar in bars[:3]] == [ORANGE, BLUE, ORANGE]


def test_ballots_draw_the_votes_of_every_method_in_its_colour():
    rows = [plots.Ballot("SGLD", np.array([[0.5, 0.5], [1.0, 0.0]]), ["0, 50%", "0, 99%"])]
    rows.append(plots.Ballot("deep ensemble", np.array([[0.0, 1.0], [1.0, 0.0]]), ["1, 80%", "0, 90%"]))
    figure = plots.ballots("b", "B", np.zeros((2, 4, 4)), ["letter", "stripes"], rows, labels=["no", "yes"])
    axes = drawn(figure).axes[0]
    words = [text.get_text() for text in axes.texts]
    assert [words.count(word) for word in ("SGLD", "deep ensemble", "letter", "0, 99%")] == [1, 1, 1, 1]
    assert (words.count("no"), words.count("yes")) == (3, 2)  # a class without votes has no label
    colours = [matplotlib.colors.to_hex(group[0].get_facecolor()) for group in axes.containers]
    assert colours == [BLUE, ORANGE, BLUE, ORANGE]


def test_words_on_a_sheet_of_images_neither_leave_it_nor_cover_each_other():
    labels = ["plane", "car", "lorry"]
    rows = [plots.Ballot(name, np.ones((2, 3)), ["plane", "car"]) for name in ("MAP", "an ensemble of twenty")]
    canvas = drawn(plots.ballots("b", "B", np.zeros((2, 4, 4)), ["x", "y"], rows, labels=labels))
    boxes = [text.get_window_extent() for text in canvas.axes[0].texts]
    assert min(box.x0 for box in boxes) > 0
    assert min(box.y0 for box in boxes) > 0
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_panels_stand_in_as_many_columns_as_asked_and_stay_within_the_page(figures):
    curve = plots.lines("l", "L", [Series("s", [0.0, 1.0], [0.0, 1.0])], x_label="x", y_label="y")
    canvas = drawn(plots.panels("l", "L", dict.fromkeys("abcd", curve), columns=4))
    assert len({round(one.get_position().y0, 3) for one in canvas.axes}) == 1
    assert canvas.get_figwidth() < 10


def test_series_named_by_their_panels_need_no_legend():
    parts = {
        f"{name}, ECE 0.1": plots.reliability("r", name, [Series(name, [0.5], [0.5], weight=[3])]) for name in "ab"
    }
    assert not drawn(plots.panels("r", "R", parts)).legends


def test_field_panels_share_one_scale(figures):
    canvas = drawn(figures["field"])
    limits = {one.images[0].get_clim() for one in canvas.axes if one.images}
    assert limits == {(np.min(v := figures["field"].panels[0].data["values"]), np.max(v))}


def test_the_axes_of_a_matrix_count_whole_rows_and_columns():
    figure = plots.field("f", "F", [0], [0, 1, 2], np.zeros((3, 1)), value_label="v", cells=True)
    axes = drawn(figure).axes[0]
    for ticks, most in ((axes.get_xticks(), 0), (axes.get_yticks(), 2)):
        assert [t for t in ticks.tolist() if -0.5 <= t <= most + 0.5] == list(range(most + 1))


def test_colour_images_draw():
    figure = plots.images("rgb", "RGB", np.zeros((2, 4, 4, 3)), ["a", "b"], columns=1)
    assert drawn(figure).axes[0].images[0].get_array().shape == (4, 4, 3)


def test_empty_bins_and_flat_fields_draw_without_complaint():
    flat = plots.field("f", "F", [0, 1], [0, 1], np.zeros((2, 2)), value_label="v")
    empty = plots.reliability("r", "R", [Series("SGLD", [0.0, 0.5], [0.1, 0.9], weight=[0, 0])])
    none = plots.histogram("h", "H", [0, 1], [Series("s", [0.0])], x_label="x", y_label="y")
    for figure in (flat, empty, none):
        assert render(figure, Palette([figure]), "png", titled=False)


def test_write_figures_names_files_after_result_and_figure(figures, tmp_path):
    paths = write_figures(Result("demo", "Demo", figures=[figures["bars"], figures["lines"]]), tmp_path / "new")
    assert [p.name for p in paths] == ["demo-bars.png", "demo-lines.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in paths)


def test_reliability_shows_bins_where_they_lie_and_leaves_empty_ones_out():
    nowhere = [0.25, np.nan, 0.95]
    one = Series("SGLD", [0.3, np.nan, 0.9], nowhere, weight=[1, 0, 3])
    axes = drawn(plots.reliability("r", "R", [one])).axes[0]
    strip = axes.child_axes[0].collections[0].get_segments()
    np.testing.assert_allclose(axes.lines[1].get_xdata(), [0.25, 0.95])
    np.testing.assert_allclose([[line[0][0], line[1][1]] for line in strip], [[0.25, 0.25], [0.95, 0.75]])


def test_the_legend_of_bands_names_the_middle_and_the_intervals_of_the_panel_that_has_them():
    x = np.linspace(0, 1, 5)
    bare = plots.bands("a", "one network", x, x, [], line="median")
    doubtful = plots.bands("b", "several", x, x, [plots.Band("between quartiles", x - 1, x + 1)], line="median")
    figure = plots.panels("both", "Medians", {"one network": bare, "several": doubtful})
    (legend,) = drawn(figure).legends
    assert [text.get_text() for text in legend.get_texts()] == ["median", "between quartiles"]
