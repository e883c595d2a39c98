"""Tables of the documentation are what was measured."""

from pathlib import Path

from benchmarks import tables


def test_the_page_shows_what_was_measured(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    page = tables.PAGE.read_text()
    assert tables.renewed(page) == page
    assert tables.estimator_gaps() in page and page.count(tables.BEGIN) == 1
