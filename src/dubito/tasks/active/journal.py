"""What an active-learning run has asked, learnt and measured so far: one JSON file, replaced as a whole."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dubito.config import difference
from dubito.posteriors.files import make_folder, write_atomically

FILE = "active.json"
FORMAT = 1


@dataclass
class Block:
    """Rows chosen together, their labels once known, and scores once a posterior has learnt from them."""

    chosen: list[int]
    labels: list[int] | None = None
    scores: dict[str, float] | None = None


@dataclass
class Journal:
    """All blocks in order; in memory alone where there is no folder."""

    settings: dict[str, Any]
    folder: Path | None = None
    blocks: list[Block] = field(default_factory=list)
    judged_on: str | None = None  # the rows behind the scores, by their digest

    @classmethod
    def open(cls, folder: str | Path | None, settings: Mapping[str, Any]) -> "Journal":
        """Begin, or go on where the folder left off; other settings are refused with what differs."""
        plain = _plain(settings)
        if folder is None:
            return cls(plain)
        path = make_folder(folder)
        if not (path / FILE).exists():
            return cls(plain, path)
        try:
            record = json.loads((path / FILE).read_text(encoding="utf-8"))
            if record["format"] > FORMAT:
                raise ValueError(f"format {record['format']} is newer than this dubito")
            blocks = [Block(**block) for block in record["blocks"]]
            there, judged_on = record["settings"], record.get("judged_on")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path / FILE} is damaged ({error}); restore it, or begin in another folder") from error
        if other := difference(there, plain):
            raise ValueError(f"{path} holds a run with other settings ({'; '.join(other)}); choose another folder")
        return cls(plain, path, blocks, judged_on)

    def judge_on(self, digest: str) -> None:
        """Scores are on these rows from now on: those on others, or on none, are forgotten and made again."""
        for block in self.blocks:
            if not block.scores or self.judged_on not in (None, digest):
                block.scores = None
        self.judged_on = digest

    def save(self) -> None:
        """Put the present state in place, durably: a person's work is in it."""
        if self.folder is not None:
            blocks = [asdict(block) for block in self.blocks]
            record = {"format": FORMAT, "settings": self.settings, "judged_on": self.judged_on, "blocks": blocks}
            write_atomically(self.folder / FILE, json.dumps(record, indent=1).encode(), durable=True)

    @property
    def rows(self) -> list[int]:
        """Every row that has a label, in the order they were asked for."""
        return [i for block in self.blocks if block.labels is not None for i in block.chosen]

    @property
    def labels(self) -> list[int]:
        """Their labels."""
        return [y for block in self.blocks for y in block.labels or ()]


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they come back from the file."""
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(settings), default=_listed))
    except TypeError as error:
        raise ValueError(f"what {FILE} notes must be plain values ({error}); give numbers, text and lists") from error
    return found


def _listed(value: object) -> Any:
    """Numbers and arrays of numpy or torch as JSON knows them."""
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    raise TypeError(f"{value!r} is none")
