"""Which inputs to label next: by a score, at random in proportion to it, or as a batch whose labels tell most."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from dubito import uncertainty
from dubito.posteriors.base import Posterior
from dubito.prediction import Prediction
from dubito.rng import generator

Acquisition: TypeAlias = Literal["entropy", "bald", "variation_ratio", "mean_std", "random", "batch_bald"]

CONFIGURATIONS = 4000  # of the labels of a batch: all of them up to here, as many samples beyond
_CELLS = 1 << 23  # joint probabilities at a time

_SCORES: dict[str, Callable[[Prediction], Tensor]] = {
    "entropy": lambda p: p.entropy,
    "bald": lambda p: p.bald,
    "variation_ratio": lambda p: p.variation_ratio,
    "mean_std": lambda p: p.std.mean(-1),
}


def acquire(
    posterior: Posterior, x: Tensor, k: int, acquisition: Acquisition, draws: int, sharpness: float | None, seed: int
) -> list[int]:
    """The k rows of x to label next; `sharpness` takes them at random in proportion to score ^ sharpness."""
    if acquisition == "random":
        return torch.randperm(len(x), generator=generator("cpu", seed, "random"))[:k].tolist()
    keep = acquisition == "batch_bald"
    prediction = posterior.predict(x, draws, seed, keep_draws=keep)
    if keep:
        _check_whole(prediction.probs.shape[1:-1])
        return batch_bald(prediction, k, seed).rows
    found = _SCORES[acquisition](prediction).double().cpu()
    _check_whole(found.shape[1:])
    return top(found, k, seed) if sharpness is None else stochastic_top(found, k, sharpness, seed)


def _check_whole(event: Sequence[int]) -> None:
    if event:
        raise ValueError(f"an input has {tuple(event)} scores, one for each token or pixel; label whole inputs")


def top(scores: Tensor, k: int, seed: int) -> list[int]:
    """The k largest, equal ones in random order: early on, many inputs have the same score."""
    order = torch.randperm(len(scores), generator=generator("cpu", seed, "ties"))
    ranked = scores[order].argsort(descending=True, stable=True)
    return order[ranked[:k]].tolist()


def stochastic_top(scores: Tensor, k: int, sharpness: float, seed: int) -> list[int]:
    """k without replacement with probability in proportion to score ^ sharpness, as the k largest log score + Gumbel.

    Power acquisition of Kirsch et al. (2023), arXiv 2106.12059: a batch of the very best is full of near-duplicates.
    """
    uniform = torch.rand(len(scores), generator=generator("cpu", seed, "gumbel"), dtype=torch.float64)
    gumbel = -(-uniform.clamp_min(1e-300).log()).log()
    return top(scores.clamp_min(1e-300).log() * sharpness + gumbel, k, seed)


class Batch(NamedTuple):
    """Rows in the order they were taken, and what the labels of all up to each tell about the weights, in nats."""

    rows: list[int]
    information: list[float]


def batch_bald(prediction: Prediction, k: int, seed: int) -> Batch:
    """The batch whose labels are jointly most informative, greedily: max I[y_1, ..., y_k; theta].

    Kirsch et al. (2019), arXiv 1906.08158. Needs the same networks at every input, which draws of a posterior are.
    """
    if prediction.n_draws == 1:
        prediction.bald  # noqa: B018 -- says why it cannot exist
    draws = prediction.draws.double()
    expected = uncertainty.entropy(draws).mean(0)
    joint, spent = Joint(draws, seed), 0.0
    chosen: list[int] = []
    information: list[float] = []
    for _ in range(min(k, draws.shape[1])):
        gain = joint.entropies() - expected - spent
        gain[chosen] = -torch.inf
        best = int(gain.argmax())
        chosen.append(best)
        information.append(float(gain[best]))
        spent += float(expected[best])
        joint.add(best)
    return Batch(chosen, information)


class Joint:
    """The labels of the inputs taken so far: p(configuration | draw), for all configurations or a sample of them."""

    def __init__(self, draws: Tensor, seed: int, limit: int = CONFIGURATIONS) -> None:
        self.draws, self.seed, self.limit = draws, seed, limit
        self.chosen: list[int] = []
        self.given = draws.new_ones(1, len(draws))  # (configurations, draws)
        self.weight = draws.new_ones(1)

    def entropies(self) -> Tensor:
        """H[y_1, ..., y_n, y_i] for every input i, (N,)."""
        n, classes = self.draws.shape[1:]
        step = max(1, _CELLS // (len(self.given) * classes))
        return torch.cat([self._entropy(self.draws[:, start : start + step]) for start in range(0, n, step)])

    def _entropy(self, draws: Tensor) -> Tensor:
        both = self.given @ draws.flatten(1) / len(draws)
        terms = torch.special.entr(both).unflatten(1, draws.shape[1:]).sum(-1)
        found: Tensor = self.weight @ terms
        return found

    def add(self, index: int) -> None:
        """Take one more input."""
        self.chosen.append(index)
        classes = self.draws.shape[-1]
        if classes ** len(self.chosen) <= self.limit:
            self.given = (self.given.unsqueeze(1) * self.draws[:, index].T).flatten(0, 1)
            self.weight = self.draws.new_ones(len(self.given))
        else:
            self.given = self._sampled(self.chosen)
            self.weight = 1 / (self.given.mean(1) * len(self.given))

    def _sampled(self, chosen: Sequence[int]) -> Tensor:
        """p(configuration | draw) of configurations sampled from the joint prediction."""
        device = self.draws.device
        source = generator(device, self.seed, "configurations", len(chosen))
        which = torch.randint(len(self.draws), (self.limit,), generator=source, device=device)
        given = self.draws.new_ones(self.limit, len(self.draws))
        for index in chosen:
            labels = torch.multinomial(self.draws[which, index], 1, generator=source).squeeze(1)
            given *= self.draws[:, index, labels].T
        return given
