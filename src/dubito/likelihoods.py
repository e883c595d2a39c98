"""Likelihoods: how a network's outputs become a distribution over the observed y.

Every method but `resolve` sees the outputs of one network and runs under `torch.func.vmap`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito.config import whole
from dubito.priors import Normal, Prior, check_positive

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
STD_FLOOR = 1e-6  # keeps log(std) finite where softplus of a very negative output underflows


class Likelihood(ABC):
    """p(y | outputs); a subclass needs `log_prob` alone."""

    kind: ClassVar[Literal["classification", "regression", "outputs"]] = "outputs"
    second_order: ClassVar[bool] = False  # whether outputs are a distribution over probabilities, as Dirichlet's are
    gaussian: ClassVar[bool] = False  # whether y given the weights is normal, so that draws make a Gaussian mixture

    @abstractmethod
    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log density of each example in nats, shape (B,), summed over tokens, pixels and output columns."""

    def parameters(self) -> dict[str, Tensor]:
        """Learned unconstrained values at their start; none by default."""
        return {}

    def parameter_priors(self) -> dict[str, Prior]:
        """Priors over the unconstrained values of `parameters`: standard normal unless overridden."""
        return {name: Normal(std=1.0) for name in self.parameters()}

    def bind(self, values: Mapping[str, Tensor]) -> Self:
        """The same likelihood with these values of its parameters in place."""
        return self

    def resolve(self, outputs: Tensor, y: Tensor) -> Self:
        """Check real outputs and y once, before training; returns the likelihood to use, adapted where needed.

        The likelihoods of this file read only the shape of `outputs`, so one row expanded to len(y) checks all of y.
        """
        shape = tuple(self.log_prob(outputs, y).shape)
        if shape != (len(outputs),):
            raise ValueError(
                f"{type(self).__name__}.log_prob returned shape {shape} for a batch of {len(outputs)}; "
                f"sum over all but the batch dimension so that it returns ({len(outputs)},)."
            )
        return self

    def mean(self, outputs: Tensor) -> Tensor:
        """Class probabilities (B, *event, C), means (B, C), or the outputs unchanged."""
        return outputs

    def variance(self, outputs: Tensor) -> Tensor:
        """Variance of y given the weights (aleatoric), in the shape of `mean`; regression only."""
        raise NotImplementedError(f"{type(self).__name__} has no variance; define variance(outputs) to get error bars.")

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        """P(Y <= y) of each element, in the shape of `mean`; regression only."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf; define cdf(outputs, y) to get intervals.")


@dataclass(frozen=True)
class Categorical(Likelihood):
    """Softmax classification: log p(y | z) = z_y - logsumexp(z).

    Outputs (B, C) with y (B,), tokens (B, T, C) with y (B, T), pixels (B, C, H, W) with y (B, H, W). Where y fits
    classes on axis 1 only, `resolve` moves there; where y fits both, `class_axis` stays as given.
    """

    kind = "classification"
    ignore_index: int = -100  # entries of y with this label contribute nothing
    class_axis: int = -1

    def __post_init__(self) -> None:
        whole("Categorical: ignore_index", self.ignore_index)
        whole("Categorical: class_axis", self.class_axis)
        if self.class_axis == 0:
            raise ValueError("Categorical: class_axis is 0, the batch; use -1 or 1.")

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        y = y.long()  # before any comparison: -100 is 156 among unsigned bytes
        ignored = y == self.ignore_index
        labels = y.masked_fill(ignored, 0).unsqueeze(self.class_axis)
        chosen = F.log_softmax(outputs, self.class_axis).gather(self.class_axis, labels).squeeze(self.class_axis)
        return _sum_events(chosen.masked_fill(ignored, 0.0))

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(self.class_axis).movedim(self.class_axis, -1)

    def resolve(self, outputs: Tensor, y: Tensor) -> Self:
        self._check_type(outputs, y)
        adapted = replace(self, class_axis=self._find_axis(outputs, y))
        adapted._check_labels(outputs.shape[adapted.class_axis], y)
        return adapted

    def _check_type(self, outputs: Tensor, y: Tensor) -> None:
        if y.ndim > 1 and y.shape == outputs.shape and y.shape[-1] > 1:
            raise ValueError(
                f"y has the shape of the outputs, {_shape(y)}, and looks one-hot; Categorical wants integer labels: "
                "use y.argmax(-1)."
            )
        if y.is_floating_point() or y.is_complex():
            raise ValueError(
                f"Categorical wants integer labels but y is {y.dtype}; use y.long() for labels or Gaussian.learned() "
                "for regression."
            )

    def _find_axis(self, outputs: Tensor, y: Tensor) -> int:
        for axis in (self.class_axis, 1):
            if -outputs.ndim <= axis < outputs.ndim and _without(outputs, axis) == _shape(y):
                return axis
        expected = _without(outputs, self.class_axis) if outputs.ndim > 1 else "none: there is no class axis"
        raise ValueError(
            f"outputs of shape {_shape(outputs)} and y of shape {_shape(y)} do not fit Categorical; "
            f"expected y of shape {expected}."
        )

    def _check_labels(self, classes: int, y: Tensor) -> None:
        if classes == 1:
            raise ValueError("the network has one output, so Categorical has a single class; use Bernoulli().")
        y = y.long()
        labels = y[y != self.ignore_index]
        outside = labels[(labels < 0) | (labels >= classes)]
        if outside.numel():
            raise ValueError(
                f"y holds the label {int(outside[0])}, outside 0 to {classes - 1} for {classes} classes; "
                "number the labels from 0 or give the network more outputs."
            )


@dataclass(frozen=True)
class Dirichlet(Categorical):
    """Outputs are log-concentrations: p ~ Dirichlet(exp(outputs)), and y given p as in Categorical.

    Its mean is the softmax of the outputs, so `log_prob` is Categorical's; how far p spreads about it is what a student
    learns from a teacher's draws (Malinin, Mlodozeniec and Gales, 2020, arXiv 1905.00076).
    """

    second_order = True

    def concentration(self, outputs: Tensor) -> Tensor:
        """alpha, (B, *event, C)."""
        return outputs.movedim(self.class_axis, -1).exp()

    def spread(self, outputs: Tensor) -> Tensor:
        """Var p_c = m_c (1 - m_c) / (alpha_0 + 1), in the shape of `mean`."""
        mean = self.mean(outputs)
        return mean * (1 - mean) / (self.concentration(outputs).sum(-1, keepdim=True) + 1)

    def expected_entropy(self, outputs: Tensor) -> Tensor:
        """E H[p] = psi(alpha_0 + 1) - sum_c m_c psi(alpha_c + 1)."""
        log_alpha = outputs.movedim(self.class_axis, -1).double()
        inner = (log_alpha.softmax(-1) * _digamma_after(log_alpha)).sum(-1)
        return (_digamma_after(log_alpha.logsumexp(-1)) - inner).to(outputs.dtype)


def _digamma_after(log_alpha: Tensor) -> Tensor:
    """psi(alpha + 1), which is log alpha where alpha itself may be too large for a number."""
    return torch.where(log_alpha < 30, torch.digamma(log_alpha.clamp_max(30).exp() + 1), log_alpha)


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Binary classification by logits: log p(y | z) = y log s(z) + (1 - y) log s(-z).

    One logit, (B,) or (B, 1), or K independent labels, (B, K); `mean` gives (p(0), p(1)) on a last axis of two.
    """

    kind = "classification"

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        y = _align(outputs, y).to(outputs.dtype)
        return _sum_events(y * F.logsigmoid(outputs) + (1 - y) * F.logsigmoid(-outputs))

    def mean(self, outputs: Tensor) -> Tensor:
        logits = outputs.squeeze(-1) if outputs.ndim > 1 else outputs
        return torch.stack([torch.sigmoid(-logits), torch.sigmoid(logits)], -1)

    def resolve(self, outputs: Tensor, y: Tensor) -> Self:
        _align(outputs, y)
        _check_finite(y)
        other = y[(y != 0) & (y != 1)]
        if other.numel():
            raise ValueError(
                f"Bernoulli wants y in {{0, 1}} but found {other[0].item():g}; recode y, or use Categorical() for "
                "more than two classes."
            )
        return self


