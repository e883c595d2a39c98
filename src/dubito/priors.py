"""Priors over weights: elementwise densities, and their assignment to the parameters of a module."""

import copy
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from dubito.config import is_number, to_dict

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def check_positive(settings: object, *names: str) -> None:
    """ValueError unless each named field is a positive, finite number."""
    for name in names:
        value = getattr(settings, name)
        if not (is_number(value) and value > 0):
            raise ValueError(f"{type(settings).__name__}: {name} is {value!r}; it must be a positive, finite number.")


class Prior(ABC):
    """An elementwise prior; a subclass needs `log_prob` alone."""

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """Normalised log density of every element in nats, in the shape of `value`."""


@dataclass(frozen=True)
class Normal(Prior):
    """N(mean, std^2)."""

    std: float = 1.0
    mean: float = 0.0

    def __post_init__(self) -> None:
        check_positive(self, "std")
        if not is_number(self.mean):
            raise ValueError(f"Normal: mean is {self.mean!r}; it must be finite.")

    def log_prob(self, value: Tensor) -> Tensor:
        return -0.5 * ((value - self.mean) / self.std).square() - (math.log(self.std) + LOG_SQRT_2PI)


class Normals(Prior):
    """N(mean_i, std_i^2), a normal of its own for every weight: the posterior of an earlier run, or a trained net."""

    def __init__(self, mean: Tensor, std: Tensor | float) -> None:
        self.mean = mean.detach().clone().cpu()
        self.std = torch.as_tensor(std, dtype=mean.dtype).detach().cpu().expand_as(self.mean).clone()
        if not bool((torch.isfinite(self.mean) & torch.isfinite(self.std) & (self.std > 0)).all()):
            raise ValueError(f"Normals: a mean or std of shape {tuple(mean.shape)} is not finite or not positive.")

    def log_prob(self, value: Tensor) -> Tensor:
        mean, std = self.mean.to(value), self.std.to(value)
        return -0.5 * ((value - mean) / std).square() - (std.log() + LOG_SQRT_2PI)

    def __repr__(self) -> str:
        """Shape and a fingerprint of the numbers, by which a run that goes on knows its prior again."""
        held = torch.stack([self.mean, self.std]).double().numpy().tobytes()
        return f"Normals({tuple(self.mean.shape)}, {hashlib.blake2b(held, digest_size=6).hexdigest()})"


@dataclass(frozen=True)
class ScaleMixture(Prior):
    """pi N(0, std1^2) + (1 - pi) N(0, std2^2), summed in log space (Blundell et al. 2015, eq. 7)."""

    pi: float
    std1: float
    std2: float

    def __post_init__(self) -> None:
        check_positive(self, "std1", "std2")
        if not (is_number(self.pi) and 0 < self.pi < 1):
            raise ValueError(f"ScaleMixture: pi is {self.pi!r}; it must lie between 0 and 1, or use Normal(std).")

    def log_prob(self, value: Tensor) -> Tensor:
        first = Normal(self.std1).log_prob(value) + math.log(self.pi)
        second = Normal(self.std2).log_prob(value) + math.log1p(-self.pi)
        return torch.logaddexp(first, second)


@dataclass(frozen=True)
class Laplace(Prior):
    """exp(-|w| / scale) / (2 scale)."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self, "scale")

    def log_prob(self, value: Tensor) -> Tensor:
        return -value.abs() / self.scale - math.log(2 * self.scale)


@dataclass(frozen=True)
class StudentT(Prior):
    """Student's t with `df` degrees of freedom, centred on 0: (1 + (w/scale)^2 / df)^(-(df+1)/2), normalised."""

    df: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self, "df", "scale")

    def log_prob(self, value: Tensor) -> Tensor:
        half = (self.df + 1) / 2
        constant = math.lgamma(half) - math.lgamma(self.df / 2) - 0.5 * math.log(self.df * math.pi)
        return constant - math.log(self.scale) - half * ((value / self.scale).square() / self.df).log1p()


def slopes(value: Tensor, *at: Tensor) -> tuple[Tensor, ...]:
    """The gradients of a number, 0 where it is a constant, as under a flat prior."""
    return torch.autograd.grad(value, at) if value.requires_grad else tuple(torch.zeros_like(t) for t in at)


