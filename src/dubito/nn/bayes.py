"""Layers with Gaussian weights, for those who build with layers; `dubito.fit` needs none of them.

    net = nn.Sequential(BayesLinear(784, 400), nn.ReLU(), BayesLinear(400, 10))
    loss = F.cross_entropy(net(x), y) + kl(net) / n_data

`weight` and `bias` are the means, `weight_rho` and `bias_rho` the standard deviations before softplus. Every call is a
new draw, by the estimators of `dubito.noisy`, from the layer's own stream: in training and in evaluation alike, and
the global generator is left as it was. `to_posterior` gives a trained net all that posteriors can do.
"""

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dubito.config import check_positive
from dubito.local import moments
from dubito.noisy import Call, Estimator, flipped
from dubito.priors import LOG_SQRT_2PI, Assigned, FanIn, Normal, Prior, assign
from dubito.rng import Rng

if TYPE_CHECKING:
    from dubito.likelihoods import Likelihood
    from dubito.posteriors.gaussian import GaussianPosterior

Size = int | Sequence[int]
DEFAULT_PRIOR = FanIn()
NO_LAYERS = "the module has no layers with Gaussian weights; use dubito.fit for a module of plain ones"


class _Bayesian(nn.Module):
    """What the layers share; the class behind it in a layer's bases is the plain one."""

    plain: type[nn.Module]
    weight: Tensor
    bias: Any  # a tensor or None
    stream: Tensor

    def _spread(self, prior: Prior | FanIn, init_std: float, estimator: Estimator) -> None:
        """Standard deviations, a prior for each parameter, and a stream of noise."""
        check_positive(self, "init_std", init_std)
        if estimator not in ("local", "weights", "flipout"):
            raise ValueError(f"unknown estimator {estimator!r}; use 'local', 'weights' or 'flipout'")
        self.estimator, self.priors = estimator, dict[str, Prior]()
        assigned = assign(prior, self)
        for name in self._names():
            mean = getattr(self, name)
            self.register_parameter(f"{name}_rho", nn.Parameter(torch.full_like(mean, math.log(math.expm1(init_std)))))
            self.priors[name] = self._density(name, assigned[name])
        self.register_buffer("stream", torch.stack([torch.randint(1 << 62, ()), torch.tensor(0)]))  # seed, calls

    def _density(self, name: str, prior: Assigned) -> Prior:
        if not isinstance(prior, Prior):
            raise ValueError(
                f"{type(self).__name__}: {prior!r} leaves {name} without a distribution; give a prior such as "
                "Normal(std=1.0), or use the plain layer"
            )
        return prior

    def std(self, name: str) -> Tensor:
        """The standard deviations of "weight" or "bias"."""
        return F.softplus(getattr(self, f"{name}_rho"))

    def forward(self, x: Tensor) -> Tensor:
        """One draw."""
        seed, calls = self.stream.tolist()
        self.stream[1] += 1
        rng, stds = Rng(seed, calls), {name: self.std(name) for name in self._names()}
        call = Call(self._apply_layer, x, self.weight, self.bias, (), {})
        if self.estimator == "local":
            mean, std = moments(call.__call__, x, self.weight, self.bias, stds["weight"], stds.get("bias"))
            return torch.addcmul(mean, std, _normal(mean, rng, "outputs"))
        change = {name: std * _normal(std, rng, name) for name, std in stds.items()}
        if self.estimator == "weights":
            bias = self.bias if self.bias is None else self.bias + change["bias"]
            return call(x, self.weight + change["weight"], bias)
        outputs = call(x, self.weight, self.bias)
        r, s = (_signs(t, self._channels(x), rng, name) for t, name in ((outputs, "r"), (x, "s")))
        return flipped(call, outputs, change["weight"], change.get("bias"), r, s)

    def kl(self) -> Tensor:
        """KL(q || p) in nats: closed for normal priors, otherwise from one draw."""
        rng = Rng(int(self.stream[0]), int(self.stream[1])).child("kl")
        return torch.stack([_kl(p, getattr(self, n), self.std(n), rng, n) for n, p in self.priors.items()]).sum()

    def _names(self) -> list[str]:
        return ["weight"] if self.bias is None else ["weight", "bias"]

    def _channels(self, x: Tensor) -> int:
        """The axis of features, which one example without a batch begins with where it is convolved."""
        return -1 if self.weight.dim() == 2 else 1 + x.dim() - self.weight.dim()

    def _apply_layer(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The plain layer's function."""
        return F.linear(x, weight, bias)


class BayesLinear(_Bayesian, nn.Linear):
    """`nn.Linear` with a Gaussian over weight and bias."""

    plain = nn.Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        prior: Prior | FanIn = DEFAULT_PRIOR,
        init_std: float = 0.01,
        estimator: Estimator = "local",
    ) -> None:
        nn.Linear.__init__(self, in_features, out_features, bias)
        self._spread(prior, init_std, estimator)