class _Regression(Likelihood):
    """Real or count outputs: y has the shape of the means, or lacks their last axis of one."""

    kind = "regression"

    def resolve(self, outputs: Tensor, y: Tensor) -> Self:
        _align(self.mean(outputs), y)
        _check_finite(y)
        return self


class _Normal(_Regression):
    """y ~ N(mean, std^2), elementwise; subclasses say where mean and std come from."""

    gaussian = True

    @abstractmethod
    def _moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (B, C) and a standard deviation that broadcasts to it."""

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, std = self._moments(outputs)
        error = (_align(mean, y).to(mean.dtype) - mean) / std
        return _sum_events(-0.5 * error.square() - std.log() - LOG_SQRT_2PI)

    def mean(self, outputs: Tensor) -> Tensor:
        return self._moments(outputs)[0]

    def variance(self, outputs: Tensor) -> Tensor:
        mean, std = self._moments(outputs)
        return std.square().expand_as(mean)

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, std = self._moments(outputs)
        below: Tensor = torch.special.ndtr((_align(mean, y).to(mean.dtype) - mean) / std)
        return below


@dataclass(frozen=True)
class Gaussian(_Normal):
    """y ~ N(outputs, std^2) with known noise; `Gaussian.learned()` and `Gaussian.heteroscedastic()` find it."""

    std: float

    def __post_init__(self) -> None:
        check_positive(self, "std")

    def _moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        return _columns(outputs), outputs.new_full((), self.std)

    @staticmethod
    def learned(start: float = 1.0) -> "LearnedGaussian":
        """One noise std, shared by all outputs and learned from `start`."""
        return LearnedGaussian(start)

    @staticmethod
    def heteroscedastic() -> "HeteroscedasticGaussian":
        """Noise that depends on the input: the network outputs C means, then C raws with std = softplus(raw)."""
        return HeteroscedasticGaussian()


@dataclass(frozen=True, repr=False)
class LearnedGaussian(_Normal):
    """y ~ N(outputs, std^2) with one unknown std = softplus(raw_std); raw_std ~ N(0, 1) a priori."""

    start: float = 1.0
    raw_std: Tensor | None = field(default=None, compare=False)  # set by `bind`

    def __post_init__(self) -> None:
        check_positive(self, "start")

    def __repr__(self) -> str:
        return f"Gaussian.learned(start={self.start})"

    def parameters(self) -> dict[str, Tensor]:
        """The scalar raw_std = log(exp(start) - 1), written so that large starts do not overflow."""
        if self.raw_std is not None:
            return {"raw_std": self.raw_std}
        return {"raw_std": torch.full((), self.start + math.log(-math.expm1(-self.start)))}

    def bind(self, values: Mapping[str, Tensor]) -> Self:
        return replace(self, raw_std=values["raw_std"])

    def _moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        return _columns(outputs), F.softplus(self.parameters()["raw_std"].to(outputs))


@dataclass(frozen=True, repr=False)
class HeteroscedasticGaussian(_Normal):
    """y ~ N(mean, std^2) with outputs (mean, raw), std = softplus(raw) (Nix & Weigend 1994)."""

    def __repr__(self) -> str:
        return "Gaussian.heteroscedastic()"

    def _moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = outputs.chunk(2, -1)
        return mean, F.softplus(raw) + STD_FLOOR

    def resolve(self, outputs: Tensor, y: Tensor) -> Self:
        if outputs.ndim < 2 or outputs.shape[-1] % 2:
            raise ValueError(
                f"Gaussian.heteroscedastic() needs C means and C raws on the last axis but the outputs have shape "
                f"{_shape(outputs)}; give the network twice as many outputs as y has columns."
            )
        return super().resolve(outputs, y)


@dataclass(frozen=True)
class Poisson(_Regression):
    """Counts: y ~ Poisson(exp(outputs)), log p = y z - exp(z) - log y!."""

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        log_rate = _columns(outputs)
        y = _align(log_rate, y).to(log_rate.dtype)
        return _sum_events(y * log_rate - log_rate.exp() - torch.lgamma(y + 1))

    def mean(self, outputs: Tensor) -> Tensor:
        return _columns(outputs).exp()

    def variance(self, outputs: Tensor) -> Tensor:
        return self.mean(outputs)

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        """P(Y <= y) = Q(floor(y) + 1, rate), the regularised upper incomplete gamma function."""
        rate = self.mean(outputs)
        y = _align(rate, y).to(rate.dtype)
        below: Tensor = torch.special.gammaincc(y.floor().clamp(min=0) + 1, rate)
        return below.masked_fill(y < 0, 0.0)

    def resolve(self, outputs: Tensor, y: Tensor) -> Self:
        super().resolve(outputs, y)
        bad = y[(y < 0) | (y != y.floor())] if y.is_floating_point() else y[y < 0]
        if bad.numel():
            raise ValueError(
                f"Poisson wants counts 0, 1, 2, ... but y holds {bad[0].item():g}; use Gaussian.learned() for real y."
            )
        return self


def default_for(y: Tensor) -> Likelihood:
    """The likelihood taken when none is named: Categorical for integer y, Gaussian.learned() for floating y."""
    if y.is_complex():
        raise ValueError(f"no likelihood for y of {y.dtype}; use real or integer y, or pass likelihood=.")
    return Gaussian.learned() if y.is_floating_point() else Categorical()


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _without(tensor: Tensor, axis: int) -> tuple[int, ...]:
    shape = list(tensor.shape)
    del shape[axis]
    return tuple(shape)


def _columns(outputs: Tensor) -> Tensor:
    """One output per example, (B,), as a column (B, 1)."""
    return outputs.unsqueeze(-1) if outputs.ndim == 1 else outputs


def _sum_events(log_prob: Tensor) -> Tensor:
    return log_prob.flatten(1).sum(1) if log_prob.ndim > 1 else log_prob


def _align(outputs: Tensor, y: Tensor) -> Tensor:
    """Observations in the shape of the outputs where they differ by a last axis of one; nothing else may broadcast."""
    single = outputs.ndim > 1 and outputs.shape[-1] == 1
    if y.shape == outputs.shape:
        return y
    if (single and y.shape == outputs.shape[:-1]) or (outputs.ndim == 1 and _shape(y) == (len(outputs), 1)):
        return y.reshape(outputs.shape)
    wanted = f"{_without(outputs, -1)} or {_shape(outputs)}" if single else f"{_shape(outputs)}"
    raise ValueError(
        f"y of shape {_shape(y)} does not fit one network output per value of shape {_shape(outputs)}; "
        f"expected y of shape {wanted}."
    )


def _check_finite(y: Tensor) -> None:
    bad = int((~torch.isfinite(y)).sum())
    if bad:
        raise ValueError(f"y holds {bad} values that are NaN or infinite; remove or impute these rows first.")
