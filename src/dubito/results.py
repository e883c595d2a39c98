"""Results: what a task or study found, and the only input of reports.

A `Result` holds numbers, tables, figures, settings and environment as JSON and its arrays in one `.npz` beside it. A
`Figure` is data and labels, not pixels: `dubito.plots` makes one of each kind, `dubito.report` draws it. NumPy arrays
may stand anywhere in a figure: small ones are stored inside the JSON, large ones by name in the `.npz`.
"""

import hashlib
import io
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["lines", "bars", "histogram", "reliability", "images", "field", "bands", "scatter"]
Cell: TypeAlias = "str | int | float | None"
Array: TypeAlias = "np.ndarray[Any, Any]"

FORMAT = 1
_INLINE = 256  # arrays with more numbers than this go to the .npz


@dataclass(frozen=True)
class Table:
    """Rows under columns; None prints as a dash, floats with four digits unless `formats` has the column's own spec."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    formats: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = tuple(tuple(_plain(cell, self.title) for cell in row) for row in self.rows)
        for row in rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r} has {len(self.columns)} columns, but the row {row!r} does not.")
        for name in self.formats:
            if name not in self.columns:
                raise ValueError(f"table {self.title!r} has a format for {name!r}, which is none of its columns.")
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", rows)


@dataclass(frozen=True, eq=False)
class Panel:
    """The data of one set of axes."""

    data: Mapping[str, Any]
    title: str = ""


@dataclass(frozen=True, eq=False)
class Figure:
    """A picture as data: one panel or several of one kind side by side; `options` hold for all of them."""

    name: str
    kind: Kind
    title: str
    panels: Sequence[Panel]
    caption: str = ""
    x_label: str = ""
    y_label: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name("figure", self.name)
        if self.kind not in get_args(Kind):
            raise ValueError(
                f"figure {self.name!r} is of kind {self.kind!r}; choose one of {', '.join(get_args(Kind))}."
            )
        if not self.panels:
            raise ValueError(f"figure {self.name!r} has no panel; give it at least one.")
        object.__setattr__(self, "panels", tuple(self.panels))


@dataclass(frozen=True, eq=False)
class Result:
    """What was found, under which settings, on which machine; saved as NAME.json with its arrays in NAME.npz."""

    name: str
    title: str
    summary: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name("result", self.name)
        names = [figure.name for figure in self.figures]
        if len(set(names)) < len(names):
            raise ValueError(f"result {self.name!r} has two figures of one name among {names!r}; rename one.")
        for key in ("numbers", "settings", "environment"):
            object.__setattr__(self, key, _plain(getattr(self, key), key))
        object.__setattr__(self, "tables", tuple(self.tables))
        object.__setattr__(self, "figures", tuple(self.figures))

    def save(self, path: str | Path) -> Path:
        """Write the JSON at `path` and the arrays beside it; each file appears whole or not at all."""
        path = _json_path(path)
        arrays = {f"arrays/{name}": array for name, array in self.arrays.items()}
        record = {"format": FORMAT} | {f.name: _pack(getattr(self, f.name), arrays, f.name) for f in fields(self)[:-1]}
        made_folder(path.parent)
        if arrays:
            content = _npz_bytes(arrays)
            beside = path.with_suffix(".npz")
            write_whole(beside, content)
            record["arrays"] = {"file": beside.name, "sha256": hashlib.sha256(content).hexdigest()}
        write_whole(path, (_dumps(record) + "\n").encode())
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Result":
        """Read what `save` wrote; a damaged, foreign or newer file raises ValueError."""
        path = _json_path(path)
        record = _read_json(path)
        arrays = _read_npz(path, record.get("arrays"))
        try:
            values = {f.name: _unpack(record[f.name], arrays) for f in fields(cls)[:-1]}
            values["tables"] = [Table(**table) for table in values["tables"]]
            values["figures"] = [_figure(figure) for figure in values["figures"]]
            own = {key.removeprefix("arrays/"): array for key, array in arrays.items() if key.startswith("arrays/")}
            return cls(**values, arrays=own)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged or no dubito result ({error!r}); make it again.") from error


def published_beside_measured(
    title: str, rows: Iterable[tuple[str, float | None, float | None, str]], note: str = ""
) -> Table:
    """A table of (quantity, published, measured, note) with the difference measured - published worked out."""
    filled = [(what, old, new, None if old is None or new is None else new - old, why) for what, old, new, why in rows]
    columns = ("quantity", "published", "measured", "difference", "note")
    return Table(title, columns, filled, note, formats={"published": "g", "difference": "+.2g"})


def environment() -> dict[str, str | int | None]:
    """Where and with what a result was made: machine, versions, the commit of dubito's own checkout, time."""
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "dubito": _version("dubito"),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "commit": _commit(Path(__file__).parent),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _commit(folder: Path) -> str | None:
    """The commit of the checkout that tracks `folder`, with -dirty if files in it differ; None outside of one."""
    if not _git(folder, "ls-files"):
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    return f"{commit}-dirty" if commit and _git(folder, "status", "--porcelain", "--", ".") else commit


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _figure(record: Mapping[str, Any]) -> Figure:
    return Figure(**{**record, "panels": [Panel(**panel) for panel in record["panels"]]})


