"""What a study is, and what studies share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dubito.data import DataError, DataSet, load
from dubito.results import Result


@dataclass(frozen=True)
class Settings:
    """How a study is run: `quick` asks for the smallest version that still runs every line."""

    quick: bool = False
    device: str = "auto"
    seed: int = 0
    progress: bool = True


@dataclass(frozen=True)
class Study:
    """A published experiment, or a measurement of our own, that can be run again."""

    name: str
    """As typed on the command line, with dashes; also the name of its result."""
    title: str
    source: str
    """Whose experiment it is; ends a summary."""
    shows: str
    """What it shows, in one sentence for the list of studies."""
    run: Callable[[Settings], Result]


@dataclass(frozen=True)
class Gathered:
    """The data sets that could be had, by name, and for each other one the reason."""

    sets: dict[str, DataSet]
    missing: dict[str, str]

    @property
    def note(self) -> str:
        """What a summary says about the missing sets; nothing where none is missing."""
        return f"Run without {', '.join(self.missing)}, not found here." if self.missing else ""


def gather(names: Sequence[str]) -> Gathered:
    """Load data sets by name and go on without those that cannot be had, unless none can."""
    sets: dict[str, DataSet] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            sets[name] = load(name)
        except DataError as error:
            missing[name] = str(error)
    if not sets:
        raise DataError(next(iter(missing.values()), "the study names no data set; give it at least one."))
    return Gathered(sets, missing)
