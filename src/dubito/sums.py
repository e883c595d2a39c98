"""Running sums over the draws of a prediction: all that its averages and doubts need, of size N."""

from collections.abc import Callable

import torch
from torch import Tensor

from dubito import uncertainty
from dubito.likelihoods import Dirichlet, Likelihood


def defines(likelihood: Likelihood, name: str) -> bool:
    """Whether a likelihood has a method of its own that the base class only names."""
    return getattr(type(likelihood), name) is not getattr(Likelihood, name)


def over_draws(
    likelihood: Likelihood, outputs: Tensor, noise: dict[str, Tensor], f: Callable[[Likelihood, Tensor], Tensor]
) -> Tensor:
    """f(likelihood of draw s, outputs of draw s) for every s, stacked; each draw has its own noise."""
    return torch.stack([f(likelihood.bind({n: v[s] for n, v in noise.items()}), o) for s, o in enumerate(outputs)])


def over_rows(
    likelihood: Likelihood, outputs: Tensor, noise: dict[str, Tensor], f: Callable[[Likelihood, Tensor], Tensor]
) -> Tensor:
    """`over_draws` of an f that looks at each row by itself: draws without noise of their own are but more rows."""
    if noise:
        return over_draws(likelihood, outputs, noise, f)
    return _stacked(f(likelihood, outputs.flatten(0, 1)), outputs)


def _stacked(rows: Tensor, outputs: Tensor) -> Tensor:
    """What was found for all rows of all draws, with the draws' axis again."""
    return rows.reshape(*outputs.shape[:2], *rows.shape[1:])


class Sums:
    """Sums over draws, in double precision; rows come in batches, each of which every chunk of draws goes through.

    They lie in a few large tensors that grow by doubling: many small ones between the large temporaries of a pass
    would keep the allocator from giving memory back.
    """

    def __init__(self, likelihood: Likelihood, n: int) -> None:
        self.likelihood, self.n = likelihood, n
        self._spans: list[slice] = []
        self._held: dict[str, Tensor] = {}
        self._rows = 0

    def add(self, number: int, outputs: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """Add draws (s, b, ...) to batch `number`; returns what is worth keeping of them."""
        mean = over_rows(self.likelihood, outputs, noise, lambda lik, o: lik.mean(o))
        at = self._span(number, mean)
        shifted = mean - self._held["first"][at]  # centring on the first draw keeps the variance free of cancellation
        self._plus("sum", at, shifted.sum(0))
        self._plus("square", at, shifted.square_().sum(0))
        if self.likelihood.kind == "classification":
            self._plus("entropy", at, self._entropies(outputs, mean).sum(0))
            if isinstance(self.likelihood, Dirichlet):
                within = _stacked(self.likelihood.spread(outputs.flatten(0, 1)), outputs)
                self._plus("within", at, within.sum(0))
            self._plus("votes", at, uncertainty.votes(mean))
            return mean
        if self.likelihood.kind == "regression" and defines(self.likelihood, "variance"):
            variance = over_rows(self.likelihood, outputs, noise, lambda lik, o: lik.variance(o))
            self._plus("variance", at, variance.sum(0))
        return outputs

    def _entropies(self, outputs: Tensor, mean: Tensor) -> Tensor:
        """The entropy of each draw's probabilities, (s, b, ...), expected where these are uncertain themselves."""
        if isinstance(self.likelihood, Dirichlet):
            return _stacked(self.likelihood.expected_entropy(outputs.flatten(0, 1)), outputs)
        return uncertainty.entropy(mean)

    def _span(self, number: int, mean: Tensor) -> slice:
        """The rows of a batch; on its first visit its first draw is noted."""
        if number == len(self._spans):
            self._spans.append(slice(self._rows, self._rows + mean.shape[1]))
            self._rows += mean.shape[1]
            self._room("first", mean[0], mean.dtype)[self._spans[number]] = mean[0]
        return self._spans[number]

    def _plus(self, name: str, at: slice, value: Tensor) -> None:
        self._room(name, value, torch.float64)[at] += value

    def _room(self, name: str, like: Tensor, dtype: torch.dtype) -> Tensor:
        """The tensor of a name, with room for all rows so far."""
        held = self._held.get(name)
        if held is None or len(held) < self._rows:
            size = self._rows if held is None else max(self._rows, 2 * len(held))
            grown = torch.zeros((size, *like.shape[1:]), dtype=dtype, device=like.device)
            if held is not None:
                grown[: len(held)] = held
            self._held[name] = held = grown
        return held

    def finish(self) -> None:
        """Turn the sums into averages."""
        if not self._rows:
            raise ValueError("there is nothing to predict: the inputs have no rows; give at least one")
        held = {name: tensor[: self._rows] for name, tensor in self._held.items()}
        self._held = {}
        dtype = held["first"].dtype
        shift = held["sum"].div_(self.n)
        self.mean = (held["first"].double() + shift).to(dtype)
        between = held["square"].div_(self.n).sub_(shift.square()).clamp_min_(0)
        self.spread = (between + held["within"].div_(self.n) if "within" in held else between).to(dtype)
        self.expected_entropy = (held["entropy"] / self.n).to(dtype) if "entropy" in held else shift
        self.votes = held["votes"].to(dtype) if "votes" in held else shift
        self.variance = (held["variance"] / self.n).to(dtype) if "variance" in held else None
