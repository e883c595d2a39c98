"""Tables of the documentation are what was measured."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_page_shows_what_was_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    from benchmarks import tables

    page = tables.PAGE.read_text()
    assert tables.renewed(page) == page
    assert tables.estimator_gaps() in page and page.count(tables.BEGIN) == 1
