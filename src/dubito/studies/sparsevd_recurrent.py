"""Sparse variational dropout on recurrent weights: a sequence task made in code.

Sequences of numbers, each beside a mark; the answer is whether the sum of the two marked numbers is above one (after
the adding problem of Hochreiter & Schmidhuber, 1997). An LSTM has far more weights than that needs.
"""

from typing import Any

import torch
from torch import Tensor, nn

import dubito
from dubito import compress
from dubito.compress import figures
from dubito.compress.curve import error, losses
from dubito.data import Split
from dubito.results import Cell, Result, Table
from dubito.rng import generator
from dubito.schedules import Linear, Rise
from dubito.studies.base import Settings, Study, seeded

LENGTH = 20


class Recurrent(nn.Module):
    """An LSTM whose last state is read out."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(2, hidden, batch_first=True), nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.cell(x)[0][:, -1])
        return outputs


def sequences(n: int, seed: int, length: int = LENGTH) -> Split:
    """(n, length, 2): uniform numbers, and marks on two of them, one in each half; the label tells their sum."""
    source = generator("cpu", seed, "sequences")
    numbers = torch.rand(n, length, generator=source)
    half = length // 2
    places = torch.stack([torch.randint(half, (n,), generator=source) + part * half for part in (0, 1)], 1)
    marks = torch.zeros(n, length).scatter(1, places, 1.0)
    return Split(torch.stack([numbers, marks], 2), ((numbers * marks).sum(1) > 1).long())


def methods(quick: bool) -> dict[str, tuple[dubito.Method[Any], int]]:
    """By name: the method, and its epochs."""
    rate = 1e-2 if quick else 3e-3
    sparse = dubito.SparseVD(learning_rate=rate, schedule=Linear(0.5), warm_up=Rise(0.3, 0.6))
    return {
        "dense": (dubito.MAP(learning_rate=rate, schedule="linear"), 2 if quick else 60),
        "Sparse VD": (sparse, 3 if quick else 150),
    }


def run(settings: Settings) -> Result:
    """A plain and a sparse fit of the same network."""
    sizes, hidden = ((200, 100), 6) if settings.quick else ((20_000, 5000), 64)
    train, test = (sequences(n, settings.seed + part) for part, n in enumerate(sizes))
    records: list[Any] = []
    rows: list[tuple[Cell, ...]] = []
    found: dict[str, dubito.Posterior] = {}
    for name, (method, epochs) in methods(settings.quick).items():
        found[name] = dubito.fit(
            seeded(lambda: Recurrent(hidden), settings.seed), train, method, epochs=epochs, batch_size=100,
            seed=settings.seed, device=settings.device, progress=settings.progress, callback=records.append,
        )  # fmt: skip
        net = found[name].mean_network()
        wrong = error(losses(net, found[name].likelihood, test), found[name].likelihood)
        zeros = " - ".join(f"{100 * (1 - kept / total):.1f}" for kept, total in compress.counts(net).values())
        rows.append((name, compress.ratio(net), 100 * wrong, zeros))
    columns = ("network", "weights / non-zero", "test error %", "zeros by matrix %")
    formats = {"weights / non-zero": ".1f", "test error %": ".2f"}
    return Result(
        STUDY.name,
        STUDY.title,
        summary="Recurrent weights are drawn once per pass: local reparameterisation cannot reach inside an LSTM.",
        numbers={"rows": [list(row) for row in rows]},
        tables=[Table("The marked sum", columns, rows, formats=formats)],
        figures=[figures.log_alphas(found["Sparse VD"]), figures.sparsity_over_epochs(records, sizes[0] // 100)],  # type: ignore[arg-type]
        settings={"length": LENGTH, "hidden": hidden, "rows": list(sizes)},
    )


STUDY = Study(
    "sparsevd-recurrent",
    "Sparse variational dropout on an LSTM",
    "our own measurement, after Lobacheva, Chirkova and Vetrov (2018), Bayesian Sparsification of Recurrent Neural "
    "Networks, whose tasks are others.",
    "how many recurrent weights a task made in code needs",
    run,
)
