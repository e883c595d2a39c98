"""Published experiments that can be run again, one file each; published figures beside measured ones.

A file of this package that holds a `Study` is a study: `names` lists them, `run` runs one and keeps what it found.
"""

import importlib
import pkgutil
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from dubito.config import suggestion
from dubito.report import print_result, write_figures, write_markdown
from dubito.results import Result, environment
from dubito.studies.base import Gathered, Settings, Study, gather

__all__ = ["Gathered", "Settings", "Study", "find", "gather", "names", "run", "write_docs"]

QUICK = "quick"  # below the results folder: quick results never overwrite full ones
FIGURES = "figures"
RUNS = "runs"


@cache
def _registry() -> dict[str, Study]:
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Study)]
    return {study.name: study for study in sorted(found, key=lambda study: study.name)}


def names() -> tuple[str, ...]:
    """The studies there are, in alphabetical order."""
    return tuple(_registry())


def find(name: str) -> Study:
    """A study by its name."""
    if name not in _registry():
        raise ValueError(f"there is no study {name!r}; {suggestion(name, names())}")
    return _registry()[name]


def run(
    name: str,
    *,
    quick: bool = False,
    device: str = "auto",
    folder: str | Path = "results",
    seed: int = 0,
    progress: bool = True,
    workers: int = 1,
) -> Result:
    """Run a study, write NAME.json and its figures into `folder`, and print what it found.

    A quick run is too small to be compared with anything and goes to `folder`/quick. Long fits keep themselves below
    `folder`/runs: a study that was stopped goes on, and one that has finished is only scored again. Studies in pieces
    use several `workers`, processes that start afresh: a script needs its `if __name__ == "__main__":` for them.
    """
    study = find(name)
    if workers < 1:
        raise ValueError(f"workers is {workers}; there must be at least 1")
    where = _writable(Path(folder) / QUICK if quick else Path(folder))
    settings = Settings(quick, device, seed, progress, None if quick else where / RUNS / f"{name}-{seed}", workers)
    start, ran_on = time.perf_counter(), {**environment(), **_hardware(device)}  # of the code that runs, not of its end
    found = study.run(settings)
    result = _completed(found, study, settings, {**ran_on, "seconds": round(time.perf_counter() - start, 1)})
    written = [result.save(where / f"{study.name}.json"), *write_figures(result, where / FIGURES)]
    print_result(result)
    print("\nWritten:", *written, sep="\n  ")
    return result


def write_docs(folder: str | Path = "results", path: str | Path = "docs/results.md") -> Path:
    """Make the page of all results in `folder`, with links to the figures beside them."""
    folder, path = Path(folder), Path(path)
    results = [_explained(Result.load(one)) for one in sorted(folder.glob("*.json"))]
    if not results:
        raise FileNotFoundError(f"{folder} holds no result; run a study first, for example `dubito study coin`.")
    write_markdown(results, path, figures=folder / FIGURES)
    path.write_text(_heading(results) + path.read_text(encoding="utf-8"), encoding="utf-8")
    return path


def _completed(result: Result, study: Study, settings: Settings, ran_on: dict[str, Any]) -> Result:
    """The result with its source in the summary, the settings of the run, and where and how long it ran."""
    warning = "A quick run: far too small to be compared with anything." if settings.quick else ""
    chosen = {key: value for key, value in asdict(settings).items() if key not in ("progress", "work", "workers")}
    return replace(
        result,
        name=study.name,
        title=study.title,
        summary="\n\n".join(filter(None, (warning, result.summary, study.why, f"Source: {study.source}"))),
        settings={**chosen, **result.settings},
        environment=ran_on,
    )


def _explained(result: Result) -> Result:
    """With what of the study's present view of why figures differ the result was written without."""
    why = _registry()[result.name].why if result.name in _registry() else ""
    missing = [sentence for sentence in re.split(r"(?<=\.) ", why) if sentence not in result.summary]
    return replace(result, summary="\n\n".join(filter(None, (result.summary, " ".join(missing)))))


def _hardware(device: str) -> dict[str, Any]:
    import torch

    from dubito.runtime import pick_device

    used = pick_device(device)
    gpu = {"gpu": torch.cuda.get_device_name(used)} if used.type == "cuda" else {}
    return {"device": str(used), "threads": torch.get_num_threads(), **gpu}


def _writable(folder: Path) -> Path:
    """The folder, made if need be, and tried before hours of work depend on it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise ValueError(f"cannot write to {folder} ({error.strerror}); choose another folder.") from error


def _heading(results: Sequence[Result]) -> str:
    rows = [f"| `{r.name}` | {_shows(r)} | {_duration(r)} |" for r in results]
    return "\n".join(
        (
            "# Results",
            "",
            "What the studies measured, with published figures beside it where there are any. This page is made from",
            "`results/` by `dubito.studies.write_docs()`; `dubito study NAME` runs a study again.",
            "",
            "| study | what it shows | took |",
            "| --- | --- | ---: |",
            *rows,
            "\n",
        )
    )


def _shows(result: Result) -> str:
    return _registry()[result.name].shows if result.name in _registry() else result.title


def _duration(result: Result) -> str:
    seconds = result.environment.get("seconds")
    return "–" if seconds is None else f"{seconds:.0f} s"
