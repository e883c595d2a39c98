"""Tables of the documentation that show what benchmarks measured: `python -m benchmarks.tables` writes them anew."""

import json
import math
from itertools import product
from pathlib import Path

from benchmarks.estimator_gap import NETS, SCALES, SEEN

PAGE, MEASURED = Path("docs/variational.md"), Path("benchmarks/measured/estimator-gap-cpu.json")
BEGIN, END = "<!-- made by python -m benchmarks.tables -->\n", "<!-- end -->\n"


def estimator_gaps(measured: Path = MEASURED) -> str:
    """How far the gradients of local and flipout lie from those of whole weight draws."""
    values = {name: numbers[0] for name, numbers in json.loads(measured.read_text())["values"].items()}
    lines = ["| network | std | local | flipout |", "| --- | --- | --- | --- |"]
    for (label, what), scale in product(NETS.items(), SCALES):
        cells = [
            _gap(*(values[f"{label}, std {scale:g}, {estimator}: {of}"] for of in ("relative gap", "a gap by chance")))
            for estimator in ("local", "flipout")
        ]
        lines.append(f"| {what} | {scale:g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _gap(gap: float, error: float) -> str:
    """The gap where chance does not explain it, otherwise what it lies below, two standard errors up."""
    return (
        f"{gap:.0%}".replace("%", " %")
        if gap > SEEN * error
        else f"none seen (below {math.ceil(100 * (gap + 2 * error))} %)"
    )


def renewed(page: str) -> str:
    """A page with its table made anew."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{estimator_gaps()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
