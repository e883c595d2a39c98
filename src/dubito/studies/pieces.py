"""A long study in pieces that know nothing of each other: several at a time, and none done twice.

Every piece is a call of one function, whose answer is plain values. Answers are kept below the study's work folder as
soon as they are there, so that a study that was stopped goes on; one made by other code or from other arguments is made
again.
"""

import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from dubito.posteriors.files import write_atomically
from dubito.progress import track
from dubito.results import environment
from dubito.runtime import pool
from dubito.studies.base import Settings

Job = Callable[..., Any]  # of the arguments of a piece, and of settings


def answers(job: Job, pieces: Mapping[str, tuple[Any, ...]], settings: Settings) -> dict[str, Any]:
    """What `job(*arguments, settings)` says for every piece by its name, in `settings.workers` processes.

    Arguments must be what JSON knows and the job a function of a module, since processes start afresh.
    """
    kept = _Kept(settings.folder("pieces"))
    found = {name: kept.answer(name, arguments) for name, arguments in pieces.items()}
    missing = [name for name, answer in found.items() if answer is None]
    with pool(max(1, min(settings.workers, len(missing)))) as processes:
        if processes is None:
            for name in track(missing, len(missing), "pieces", settings.progress):
                found[name] = kept.keep(name, pieces[name], job(*pieces[name], settings))
            return found
        quiet = replace(settings, progress=False)
        under_way = {processes.submit(job, *pieces[name], quiet): name for name in missing}
        try:
            for done in track(as_completed(under_way), len(missing), "pieces", settings.progress):
                name = under_way[done]
                found[name] = kept.keep(name, pieces[name], done.result())
        except BaseException:
            processes.shutdown(cancel_futures=True)
            raise
    return found


class _Kept:
    """Answers in files."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.code = environment()["commit"]

    def answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """What was kept by the same code for the same arguments; None where there is nothing."""
        path = self._path(name)
        if path is None or not path.is_file():
            return None
        held = json.loads(path.read_text(encoding="utf-8"))
        return held["answer"] if (held["code"], held["arguments"]) == (self.code, list(arguments)) else None

    def keep(self, name: str, arguments: tuple[Any, ...], answer: Any) -> Any:
        """The answer, as JSON gives it back."""
        text = json.dumps({"code": self.code, "arguments": list(arguments), "answer": answer})
        path = self._path(name)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
        return json.loads(text)["answer"]

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / (re.sub(r"[^A-Za-z0-9.]+", "-", name) + ".json")