def _check_name(what: str, name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"{what} name {name!r} must be usable as a file name: letters, digits, '.', '_' and '-' only.")


def _json_path(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix != ".json":
        raise ValueError(f"a result is stored in a .json file, not in {str(path)!r}; end the name in .json.")
    return path


def _is_array(value: object) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "tolist")


def _plain(value: Any, where: str) -> Any:
    """Only what JSON knows: NumPy scalars and arrays become numbers and lists, anything else is refused."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if str(key).startswith("$"):
                raise ValueError(f"the key {key!r} in {where} is reserved; begin it with something other than '$'.")
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if _is_array(value):
        return value.tolist()
    raise ValueError(f"{where} holds a {type(value).__name__}, which JSON cannot store; give numbers, text or lists.")


def _pack(value: Any, arrays: dict[str, Array], where: str) -> Any:
    """JSON for `value`; large arrays are moved to `arrays` and named in their place."""
    if isinstance(value, Table | Panel | Figure):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _pack(item, arrays, f"{where}/{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        names = [item.name if isinstance(item, Figure) else str(i) for i, item in enumerate(value)]
        return [_pack(item, arrays, f"{where}/{name}") for name, item in zip(names, value, strict=True)]
    if _is_array(value) and math.prod(value.shape) > _INLINE:
        known = [name for name, array in arrays.items() if array is value]
        name = known[0] if known else where
        arrays[name] = value
        return {"$array": name}
    value = _plain(value, where)
    if isinstance(value, list):
        return _pack(value, arrays, where)
    return {"$float": repr(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _unpack(value: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$array"}:
            return arrays[value["$array"]]
        if value.keys() == {"$float"}:
            return float(value["$float"])
        return {key: _unpack(item, arrays) for key, item in value.items()}
    return [_unpack(item, arrays) for item in value] if isinstance(value, list) else value


def _dumps(value: Any, indent: str = "") -> str:
    """JSON with one line per key, but lists of plain values on one line: short, and readable in a diff."""
    inner = indent + " "
    if isinstance(value, dict) and value:
        items = [f"{inner}{json.dumps(k, ensure_ascii=False)}: {_dumps(v, inner)}" for k, v in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + _dumps(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _npz_bytes(arrays: Mapping[str, Array]) -> bytes:
    import numpy as np

    plain: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in plain.items():
        if array.dtype.hasobject:
            raise ValueError(f"array {name!r} holds Python objects, which are not stored; give it a numeric dtype.")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **plain)
    return buffer.getvalue()


def made_folder(folder: str | Path) -> Path:
    """A folder for what is written, made where it is missing."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"cannot write to {folder} ({error.strerror}); choose a folder you may write to"
        raise OSError(error.errno, why) from error
    return Path(folder)


def write_whole(path: Path, content: bytes) -> None:
    """Write beside and rename, so that a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        why = f"cannot write {path} ({error.strerror or error}); make room, or choose a place you may write to"
        raise OSError(error.errno, why) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"there is no result at {str(path)!r}; run the study or task that writes it.")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        version = record["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or no dubito result ({error}); make it again.") from error
    if version != FORMAT:
        raise ValueError(
            f"{path} has format {version!r}, this dubito reads {FORMAT}; read it with the version that wrote it."
        )
    return dict(record)


def _read_npz(path: Path, entry: Mapping[str, str] | None) -> dict[str, Array]:
    if entry is None:
        return {}
    import numpy as np

    beside = path.with_name(entry["file"])
    if not beside.exists():
        raise ValueError(f"{path} needs its arrays in {beside.name}, which is missing; keep both files together.")
    content = beside.read_bytes()
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise ValueError(f"{beside} is damaged or belongs to another result than {path.name}; make the result again.")
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
