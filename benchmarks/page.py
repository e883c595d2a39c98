"""Make docs/performance.md from what was measured: `python -m benchmarks.page [--measured FOLDER] [--out FILE]`."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dubito import plots
from dubito.plots import Series
from dubito.report import write_markdown
from dubito.results import Cell, Figure, Result, Table

SHOWN = ("gpu", "cpu", "python", "torch", "cuda", "bayesian-torch", "torchbnn", "posteriors", "commit", "time")
UNITS = {"seconds": "seconds", "MiB": "peak memory, MiB"}
TITLES = {"seconds": "Time against {}", "MiB": "Peak memory against {}"}
DIGITS = {"measured": ".4g"}
MACHINES = {"cuda": "GPU", "cpu": "CPU"}
Record = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> Path:
    """Read every file of the folder and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--measured", type=Path, default=Path("benchmarks/measured"))
    parser.add_argument("--out", type=Path, default=Path("docs/performance.md"))
    options = parser.parse_args(arguments)
    return write_page(options.measured, options.out)


def write_page(measured: Path, path: Path) -> Path:
    """All claims in one table, then each benchmark with its numbers and figures; a GPU's come first."""
    found = [json.loads(file.read_text()) for file in sorted(measured.glob("*.json"))]
    if not found:
        raise FileNotFoundError(f"{measured} holds no measurement; run `python -m benchmarks` first")
    ordered = sorted(found, key=lambda record: (record["device"] != "cuda", record["name"]))
    write_markdown([_summary(ordered), *map(_result, ordered)], path)
    path.write_text(HEADING + path.read_text(encoding="utf-8"), encoding="utf-8")
    return path


HEADING = """# Performance

What `make bench` measured on a CPU and `python -m benchmarks --device cuda` on a GPU. A floor is the same job written
by hand for its own shapes, compiled and recorded as a CUDA graph; a peer is another library, written as its users write
it; both are measured in the same run as dubito. Numbers are medians with their extremes. Peak memory is that of tensors
on a GPU, and what the process takes beyond its start on a CPU. This page is made from `benchmarks/measured/` by
`python -m benchmarks.page`.

"""


def _summary(records: Sequence[Record]) -> Result:
    rows: list[tuple[Cell, ...]] = [
        (MACHINES[r["device"]], _title(r), c["what"], c["measured"], _limit(c), _verdict(c))
        for r in records
        for c in r.get("claims", ())
        if _limit(c)
    ]
    broken = [(MACHINES[r["device"]], _title(r), r["broke off"], None, "", "no") for r in records if "broke off" in r]
    columns = ("on", "benchmark", "claim", "measured", "claimed", "holds")
    return Result("claims", "Claims", tables=[Table("All claims", columns, rows + broken, formats=DIGITS)])


def _title(record: Record) -> str:
    return str(record["title"]).partition(", ")[0]


def _limit(claim: Record) -> str:
    words = {"at least": claim["least"], "at most": claim["most"]}
    return " and ".join(f"{word} {limit:.4g}" for word, limit in words.items() if limit is not None)


def _verdict(claim: Record) -> str | None:
    """Whether it holds; nothing is said of a number that is only shown."""
    if not _limit(claim):
        return None
    return "yes" if claim["holds"] else "no"


def _result(record: Record) -> Result:
    where = {key: record["environment"][key] for key in SHOWN if record["environment"].get(key)}
    return Result(
        f"{record['name']}-{record['device']}",
        f"{record['title']} ({MACHINES[record['device']]})",
        summary=record.get("broke off", ""),
        tables=_tables(record),
        figures=_figures(record.get("curves") or {}),
        environment={**where, "threads": record["threads"]},
    )


def _tables(record: Record) -> list[Table]:
    memory, unit = record.get("memory MiB") or {}, record.get("unit", "")
    peak = any(memory.values())
    heads = ("", f"median {unit}".strip(), "least", "most", "rounds", *(("peak MiB",) if peak else ()))
    rows: list[tuple[Cell, ...]] = [
        (label, median(v), min(v), max(v), len(v), *((memory.get(label),) if peak else ()))
        for label, v in (record.get("values") or {}).items()
    ]
    claims = [(c["what"], c["measured"], _limit(c) or None, _verdict(c)) for c in record.get("claims", ())]
    columns = ("claim", "measured", "claimed", "holds")
    failed = (record.get("notes") or {}).get("failed") or {}
    note = "; ".join(f"{name}: {why}" for name, why in failed.items())
    made = [Table("Measured", heads, rows, note=note)] if rows or note else []
    return made + ([Table("Claims", columns, claims, formats=DIGITS)] if claims else [])


def _figures(curves: Mapping[str, Mapping[str, Sequence[Record]]]) -> list[Figure]:
    return [figure for axis, jobs in curves.items() for key in UNITS if (figure := _figure(axis, jobs, key))]


def _figure(axis: str, jobs: Mapping[str, Sequence[Record]], key: str) -> Figure | None:
    """A job's curve, with its extremes where there are several rounds; None where nothing was measured."""
    series = [one for job, points in jobs.items() if (one := _series(job, points, key)) is not None]
    if not series:
        return None
    title = TITLES[key].format(axis)
    name = f"{axis}-{key.lower()}"
    return plots.lines(name, title, series, x_label=axis, y_label=UNITS[key], log_x=True, log_y=True)


def _series(job: str, points: Sequence[Record], key: str) -> Series | None:
    kept = [point for point in points if point[key]]
    if not kept:
        return None
    x = [point["at"] for point in kept]
    if key == "MiB":
        return Series(job, [point[key] for point in kept], x)
    rounds = [point[key] for point in kept]
    return Series(job, [median(r) for r in rounds], x, [min(r) for r in rounds], [max(r) for r in rounds])


if __name__ == "__main__":
    print(main())
