"""Pages: self-contained HTML, and Markdown whose links lead to files."""

import errno
import os
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from dubito import plots
from dubito.plots import Series
from dubito.report import write_figures, write_html, write_markdown
from dubito.results import Result, Table

VOID = {"meta", "img", "br", "path", "use", "image", "rect"}


class Reader(HTMLParser):
    """Collects tags, links and ids, and checks that what is opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.ids = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.links += [found[key] for key in ("src", "href", "xlink:href") if key in found]
        self.ids += [found["id"]] if "id" in found else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(result, tmp_path_factory):
    second = Result("again", "Again", figures=[result.figures[0]])
    return write_html([result, second], tmp_path_factory.mktemp("page") / "new" / "report.html", "All <results>")


def test_the_page_needs_nothing_but_itself(page):
    text = page.read_text()
    reader = Reader(text)
    assert reader.open == []
    assert reader.links
    assert all(link.startswith(("#", "data:image/")) for link in reader.links)
    assert not re.search(r"@import|<script|url\((?!#)", text)
    assert page.stat().st_size < 3_000_000


def test_ids_are_unique_and_every_inner_link_leads_somewhere(page):
    text = page.read_text()
    reader = Reader(text)
    inner = {link[1:] for link in reader.links if link.startswith("#")} | set(re.findall(r"url\(#([^)]+)\)", text))
    assert inner <= set(reader.ids)
    assert len(set(reader.ids)) == len(reader.ids)


def test_the_page_shows_words_tables_figures_and_settings(page, result):
    text = page.read_text()
    assert "<title>All &lt;results&gt;</title>" in text
    assert "A demonstration &amp; more" in text
    assert "Scores &lt;b&gt;" in text
    assert '<td class="number">–</td>' in text
    assert text.count("<svg ") == len(result.figures) + 1
    assert "accuracy.SGLD" in text
    assert "prefers-color-scheme: dark" in text


def test_a_heavy_figure_becomes_an_image(tmp_path):
    x = np.linspace(0, 1, 1900)
    clouds = [Series(f"s{i}", np.cos(x * i), x) for i in range(4)]
    figure = plots.scatter("cloud", "Cloud", clouds, x_label="x", y_label="y")
    text = write_html([Result("a", "A", figures=[figure])], tmp_path / "a.html", "A").read_text()
    assert "<svg " not in text
    assert '<img src="data:image/png;base64,' in text


def test_markdown_links_lead_to_files(result, tmp_path):
    result = replace(result, figures=result.figures[:1])
    path = write_markdown([result], tmp_path / "docs" / "results.md", tmp_path / "pictures")
    text = path.read_text()
    links = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert links == ["../pictures/demo-lines.png"]
    assert (path.parent / links[0]).exists()
    assert "| SGLD | 0.1000 | 0.2500 |" in text
    assert "| --- | ---: | ---: |" in text


def test_words_of_any_kind_stay_one_markdown_row_and_no_tag(tmp_path):
    odd = Table("<i>", ("a|b", "c\nd"), [("x\n<script>alert(1)</script>", "1 < 2")], note="</td>")
    path = write_markdown([Result("odd", "A <b> & c", "<img>", tables=[odd])], tmp_path / "odd.md")
    text = path.read_text()
    assert "| a\\|b | c d |\n| --- | --- |\n| x &lt;script>alert(1)&lt;/script> | 1 < 2 |" in text
    assert not re.search("<[a-z/]", text) and "A &lt;b> & c" in text


def test_markdown_puts_figures_beside_the_page_by_default(figures, tmp_path):
    path = write_markdown([Result("a", "A", figures=[figures["bars"]])], tmp_path / "results.md")
    assert "(results/a-bars.png)" in path.read_text()
    assert (tmp_path / "results" / "a-bars.png").exists()


def test_places_that_cannot_be_written_to_are_named_with_the_cure(tmp_path):
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "deeper"
    result = Result("r", "R")
    for write in (
        lambda: write_html([result], below / "page.html", "R"),
        lambda: write_figures(result, below),
        lambda: result.save(below / "r.json"),
    ):
        with pytest.raises(OSError, match=r"cannot write to .*deeper .*; choose a folder you may write to"):
            write()


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = write_html([Result("r", "Old")], tmp_path / "page.html", "Old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot write .*page.html .No space left on device.; make room"):
        write_html([Result("r", "New")], path, "New")
    assert "Old" in path.read_text() and list(tmp_path.iterdir()) == [path]