@runtime_checkable
class Density(Protocol):
    """Whatever has a `log_prob`, such as a distribution of torch over one number."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of every element in nats."""


class Given(Prior):
    """A density from elsewhere as a prior over each of a parameter's elements."""

    def __init__(self, density: Density) -> None:
        self.density = density
        self._placed: dict[torch.device, Distribution] = {}

    def log_prob(self, value: Tensor) -> Tensor:
        if not isinstance(self.density, Distribution):
            return self.density.log_prob(value)
        if value.device not in self._placed:
            self._placed[value.device] = _placed(self.density, value.device)
        return _log_prob(self._placed[value.device], value)

    def __repr__(self) -> str:
        return repr(self.density)


def _placed(distribution: Distribution, device: torch.device) -> Distribution:
    """A copy with its numbers on a device; it does not ask whether values lie in its support, as that is read back."""
    made = copy.copy(distribution)
    made._validate_args = False
    for name, part in vars(distribution).items():
        if isinstance(part, Tensor):
            setattr(made, name, part.to(device))
        elif isinstance(part, Distribution):
            setattr(made, name, _placed(part, device))
    return made


def _log_prob(distribution: Distribution, value: Tensor) -> Tensor:
    """The log density, -inf outside the support where the distribution tells one."""
    found: Tensor = distribution.log_prob(value)
    try:
        support: Any = distribution.support
    except NotImplementedError:
        return found
    return torch.where(support.check(value), found, -torch.inf)


@dataclass(frozen=True)
class Fixed:
    """Marks a parameter that keeps its value."""


@dataclass(frozen=True)
class Point:
    """Marks a parameter that is optimised without a distribution; not for samplers."""


_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True)
class FanIn:
    """The default prior: N(0, gain^2 / fan_in) over matrices and kernels.

    The scale of a prior network then does not depend on its width (Neal 1996). The gain is measured, not derived:
    sqrt(2) would keep the scale of the inputs through ReLU layers (He et al. 2015), but 4 predicts held-out data
    better in the study `default-prior`, and is what published priors come to (weight decay 1e-3 on 784 inputs).
    N(0, 1) over biases, embeddings and other vectors; N(1, 1) over the scales of normalisation layers. A tied
    parameter goes by its first name.
    """

    gain: float = 4.0

    def __post_init__(self) -> None:
        check_positive(self, "gain")

    def of(self, owner: nn.Module, name: str, parameter: Tensor) -> Normal:
        """The prior of `owner`'s own parameter `name`."""
        if isinstance(owner, _NORMS) and name == "weight":
            return Normal(std=1.0, mean=1.0)
        if parameter.ndim < 2 or name.startswith("bias") or isinstance(owner, (*_NORMS, *_EMBEDDINGS)):
            return Normal(std=1.0)
        return Normal(std=self.gain / math.sqrt(_fan_in(owner, parameter)))


@dataclass(frozen=True)
class Centred:
    """N(w0, std^2) around the module's own weights w0, for a net that has been trained; `FanIn`'s scales when None."""

    std: float | None = None

    def __post_init__(self) -> None:
        if self.std is not None:
            check_positive(self, "std")

    def of(self, owner: nn.Module, name: str, parameter: Tensor) -> Normals:
        """The prior of `owner`'s own parameter `name`."""
        return Normals(parameter, FanIn().of(owner, name, parameter).std if self.std is None else self.std)


def _fan_in(owner: nn.Module, parameter: Tensor) -> float:
    """How many inputs one output sums over; for transposed convolutions the mean over output positions."""
    if isinstance(owner, nn.modules.conv._ConvTransposeNd):
        taps = math.prod(parameter.shape[2:]) / math.prod(owner.stride)
        return max(1.0, parameter.shape[0] / owner.groups * taps)
    return max(1.0, parameter.numel() / max(1, parameter.shape[0]))


_OWN = (Normal, Normals, ScaleMixture, Laplace, StudentT)
Assigned = Prior | Fixed | Point
PriorLike = Assigned | FanIn | Centred | Density
PriorSpec = (
    PriorLike | Mapping[Any, PriorLike] | None
)  # keys: str or a module type; Any, as mappings are invariant in them


