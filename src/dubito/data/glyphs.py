"""Small letters drawn in code: strokes in the unit square, rendered with soft edges like scanned handwriting."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.floating[Any]]
_Points = tuple[tuple[float, float], ...]

# Polylines (x to the right, y down) of capitals that no digit resembles.
STROKES: dict[str, tuple[_Points, ...]] = {
    "A": (((0, 1), (0.5, 0), (1, 1)), ((0.2, 0.6), (0.8, 0.6))),
    "E": (((1, 0), (0, 0), (0, 1), (1, 1)), ((0, 0.5), (0.8, 0.5))),
    "F": (((1, 0), (0, 0), (0, 1)), ((0, 0.5), (0.8, 0.5))),
    "H": (((0, 0), (0, 1)), ((1, 0), (1, 1)), ((0, 0.5), (1, 0.5))),
    "K": (((0, 0), (0, 1)), ((1, 0), (0, 0.5), (1, 1))),
    "M": (((0, 1), (0, 0), (0.5, 0.6), (1, 0), (1, 1)),),
    "N": (((0, 1), (0, 0), (1, 1), (1, 0)),),
    "W": (((0, 0), (0.25, 1), (0.5, 0.4), (0.75, 1), (1, 0)),),
    "X": (((0, 0), (1, 1)), ((1, 0), (0, 1))),
}


def draw_letter(rng: np.random.Generator, side: int = 8) -> _Array:
    """One random letter, slightly turned, stretched and shifted, as a (side, side) image in [0, 1]."""
    strokes = STROKES[str(rng.choice(list(STROKES)))]
    starts = np.concatenate([np.array(line[:-1]) for line in strokes])
    ends = np.concatenate([np.array(line[1:]) for line in strokes])
    angle, stretch, shift = rng.uniform(-0.2, 0.2), rng.uniform(0.5, 0.75, size=2), rng.uniform(-0.5, 0.5, size=2)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])

    def place(points: _Array) -> _Array:
        return np.asarray(((points - 0.5) * stretch @ turn + 0.5) * side + shift)

    centres = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1).reshape(-1, 1, 2) + 0.5
    distance = _distances(centres, place(starts), place(ends)).min(axis=1)
    ink = np.clip(rng.uniform(1.1, 1.5) - distance, 0, 1)
    return np.asarray(ink.reshape(side, side))


def _distances(points: _Array, starts: _Array, ends: _Array) -> _Array:
    """From each point (P, 1, 2) to each segment: (P, segments)."""
    along = ends - starts
    share = np.clip(((points - starts) * along).sum(-1) / (along**2).sum(-1), 0, 1)
    return np.asarray(np.linalg.norm(points - starts - share[..., None] * along, axis=-1))
