"""The draws of a prediction, kept while they fit a budget."""

import torch
from torch import Tensor


class Keeper:
    """Gathers (draws, N, ...) from chunks of draws that each come in batches of rows; N is known after the first."""

    def __init__(self, draws: int, budget: int | None, keep: bool = True) -> None:
        self.n, self.budget, self.keep = draws, budget, keep
        self.draws: Tensor | None = None
        self._first: list[Tensor] = []
        self._start = self._row = 0

    def add(self, part: Tensor) -> None:
        """The next rows of the present chunk, (draws of the chunk, rows, ...)."""
        if not self.keep:
            return
        if self.draws is None:
            self._first.append(part)
            self._give_up_if_large(len(part))
        else:
            stop = self._row + part.shape[1]
            self.draws[self._start : self._start + len(part), self._row : stop] = part
            self._row = stop

    def end_chunk(self, draws: int) -> None:
        """All rows of a chunk of so many draws have been seen."""
        if self.keep and self.draws is None and self._first:
            seen = torch.cat(self._first, 1)
            self._first = []
            self.draws = seen if draws == self.n else seen.new_empty(self.n, *seen.shape[1:])
            self.draws[:draws] = seen
        self._start, self._row = self._start + draws, 0

    def _give_up_if_large(self, draws: int) -> None:
        """Keep nothing once the rows seen so far, all draws taken together, go beyond the budget."""
        if self.budget is not None and sum(t.nbytes for t in self._first) * self.n > self.budget * draws:
            self.keep, self._first = False, []