class _BayesConv(_Bayesian):
    """The convolutions, which differ in the number of their dimensions."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        prior: Prior | FanIn = DEFAULT_PRIOR,
        init_std: float = 0.01,
        estimator: Estimator = "local",
    ) -> None:
        start = cast(Any, self.plain).__init__
        start(self, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode)
        self._spread(prior, init_std, estimator)

    def _apply_layer(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return cast(Tensor, cast(Any, self)._conv_forward(x, weight, bias))


class BayesConv1d(_BayesConv, nn.Conv1d):
    """`nn.Conv1d` with a Gaussian over kernel and bias."""

    plain = nn.Conv1d


class BayesConv2d(_BayesConv, nn.Conv2d):
    """`nn.Conv2d` with a Gaussian over kernel and bias."""

    plain = nn.Conv2d


class BayesConv3d(_BayesConv, nn.Conv3d):
    """`nn.Conv3d` with a Gaussian over kernel and bias."""

    plain = nn.Conv3d


def kl(module: nn.Module) -> Tensor:
    """The KL of all Gaussian layers inside a module from their priors, in nats; divide it by the number of data."""
    parts = [part.kl() for part in module.modules() if isinstance(part, _Bayesian)]
    if not parts:
        raise ValueError(NO_LAYERS)
    return torch.stack(parts).sum()


def check_plain(module: nn.Module) -> None:
    """Refuse layers that draw weights themselves where a method would put a posterior over their parameters."""
    drawing = {path: part for path, part in module.named_modules() if isinstance(part, _Bayesian)}
    found = [f"{path or 'the module'} ({type(part).__name__})" for path, part in drawing.items()]
    if found:
        raise ValueError(
            f"the network draws weights itself, in {', '.join(found)}; give fit the same net with plain layers, or "
            "train this one in a loop of your own and call dubito.nn.to_posterior"
        )


def to_posterior(module: nn.Module, likelihood: "Likelihood") -> "GaussianPosterior":
    """The posterior a net of Gaussian layers has learned, over the same net with plain layers."""
    from dubito.net import Net
    from dubito.posteriors.gaussian import GaussianPosterior

    stds, plain = dict[str, Tensor](), copy.deepcopy(module)
    for path, part in plain.named_modules():
        if isinstance(part, _Bayesian):
            names = part._names()
            stds |= {f"{path}.{name}" if path else name: part.std(name).detach() for name in names}
            for name in names:
                del part._parameters[f"{name}_rho"]
            del part._buffers["stream"]
            part.__class__ = part.plain  # type: ignore[assignment]
    if not stds:
        raise ValueError(NO_LAYERS)
    net = Net(plain)
    named = {n: stds.get(n, torch.zeros_like(p)) for n, p in plain.named_parameters()}
    buffers = net.buffers(1)
    return GaussianPosterior(net, likelihood, net.theta()[None], net.layout.join(named)[None].detach(), buffers)


def _normal(like: Tensor, rng: Rng, name: str) -> Tensor:
    return rng.normal_(torch.empty_like(like, memory_format=torch.contiguous_format).unsqueeze(0), name)[0]


def _signs(like: Tensor, channels: int, rng: Rng, name: str) -> Tensor:
    """One sign per example and channel."""
    shape = [1] * like.dim()
    shape[0], shape[channels] = like.shape[0], like.shape[channels]
    return rng.uniform((1, *shape), name, like)[0].lt(0.5).to(like.dtype).mul_(2).sub_(1)


def _kl(prior: Prior, mean: Tensor, std: Tensor, rng: Rng, name: str) -> Tensor:
    entropy = std.log().sum() + std.numel() * (0.5 + LOG_SQRT_2PI)
    if type(prior) is Normal:
        expected = prior.log_prob(mean).sum() - 0.5 * (std / prior.std).square().sum()
    else:
        expected = prior.log_prob(mean + std * _normal(std.detach(), rng, name)).sum()
    return -expected - entropy
