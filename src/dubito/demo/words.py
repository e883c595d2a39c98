"""Sentences made from numbers: what the page says is what was measured."""

from collections.abc import Mapping, Sequence

from dubito.demo.scores import Verdict

_COMMON = ("plain net", "deep ensemble")  # names that want an article


def listed(words: Sequence[str]) -> str:
    """a; a and b; a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def named(name: str) -> str:
    """A method inside a sentence."""
    return f"the {name}" if name in _COMMON else name


def each(values: Mapping[str, float], spec: str, of: str = "for") -> str:
    """Every number with its name: 35% for the plain net, 7% for SGLD."""
    return listed([f"{value:{spec}} {of} {named(name)}".replace("-", "−", 1) for name, value in values.items()])


def span(values: Mapping[str, float], spec: str) -> str:
    """From the lowest number to the highest with their names; one number where they print alike."""
    low, high = (pick(values, key=lambda name: values[name]) for pick in (min, max))
    first, last = f"{values[low]:{spec}}", f"{values[high]:{spec}}"
    return first if first == last else f"{first} ({low}) to {last} ({high})"


def compared(what: str, verdicts: Mapping[str, Verdict], base: str, better: str, worse: str) -> str:
    """One sentence on how the methods compare with the base, those alike included."""
    phrases: dict[Verdict, str] = {
        "better": f"clearly {better}",
        "alike": "not clearly different",
        "worse": f"clearly {worse}",
    }
    groups = {kind: [named(name) for name, verdict in verdicts.items() if verdict == kind] for kind in phrases}
    parts = [f"{phrases[kind]} for {listed(names)}" for kind, names in groups.items() if names]
    return f"{what} is, compared with {named(base)}, {listed(parts)}."
