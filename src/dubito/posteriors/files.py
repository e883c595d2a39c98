"""Posterior folders: a readable manifest `posterior.json`, safetensors beside it, no pickle."""

import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from dubito.config import to_dict
from dubito.likelihoods import Likelihood
from dubito.net import Net
from dubito.nn import recipe
from dubito.posteriors.storage import BUFFER, THETA, Damaged, SampleWriter, StoredSamples

FORMAT = 1
MANIFEST = "posterior.json"
CONSTANTS = "constants.safetensors"


def write_atomically(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write beside and rename, so that a half-written file is never read; full or closed disks get one sentence."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise explain(error, path.parent) from error


def explain(error: OSError, folder: Path) -> OSError:
    """The same error in a sentence that says what is left and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OSError(
            error.errno,
            f"the disk is full; what was written before in {folder} stays readable: free some "
            "space and run the same call again to continue",
        )
    if error.errno == errno.EFBIG:
        return OSError(
            error.errno,
            f"a file may not grow larger here; what was written before in {folder} stays readable: raise the "
            "limit (ulimit -f) and run the same call again to continue",
        )
    return OSError(error.errno, f"cannot write to {folder} ({error.strerror}); choose a folder you may write to")


def make_folder(path: str | Path) -> Path:
    """A folder to write to, made where it is missing."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain(error, folder) from error
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, f"cannot write to {folder}; choose a folder you may write to")
    return folder


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Put a manifest in place."""
    write_atomically(folder / MANIFEST, json.dumps({"format": FORMAT, **manifest}, indent=1).encode())


def read_manifest(path: str | Path) -> tuple[Path, dict[str, Any]]:
    """The folder that holds a posterior, and its manifest; a run's folder leads to the posterior inside."""
    folder = Path(path)
    if not (folder / MANIFEST).exists() and (folder / "posterior" / MANIFEST).exists():
        folder = folder / "posterior"
    if not (folder / MANIFEST).exists():
        raise FileNotFoundError(f"{path} holds no posterior: {_why_none(folder)}")
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        version = int(manifest["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{folder / MANIFEST} is damaged ({error}); restore it or fit again") from error
    if version > FORMAT:
        raise Damaged(f"{folder} has format {version} but this dubito reads up to {FORMAT}; install a newer dubito")
    return folder, manifest


def _why_none(folder: Path) -> str:
    if not folder.exists():
        return "there is no such folder; check the path"
    if (folder / "run.json").exists():
        return "no sample has been kept yet; let its run go on by the call that began it"
    return f"there is no {MANIFEST} in it; give the folder of a run, or one that posterior.save() wrote"


class SampleFolder:
    """A posterior folder of weight samples that grows row by row and is loadable after the first."""

    def __init__(self, folder: str | Path, manifest: Mapping[str, Any], rows: int = 0) -> None:
        self.folder, self.manifest, self.rows = make_folder(folder), dict(manifest), rows
        self._writer: SampleWriter | None = None
        self._most = self._readable()

    def append(self, theta: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Write one row: a weight vector (chains, D) and statistics for each chain."""
        row = {THETA: theta, **{BUFFER + n: b for n, b in buffers.items()}}
        try:
            self._writer = self._writer or SampleWriter(self.folder, row, self.rows)
            self._writer.append(row)
        except OSError as error:
            raise explain(error, self.folder) from error
        self.rows, self.manifest["chains"] = self._writer.rows, len(theta)

    def publish(self) -> None:
        """Tell readers of the rows written so far; a run that goes over old rows again takes none back."""
        if self.rows > self._most and self._writer is not None:
            write_manifest(self.folder, {**self.manifest, **self._writer.layout()})
            self._most = self.rows

    def finish(self) -> None:
        """Cut the last shard to its true size."""
        try:
            if self._writer is not None:
                self._writer.finish()
        except OSError as error:
            raise explain(error, self.folder) from error

    def _readable(self) -> int:
        try:
            return int(json.loads((self.folder / MANIFEST).read_text())["rows"])
        except (OSError, ValueError, KeyError):
            return 0


def describe(net: Net, likelihood: Likelihood, kind: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a manifest that says what the vectors mean."""
    return {
        "kind": kind,
        "net": recipe(net.module),
        "names": list(net.layout.names),
        "shapes": [list(s) for s in net.layout.shapes],
        "fixed": sorted(net.fixed),
        "dtype": str(net.dtype).removeprefix("torch."),
        "likelihood": to_dict(likelihood),
        "about": dict(about),
    }


def save_constants(folder: Path, net: Net) -> None:
    """Fixed parameters and buffers, which the vectors do not hold."""
    held = {f"parameter/{n}": p for n, p in net.constants().items()}
    held |= {f"buffer/{n}": b.detach() for n, b in net.module.named_buffers(remove_duplicate=True)}
    write_atomically(folder / CONSTANTS, save({n: t.cpu().contiguous().clone() for n, t in held.items()}))


def save_tensors(
    folder: str | Path, posterior: Any, name: str, tensors: Mapping[str, Tensor], extra: Mapping[str, Any] | None = None
) -> None:
    """Write a posterior that is a few named tensors in one file."""
    path = _fresh_folder(folder)
    save_constants(path, posterior.net)
    write_atomically(path / name, save({n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}))
    described = describe(posterior.net, posterior.likelihood, posterior.kind, posterior.about)
    write_manifest(path, {**described, **(extra or {})})


def load_tensors(folder: Path, name: str, net: Net, needed: Sequence[str]) -> dict[str, Tensor]:
    """The tensors of such a posterior, where its network lies; those that are needed come first."""
    try:
        held = {n: t.clone() for n, t in load_file(folder / name, device=str(net.device)).items()}  # aligned
        return {n: held[n] for n in needed} | held
    except (OSError, SafetensorError, KeyError) as error:
        raise Damaged(f"{folder / name} is missing or damaged ({error}); restore it or fit again") from error


def _fresh_folder(folder: str | Path) -> Path:
    """A folder to write to that holds no posterior yet."""
    path = make_folder(folder)
    if (path / MANIFEST).exists():
        raise FileExistsError(f"{path} already holds a posterior; choose another folder or remove it first")
    return path


def save_samples(folder: str | Path, posterior: Any, extra: Mapping[str, Any]) -> None:
    """Write a posterior made of weight samples, a few rows at a time."""
    samples = posterior.samples
    if isinstance(samples, StoredSamples) and Path(folder).resolve() == samples.folder.resolve():
        return
    path = _fresh_folder(folder)
    manifest = {**describe(posterior.net, posterior.likelihood, posterior.kind, posterior.about), **extra}
    save_constants(path, posterior.net)
    writer = SampleFolder(path, manifest)
    for row in range(samples.rows):
        first = row * samples.chains
        writer.append(*samples.get(range(first, first + samples.chains)))
    writer.finish()
    writer.publish()
