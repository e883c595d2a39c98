"""Downloads that end in a verified file or in one sentence, never in half a file."""

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, cast

from dubito.data.errors import DataError
from dubito.data.formats import read_numbers

CHUNK = 1 << 18
TIMEOUT = 20.0


@dataclass(frozen=True)
class Remote:
    """Where one file can be had (the same file at every address) and its checksum.

    `digest` is "sha256:...", "md5:..." or "values:...": the last is the SHA-256 of the numbers of a text table as
    little-endian float64 in row order, for files whose numbers are known but whose bytes are not.
    """

    urls: tuple[str, ...]
    digest: str


class _Failed(Exception):
    """One address did not give the file."""


def fetch(remote: Remote, target: Path) -> None:
    """Download to `target`, trying one address after another; the file appears only once its checksum is right."""
    failures = []
    for url in remote.urls:
        try:
            return _fetch_from(url, remote.digest, target)
        except _Failed as failure:
            failures.append(f"{url}: {failure}")
    raise DataError(
        f"could not download {target.name} ({'; '.join(failures)}): try again, or put the file at {target} by hand."
    )


def digest(path: Path, kind: str) -> str:
    """The checksum of a file in the form of `Remote.digest`."""
    if kind == "values":
        return f"values:{hashlib.sha256(read_numbers(path).astype('<f8').tobytes()).hexdigest()}"
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


def _fetch_from(url: str, expected: str, target: Path) -> None:
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with _open(url) as source:
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as sink:
                _copy(source, sink, target.name)
        _verify(part, expected)
        part.replace(target)
    except OSError as error:
        raise DataError(
            f"cannot write {target} ({error.strerror or error}): name a folder with room that you may write to, "
            "by folder= or DUBITO_DATA."
        ) from error
    finally:
        with suppress(OSError):
            part.unlink()


def _open(url: str) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "dubito"})
    try:
        return cast(http.client.HTTPResponse, urllib.request.urlopen(request, timeout=TIMEOUT))
    except urllib.error.HTTPError as error:
        error.close()
        raise _Failed(f"the server answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _Failed(f"no connection, {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Failed(f"no connection, {error}") from error


def _copy(source: http.client.HTTPResponse, sink: BinaryIO, label: str) -> None:
    total = int(source.headers.get("Content-Length") or 0)
    done = 0
    with _progress(label, total) as advance:
        while block := _read(source):
            sink.write(block)
            done += len(block)
            advance(len(block))
    if total and done != total:
        raise _Failed(f"the transfer broke off after {done:,} of {total:,} bytes")


def _read(source: http.client.HTTPResponse) -> bytes:
    try:
        return source.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _Failed(f"the transfer broke off, {error}") from error


def _verify(path: Path, expected: str) -> None:
    kind = expected.partition(":")[0]
    try:
        found = digest(path, kind)
    except ValueError as error:
        raise _Failed("what came is not a table of numbers") from error
    if found != expected:
        raise _Failed(f"wrong checksum, {found} instead of {expected}")


@contextmanager
def _progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, silence elsewhere."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total or None)
        yield lambda step: bar.advance(task, step)
