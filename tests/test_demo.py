"""The demo: its page, its files, and that its words follow from its numbers."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from dubito import demo, metrics
from dubito.demo import problems, scores, toy_figures, words
from dubito.demo.__main__ import main
from dubito.results import Result
from dubito.studies.base import Settings

METHODS = ["plain net", "deep ensemble", "MC dropout", "SGLD"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> tuple[Result, Path, str]:
    """One quick run: its result, its folder and its last printed line."""
    folder = tmp_path_factory.mktemp("demo") / "new"
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *said, **_: printed.append(" ".join(map(str, said))))
        result = demo.run(folder, quick=True, progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    return result, folder, printed[-1]


def test_it_writes_a_page_a_result_and_figures_and_says_where(shown):
    result, folder, last = shown
    assert str(folder / "report.html") in last
    assert Result.load(folder / "demo.json").numbers == result.numbers
    assert len(list((folder / "figures").glob("demo-*.png"))) == len(result.figures)


def test_the_page_stands_alone(shown):
    page = (shown[1] / "report.html").read_text(encoding="utf-8")
    linked = re.findall(r'(?:src|href)="([^"#]+)', page)
    assert all(link.startswith("data:") for link in linked)
    for figure in shown[0].figures:
        assert figure.title in page


def test_every_section_explains_itself_in_a_few_sentences(shown):
    for figure in shown[0].figures:
        assert 2 <= len(re.findall(r"[.?](?: |$)", figure.caption)) <= 7, figure.caption


def test_the_table_has_a_dash_where_bald_cannot_exist(shown):
    table = shown[0].tables[0]
    bald = table.columns.index("AUROC BALD")
    assert [row[0] for row in table.rows] == METHODS
    assert [row[bald] is None for row in table.rows] == [True, False, False, False]
    networks = [row[table.columns.index("networks")] for row in table.rows]
    assert networks[:3] == [1, 5, 200]


def test_every_figure_shows_every_method(shown):
    figures = {figure.name: figure for figure in shown[0].figures}
    assert list(figures) == ["fooled", "no-digits", "entropy", "most-doubted", "reliability", "plane", "line"]
    assert [series["label"] for series in figures["fooled"].panels[0].data["series"]] == METHODS
    assert [row["label"] for row in figures["no-digits"].panels[0].data["rows"]] == METHODS
    for name in ("entropy", "most-doubted"):
        assert [panel.title for panel in figures[name].panels] == METHODS
    for name in ("plane", "line"):
        assert [panel.title for panel in figures[name].panels] == [*METHODS, "HMC"]


def test_the_picture_is_small(tmp_path):
    main(["--quick", "--picture", str(tmp_path / "new" / "doubt.png")])
    picture = (tmp_path / "new" / "doubt.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 150_000


def test_the_digits_are_scaled_by_the_training_part_alone():
    problem, inputs = problems.digits(Settings(quick=True))
    assert len(problem.data.y) == 1352
    assert float(problem.data.x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(problem.data.x.std()) == pytest.approx(1, abs=1e-4)
    assert float(inputs(torch.zeros(1, 1, 8, 8))[0, 0]) == pytest.approx(float(problem.data.x.min()))


class Fake:
    """As much of a prediction as detection needs."""

    def __init__(self, entropy: torch.Tensor) -> None:
        self.entropy = entropy


def _scores(inside: torch.Tensor, outside: torch.Tensor) -> scores.Scores:
    return scores.Scores(Fake(inside), Fake(outside), torch.zeros(0), 0.0)


def test_a_clear_difference_is_told_from_chance():
    noise = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    base, better = _scores(noise[0], noise[1] + 1), _scores(noise[0], noise[1] + 2)
    like_base = _scores(noise[0] + 0.01 * noise[2], noise[1] + 1 + 0.01 * noise[3])
    assert scores.by_detection(better, base) == "better"
    assert scores.by_detection(base, better) == "worse"
    assert scores.by_detection(like_base, base) == "alike"
    assert scores.by_detection(base, base) == "alike"


def test_wins_average_to_the_auroc():
    inside, outside = torch.tensor([0.0, 1.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0])
    for side in scores._wins(inside, outside):
        assert np.mean(side) == pytest.approx(metrics.auroc(inside, outside))


def test_words_list_and_compare():
    assert words.listed(["a"]) == "a"
    assert words.listed(["a", "b", "c"]) == "a, b and c"
    assert words.each({"plain net": 0.25, "SGLD": -0.5}, ".0%") == "25% for the plain net and −50% for SGLD"
    assert words.span({"SGLD": 0.9, "HMC": 0.8}, ".0%") == "80% (HMC) to 90% (SGLD)"
    assert words.span({"SGLD": 0.901, "HMC": 0.9}, ".0%") == "90%"
    told = words.compared("It", {"SGLD": "worse", "HMC": "better", "MAP": "better"}, "plain net", "higher", "lower")
    assert told == "It is, compared with the plain net, clearly higher for HMC and MAP and clearly lower for SGLD."


def test_the_line_names_the_bands_that_do_not_grow():
    data, gap = {"plain net": 0.2, "SGLD": 0.2}, {"plain net": 0.2, "SGLD": 0.4}
    told = toy_figures._line_words({"data": data, "gap": gap, "edges": {"plain net": 0.22, "SGLD": 0.3}})
    assert "the band of the plain net:" in told
    assert "0.20, 0.40 and 0.30 for SGLD" in told
    grown = toy_figures._line_words({"data": data, "gap": gap, "edges": {"plain net": 0.5, "SGLD": 0.5}})
    assert "Hardly" not in grown