def assign(prior: PriorSpec, module: nn.Module) -> dict[str, Assigned]:
    """The concrete prior of every parameter, in the order of `module.named_parameters()`.

    A mapping's key is a parameter name, a glob over names, or a module type that covers every parameter inside such a
    module; the first match wins, a tied parameter answers to all its names, and what no key matches gets `FanIn()`.
    Parameters that do not require a gradient are `Fixed()`.
    """
    rules: Mapping[Any, PriorLike] = prior if isinstance(prior, Mapping) else {"*": FanIn() if prior is None else prior}
    names = _names(module)
    _check_rules(rules, module, names)
    assigned: dict[str, Assigned] = {}
    for name, parameter in module.named_parameters():
        aliases = names[id(parameter)]
        chosen = next((rule for key, rule in rules.items() if _matches(key, module, aliases)), FanIn())
        if not parameter.requires_grad:
            chosen = Fixed()
        assigned[name] = _concrete(chosen, module, name, parameter)
    return assigned


def describe(assignment: Mapping[str, Assigned]) -> dict[str, dict[str, Any]]:
    """The assignment as plain JSON: parameter name to the prior's name and settings."""
    return {name: to_dict(prior) for name, prior in assignment.items()}


def _names(module: nn.Module) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names


def _concrete(prior: PriorLike, module: nn.Module, name: str, parameter: Tensor) -> Assigned:
    if isinstance(prior, FanIn | Centred):
        path, _, own_name = name.rpartition(".")
        return prior.of(module.get_submodule(path), own_name, parameter)
    if not isinstance(prior, Assigned):
        _check_given(prior, parameter.detach().flatten().to(_device(prior)))
        return Given(prior)
    if isinstance(prior, Prior) and type(prior) not in _OWN:
        _check_elementwise(prior, parameter.detach().flatten().to(_device(prior)).unsqueeze(0))
    return prior


def _device(density: Density) -> torch.device:
    """Where a density has its own numbers, if it has any in tensors."""
    held = getattr(density, "__dict__", {}).values()
    return next((part.device for part in held if isinstance(part, Tensor)), torch.device("cpu"))


def _check_given(density: Density, weights: Tensor) -> None:
    """Refuse a density that is not over single numbers, or that has none at the network's own weights."""
    try:
        _check_elementwise(density, weights[:2].expand(3, -1))
        density.log_prob(weights)
    except ValueError as error:
        if "within the support" not in str(error):
            raise
        raise ValueError(
            f"{density!r} has no density at some of the network's own weights; give one over all numbers, such as "
            "Normal(std=1.0)"
        ) from error


def _check_elementwise(density: Density, value: Tensor) -> None:
    found = density.log_prob(value).shape
    if found != value.shape:
        raise ValueError(
            f"{density!r} has a log_prob of shape {tuple(found)} for weights of shape {tuple(value.shape)}; give a "
            "density over one number, which is used for each"
        )


def _matches(key: str | type[nn.Module], module: nn.Module, aliases: list[str]) -> bool:
    if isinstance(key, str):
        return any(alias == key or fnmatchcase(alias, key) for alias in aliases)
    return any(isinstance(owner, key) for alias in aliases for owner in _enclosing(module, alias))


def _enclosing(module: nn.Module, name: str) -> Iterator[nn.Module]:
    """Every module around a parameter, from the root to its owner."""
    yield module
    for part in name.split(".")[:-1]:
        module = module.get_submodule(part)
        yield module


def _check_rules(rules: Mapping[Any, PriorLike], module: nn.Module, names: Mapping[int, list[str]]) -> None:
    for key, rule in rules.items():
        if hasattr(rule, "as_prior"):
            raise ValueError(f"{rule!r} is a posterior; give prior=posterior.as_prior() to learn on from it.")
        if isinstance(rule, type) or not isinstance(rule, PriorLike):
            raise ValueError(f"{rule!r} is no prior; use e.g. Normal(std=1.0), Fixed(), Point() or a mapping to these.")
        if not (isinstance(key, str) or (isinstance(key, type) and issubclass(key, nn.Module))):
            raise ValueError(f"the prior key {key!r} is neither a name pattern nor a module type; use one of these.")
        if names and not any(_matches(key, module, aliases) for aliases in names.values()):
            shown = [aliases[0] for aliases in names.values()]
            listed = ", ".join(shown[:8]) + (", ..." if len(shown) > 8 else "")
            text = key if isinstance(key, str) else key.__name__
            raise ValueError(f"the prior key {text!r} matches no parameter; the parameters are {listed}.")
