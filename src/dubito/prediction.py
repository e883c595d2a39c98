"""A posterior's answer for given inputs: averages, doubts and intervals, gathered in one pass over the draws.

Only running sums of size N are kept, so inputs may be far larger than draws x N x C would allow; the draws themselves
are kept while they fit a budget, and what needs them beyond that runs the same functions again, batch by batch.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dubito import quantiles, runtime, uncertainty
from dubito.functions import ACTIVATION_BYTES, Functions, Plan, plan_chunks, room
from dubito.inputs import batches, check_finite, move, n_rows, tensors
from dubito.keeping import Keeper
from dubito.likelihoods import Likelihood
from dubito.progress import track
from dubito.runtime import Precision
from dubito.sums import Sums, defines, over_draws

BUDGET = 1 << 30  # bytes of draws kept unless asked otherwise


class Undefined(ValueError):
    """A quantity that cannot exist for this prediction, and why."""


class Prediction:
    """The predictive distribution at N inputs; `Posterior.predict` makes it."""

    def __init__(
        self,
        functions: Functions,
        likelihood: Likelihood,
        x: Any,
        plan: Plan,
        keep: bool | None,
        precision: Precision,
        bar: bool,
    ) -> None:
        self._functions, self._likelihood, self._x, self._plan = functions, likelihood, x, plan
        self.precision: Precision = precision
        self.n_draws = functions.n
        self.kind = likelihood.kind
        self._sums = Sums(likelihood, functions.n)
        self._budget = BUDGET if keep is None else None
        keeper = Keeper(functions.n, self._budget, keep is not False)
        for chunk in track(functions.chunks(plan.draws), -(-functions.n // plan.draws), "predicting", bar):
            for number, x in enumerate(self._batches(plan.rows)):
                keeper.add(self._sums.add(number, self._outputs(chunk, x), chunk.noise()))
            keeper.end_chunk(chunk.n)
        self._sums.finish()
        self._draws = keeper.draws

    def _batches(self, rows: int) -> Iterator[Any]:
        net = self._functions.net
        for x in batches(self._x, rows):
            yield move(tensors(x), net.device, net.dtype)

    def _outputs(self, functions: Functions, x: Any) -> Tensor:
        """Outputs in the network's own type, whatever its products were rounded to."""
        net = functions.net
        try:
            with runtime.precision(self.precision, net.device):
                return functions(x).to(net.dtype)
        except torch.OutOfMemoryError:  # the plan knows the widest layer, not all that a network keeps beside it
            if functions.n == 1:
                raise
        torch.cuda.empty_cache()
        return torch.cat([self._outputs(part, x) for part in functions.chunks(-(-functions.n // 2))])

    # -- any likelihood ----------------------------------------------------------------------------------------

    @property
    def draws(self) -> Tensor:
        """(draws, N, C): each draw's probabilities, or its means in regression."""
        if self._draws is None:
            why = f"do not fit the budget of {BUDGET >> 20} MiB and " if self._budget is not None else ""
            raise Undefined(f"the {self.n_draws} draws {why}were not kept; call predict(..., keep_draws=True)")
        return self._draws if self.kind == "classification" else self._mapped(self._draws, lambda lik, o: lik.mean(o))

    @property
    def mean(self) -> Tensor:
        """(N, C): the average over draws."""
        return self._sums.mean

    @property
    def std(self) -> Tensor:
        """(N, C): of y in regression; of the probability over draws in classification."""
        if self.kind == "classification":
            self._need_spread("The spread of a probability over draws")
            return self._sums.spread.sqrt()
        if self.kind == "regression":
            return (self._sums.spread + self.aleatoric).sqrt()
        return self.epistemic.sqrt()

    @property
    def epistemic(self) -> Tensor:
        """(N, C): the variance between draws, which data can remove."""
        self._need_spread("Epistemic variance")
        return self._sums.spread

    @property
    def aleatoric(self) -> Tensor:
        """(N, C): the variance within draws, which data cannot remove."""
        if self.kind == "classification":
            return self._sums.mean * (1 - self._sums.mean) - self._sums.spread
        if self._sums.variance is None:
            raise Undefined(f"{type(self._likelihood).__name__} has no variance; define variance(outputs) on it")
        return self._sums.variance

    @property
    def components(self) -> tuple[Tensor, Tensor] | None:
        """Means and stds (draws, N, C) of the Gaussian mixture; None where it is none or was not kept."""
        if self._draws is None or not self._likelihood.gaussian:
            return None
        return self.draws, self._mapped(self._draws, lambda lik, o: lik.variance(o)).sqrt()

    def quantile(self, q: float) -> Tensor:
        """(N, C): of y in regression, the mixture over draws inverted; of the probability over draws otherwise."""
        if not 0 < q < 1:
            raise ValueError(f"a quantile lies strictly between 0 and 1, got {q}")
        if self.kind == "regression":
            self._need_defined("variance", "cdf")
            return torch.cat([self._invert(o, noise, q) for o, noise in self._replay()])
        self._need_several("A quantile over draws")
        return torch.cat([quantiles.of_draws(part, q) for part in self._means()])

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds y, or a probability over draws, with probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"the level of an interval lies strictly between 0 and 1, got {level}; 0.9 means 90 %")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def log_prob(self, y: Any) -> Tensor:
        """log of the averaged likelihood of y, in nats: (N,), or one per token in classification."""
        y = tensors(y).to(self.mean.device)
        if len(y) != len(self.mean):
            raise ValueError(f"y has {len(y)} rows but the prediction has {len(self.mean)}; they must agree")
        if self.kind == "classification":
            y, ignored = self._labels(y)
            chosen = self.probs.gather(-1, y.masked_fill(ignored, 0).unsqueeze(-1)).squeeze(-1)
            return chosen.clamp_min(torch.finfo(chosen.dtype).tiny).log().masked_fill(ignored, 0.0)
        return self._mixture_log_prob(y)

    # -- classification ----------------------------------------------------------------------------------------

    @property
    def probs(self) -> Tensor:
        """(N, C): the predictive probabilities."""
        self._need_classes()
        return self._sums.mean

    @property
    def entropy(self) -> Tensor:
        """(N,): of the averaged prediction; all doubt together."""
        return uncertainty.entropy(self.probs)

    @property
    def expected_entropy(self) -> Tensor:
        """(N,): the draws' own entropy, averaged; the doubt data cannot remove."""
        self._need_classes()
        return self._sums.expected_entropy

    @property
    def bald(self) -> Tensor:
        """(N,): entropy minus expected entropy; the disagreement between draws."""
        self._need_classes()
        self._need_spread("BALD")
        return uncertainty.bald(self._sums.mean, self._sums.expected_entropy)

    @property
    def variation_ratio(self) -> Tensor:
        """(N,): 1 - the largest averaged probability."""
        return uncertainty.variation_ratio(self.probs)

    @property
    def votes(self) -> Tensor:
        """(N, C): the share of draws that put each class first."""
        self._need_classes()
        return self._sums.votes / self.n_draws

    @property
    def vote_ratio(self) -> Tensor:
        """(N,): 1 - the share of the most frequent class among the draws."""
        self._need_classes()
        self._need_several("The vote ratio")
        return uncertainty.vote_ratio(self._sums.votes)

    @property
    def top_spread(self) -> Tensor:
        """(N,): standard deviation over draws of the predicted class's score."""
        top = self.probs.argmax(-1, keepdim=True)
        return self.std.gather(-1, top).squeeze(-1)

    # -- out ---------------------------------------------------------------------------------------------------

    def numpy(self) -> dict[str, np.ndarray[Any, Any]]:
        """Every measure that exists here, as arrays."""
        names = {
            "classification": (
                "probs",
                "entropy",
                "expected_entropy",
                "bald",
                "variation_ratio",
                "votes",
                "vote_ratio",
                "std",
                "aleatoric",
                "epistemic",
                "top_spread",
            ),
            "regression": ("mean", "std", "aleatoric", "epistemic"),
            "outputs": ("mean", "epistemic"),
        }[self.kind]
        found = {}
        for name in names:
            try:
                found[name] = getattr(self, name).detach().cpu().numpy()
            except Undefined:
                continue
        return found

    def save(self, path: str | Path) -> None:
        """Write `numpy()` to an .npz file."""
        np.savez_compressed(path, **self.numpy())  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.mean)

    def __repr__(self) -> str:
        return f"Prediction({self.kind}, {len(self)} inputs, {self.n_draws} draws)"

    # -- inside ------------------------------------------------------------------------------------------------

    def _need_classes(self) -> None:
        if self.kind != "classification":
            raise Undefined(
                f"class probabilities do not exist under {type(self._likelihood).__name__}; use mean, std and "
                "interval()"
            )

    def _need_defined(self, *names: str) -> None:
        for name in names:
            if not defines(self._likelihood, name):
                call = {"variance": "variance(outputs)", "cdf": "cdf(outputs, y)"}[name]
                raise Undefined(f"{type(self._likelihood).__name__} has no {name}; define {call} on it")

    def _need_several(self, what: str) -> None:
        if self.n_draws == 1:
            raise Undefined(f"{what} needs several networks, and {self._functions.alone}")

    def _need_spread(self, what: str) -> None:
        if not self._likelihood.second_order:
            self._need_several(what)

    def _replay(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Outputs (draws, b, ...) of one batch of rows after another, with each draw's noise."""
        if self._draws is not None and self.kind != "classification":
            noise = self._functions.noise()
            yield from ((part, noise) for part in self._draws.split(self._replayed_rows(), 1))
            return
        for x in self._batches(self._replayed_rows()):
            parts = [(self._outputs(chunk, x), chunk.noise()) for chunk in self._functions.chunks(self._plan.draws)]
            noises = {n: torch.cat([noise[n] for _, noise in parts]) for n in parts[0][1]}
            yield torch.cat([o for o, _ in parts]), noises

    def _means(self) -> Iterator[Tensor]:
        """Each draw's mean, (draws, b, ...), of one batch of rows after another."""
        if self._draws is not None and self.kind == "classification":
            yield from self._draws.split(self._replayed_rows(), 1)
        else:
            yield from (self._with(noise, outputs, _mean) for outputs, noise in self._replay())

    def _replayed_rows(self) -> int:
        """Rows whose outputs under all draws fit the memory of a chunk, with room for what is made of them."""
        row = 4 * self.n_draws * self._sums.mean[0].numel() * self._sums.mean.element_size()
        return max(1, min(self._plan.rows, room(self._functions.net.device, ACTIVATION_BYTES) // row))

    def _with(self, noise: dict[str, Tensor], outputs: Tensor, f: Callable[[Likelihood, Tensor], Tensor]) -> Tensor:
        return over_draws(self._likelihood, outputs, noise, f)

    def _mapped(self, outputs: Tensor, f: Callable[[Likelihood, Tensor], Tensor]) -> Tensor:
        noise = {n: v.to(outputs.device) for n, v in self._functions.noise().items()}
        return self._with(noise, outputs, f)

    def _mixture_log_prob(self, y: Tensor) -> Tensor:
        parts, start = [], 0
        for outputs, noise in self._replay():
            part = y[start : start + outputs.shape[1]].to(outputs.device)
            start += outputs.shape[1]
            each = self._with(noise, outputs, lambda lik, o, part=part: lik.log_prob(o, part))  # type: ignore[misc]
            parts.append(torch.logsumexp(each, 0) - np.log(self.n_draws))
        return torch.cat(parts)

    def _invert(self, outputs: Tensor, noise: dict[str, Tensor], q: float) -> Tensor:
        """The quantile of the mixture over draws."""

        def of_one(y: Tensor) -> Callable[[Tensor, dict[str, Tensor]], Tensor]:
            return lambda o, values: self._likelihood.bind(values).cdf(o, y)

        def cdf(y: Tensor) -> Tensor:
            return torch.as_tensor(runtime.over_members(of_one(y), (outputs, noise), len(outputs), together)).mean(0)

        mean = self._with(noise, outputs, _mean)
        std = self._with(noise, outputs, lambda lik, o: lik.variance(o)).sqrt()
        low, high = (mean - 6 * std).amin(0), (mean + 6 * std).amax(0)
        together = runtime.supports_vmap(of_one(low), (outputs, noise))
        return quantiles.invert(cdf, q, low, high)

    def _labels(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Labels in the shape of the probabilities, less their classes, and which of them to ignore."""
        wanted, classes = self.probs.shape[:-1], self.probs.shape[-1]
        labels = y.squeeze(-1) if y.shape == (*wanted, 1) else y
        if labels.shape != wanted:
            raise ValueError(f"y of shape {tuple(y.shape)} does not fit; expected labels of shape {tuple(wanted)}")
        labels, given = labels.long(), labels
        if bool((labels != given).any()):
            raise ValueError(f"y holds {given[labels != given][0].item():g}, which is no label; give whole numbers")
        ignore = getattr(self._likelihood, "ignore_index", None)
        ignored = torch.zeros_like(labels, dtype=torch.bool) if ignore is None else labels == ignore
        outside = labels[~ignored & ((labels < 0) | (labels >= classes))]
        if outside.numel():
            raise ValueError(f"y holds the label {int(outside[0])}, outside 0 to {classes - 1}; number labels from 0")
        return labels, ignored


def _mean(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    return likelihood.mean(outputs)


def predict(
    functions: Functions,
    likelihood: Likelihood,
    x: Any,
    batch_size: int | None,
    keep_draws: bool | None,
    precision: Precision,
    progress: bool,
) -> Prediction:
    """Check the inputs, choose chunks and run all draws over all rows."""
    example = next(batches(x, 1), None)
    if example is None:
        raise ValueError("there is nothing to predict: the inputs have no rows; give at least one")
    net, total = functions.net, None
    if not hasattr(x, "dataset") and not isinstance(x, torch.utils.data.Dataset):
        x = tensors(x)
        check_finite(x, "x")
        total = n_rows(x)
        if sum(leaf.nbytes for leaf in tree_leaves(x)) <= room(net.device, ACTIVATION_BYTES):
            x = move(x, net.device, net.dtype)  # once, not once for every chunk of draws
    plan = plan_chunks(functions, move(tensors(example), net.device, net.dtype), batch_size, total)
    with torch.no_grad():
        return Prediction(functions, likelihood, x, plan, keep_draws, precision, progress)
