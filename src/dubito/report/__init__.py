"""Reports: a Result in; a terminal table, a self-contained page, Markdown or PNG files out."""

from dubito.report.figures import write_figures
from dubito.report.page import write_html, write_markdown
from dubito.report.terminal import print_result

__all__ = ["print_result", "write_figures", "write_html", "write_markdown"]
