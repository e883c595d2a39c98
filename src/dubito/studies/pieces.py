"""A long study in pieces that know nothing of each other: several at a time, and none done twice.

Every piece is a call of one function, whose answer is plain values. Answers are kept below the study's work folder as
soon as they are there, so that a study that was stopped goes on; one made by other code or from other arguments is made
again. Where an answer is a posterior, which no file of answers holds, `ahead` makes the fits instead.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import as_completed
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dubito.posteriors.files import write_atomically
from dubito.progress import track
from dubito.runtime import pool
from dubito.studies.base import Settings, slug

Job = Callable[..., Any]  # of the arguments of a piece, and of settings


def answers(job: Job, pieces: Mapping[str, tuple[Any, ...]], settings: Settings) -> dict[str, Any]:
    """What `job(*arguments, settings)` says for every piece by its name, in `settings.workers` processes.

    Arguments must be what JSON knows and the job a function of a module, since processes start afresh.
    """
    kept = _Kept(settings.folder("pieces"))
    found = {name: kept.answer(name, arguments) for name, arguments in pieces.items()}
    missing = [name for name, answer in found.items() if answer is None]
    for name, answer in _each(job, {name: pieces[name] for name in missing}, settings):
        found[name] = kept.keep(name, pieces[name], answer)
    return found


def ahead(job: Job, pieces: Mapping[str, tuple[Any, ...]], settings: Settings) -> None:
    """Let several processes make fits that keep themselves in folders, for those to find that ask for them next.

    Does nothing where there are no folders or no processes: who asks next makes the fits then.
    """
    if settings.work is not None and settings.workers > 1:
        for _ in _each(partial(_silently, job), pieces, settings):
            pass


def _silently(job: Job, *arguments: Any) -> None:
    job(*arguments)


def _each(job: Job, pieces: Mapping[str, tuple[Any, ...]], settings: Settings) -> Iterator[tuple[str, Any]]:
    """Names and answers as they come, in the order of the pieces where there is one process."""
    with pool(max(1, min(settings.workers, len(pieces)))) as processes:
        if processes is None:
            for name in track(list(pieces), len(pieces), "pieces", settings.progress):
                yield name, job(*pieces[name], settings)
            return
        quiet = replace(settings, progress=False)
        under_way = {processes.submit(job, *arguments, quiet): name for name, arguments in pieces.items()}
        try:
            for done in track(as_completed(under_way), len(pieces), "pieces", settings.progress):
                yield under_way[done], done.result()
        except BaseException:
            processes.shutdown(wait=False, cancel_futures=True)
            raise


def sources() -> str:
    """Tells the package from itself after a change, whether that was committed or not; other commits change nothing."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class _Kept:
    """Answers in files."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.code = sources()

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
        return None if self.folder is None else self.folder / f"{slug(name)}.json"
