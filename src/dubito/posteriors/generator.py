"""The posterior of adversarial distillation: a small network that turns noise into networks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito.likelihoods import Likelihood
from dubito.net import Net
from dubito.posteriors import files
from dubito.posteriors.samples import diagnosed
from dubito.posteriors.storage import Damaged, Samples
from dubito.posteriors.weights import WeightPosterior
from dubito.rng import Rng

if TYPE_CHECKING:
    from dubito.diagnostics import Diagnostics

TENSORS = "generator.safetensors"
MOMENTS = 1000  # draws behind `moments`
DIAGNOSED, CHAINS = 2000, 4  # draws behind `diagnose`
SHIFT, SCALE = "shift", "scale"
Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Generator:
    """Noise -> ReLU layers -> weight vectors, as a function of named parameters.

    With a `rank` r each weight matrix has a head of its own that emits two factors A (out, r) and B (in, r), the matrix
    being A B^T / sqrt(r); the rest comes from one linear layer. Where `shift` and `scale` are among the parameters,
    what comes out are standardised weights, and they put them back.
    """

    noise: int
    widths: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]  # of the weight tensors, in their order
    rank: int | None = None

    def init(self, rng: Rng, like: Tensor) -> Parameters:
        """Parameters to start from."""
        return he_initial(self.layers, rng, like)

    @property
    def layers(self) -> dict[str, tuple[int, int]]:
        """(outputs, inputs) of every linear layer."""
        sizes = (self.noise, *self.widths)
        hidden = {f"hidden.{i}": (b, a) for i, (a, b) in enumerate(pairwise(sizes))}
        return hidden | {f"head.{i}": (n, sizes[-1]) for i, n in enumerate(self._head_sizes)}

    def __call__(self, parameters: Mapping[str, Tensor], z: Tensor) -> Tensor:
        """Vectors (n, D) from noise (n, noise)."""
        h = z
        for i in range(len(self.widths)):
            h = F.relu(_linear(parameters, f"hidden.{i}", h))
        emitted = [_linear(parameters, f"head.{i}", h) for i in range(len(self._head_sizes))]
        theta = emitted[0] if self.rank is None else self._assembled(emitted)
        return torch.addcmul(parameters[SHIFT], parameters[SCALE], theta) if SHIFT in parameters else theta

    def standardised(self, parameters: Parameters, shift: Tensor, scale: Tensor) -> Parameters:
        """Parameters of the same generator whose outputs are put through shift + scale * output."""
        if self.rank is not None:
            return {**parameters, SHIFT: shift, SCALE: scale}
        weight, bias = parameters["head.0.weight"], parameters["head.0.bias"]
        folded = {"head.0.weight": weight * scale.unsqueeze(1), "head.0.bias": torch.addcmul(shift, scale, bias)}
        return {**parameters, **folded}

    def _is_factored(self, shape: tuple[int, ...]) -> bool:
        out, rest = shape[0] if shape else 1, math.prod(shape[1:])
        return self.rank is not None and len(shape) > 1 and self.rank * (out + rest) < out * rest

    @property
    def _head_sizes(self) -> list[int]:
        """One head for all, or one for each factored matrix and a last one for the rest."""
        factored = [s for s in self.shapes if self._is_factored(s)]
        rest = sum(math.prod(s) for s in self.shapes if not self._is_factored(s))
        heads = [(self.rank or 0) * (s[0] + math.prod(s[1:])) for s in factored]
        return heads + ([rest] if rest else [])

    def _assembled(self, emitted: Sequence[Tensor]) -> Tensor:
        """Factors multiplied out, and the rest put between them in the order of the weights."""
        heads, rest, parts = iter(emitted), emitted[-1], []
        for shape in self.shapes:
            if self._is_factored(shape):
                parts.append(self._product(next(heads), shape))
            else:
                part, rest = rest.split([math.prod(shape), rest.shape[1] - math.prod(shape)], dim=1)
                parts.append(part)
        return torch.cat(parts, 1)

    def _product(self, factors: Tensor, shape: tuple[int, ...]) -> Tensor:
        rank, rows = self.rank or 1, shape[0]
        left, right = factors.split([rank * rows, rank * math.prod(shape[1:])], dim=1)
        product: Tensor = left.unflatten(1, (rows, rank)) @ right.unflatten(1, (rank, -1))
        return product.flatten(1) / math.sqrt(rank)


@dataclass(frozen=True, eq=False, repr=False)
class GeneratorPosterior(WeightPosterior):
    """Networks made from noise: draw i is a fixed function of (seed, i)."""

    net: Net
    likelihood: Likelihood
    generator: Generator
    parameters: Parameters
    about: Mapping[str, Any] = field(default_factory=dict)

    kind = "generator"

    def vectors(self, n: int, seed: int = 0) -> tuple[Samples, Sequence[int]]:
        return _Generated(self, seed, n), range(n)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of every coordinate over many draws, which has no closed form."""
        samples, _ = self.vectors(MOMENTS)
        total = square = torch.zeros((), device=self.net.device)
        for part in samples.pieces():
            total, square = total + part.double().sum(0), square + part.double().square().sum(0)
        mean = total / MOMENTS
        spread = (square / MOMENTS - mean.square()).clamp_min(0).sqrt()
        return mean.to(self.net.dtype), spread.to(self.net.dtype)

    def diagnose(self, x: Any = None) -> "Diagnostics":
        """Of independent draws, shared out to four chains: R-hat is 1 and every draw counts.

        What a generator has collapsed onto one value is named as constant.
        """
        return diagnosed(self, _Generated(self, 0, DIAGNOSED, CHAINS), x)

    @property
    def size(self) -> int:
        """How many numbers are stored."""
        return sum(p.numel() for p in self.parameters.values())

    def to(self, device: str | torch.device) -> "GeneratorPosterior":
        net = self.net.to(device)
        return replace(self, net=net, parameters={n: p.to(net.device) for n, p in self.parameters.items()})

    def save(self, folder: str | Path) -> None:
        described = {"noise": self.generator.noise, "widths": list(self.generator.widths), "rank": self.generator.rank}
        files.save_tensors(folder, self, TENSORS, self.parameters, {"generator": described})

    def __len__(self) -> int:
        """No network is stored; one generator is."""
        return 1

    def __repr__(self) -> str:
        made = f"a generator of {self.size:,} numbers"
        return f"<Adversarial: {made} for networks of {self.net.layout.size:,} weights, {self.likelihood!r}>"


class _Generated(Samples):
    """Draws of a generator as samples, made when they are asked for."""

    def __init__(self, posterior: GeneratorPosterior, seed: int, n: int, chains: int = 1) -> None:
        self.posterior, self.rng = posterior, Rng(seed).child("generator")
        self.rows, self.chains = n // chains, chains

    def get(self, index: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        held = self.posterior
        like = next(iter(held.parameters.values()))
        z = like.new_empty(len(index), held.generator.noise)
        for row, i in zip(z, index, strict=True):
            self.rng.normal_(row.unsqueeze(0), "z", i)
        with torch.no_grad():
            return held.generator(held.parameters, z), {}


def he_initial(layers: Mapping[str, tuple[int, int]], rng: Rng, like: Tensor) -> Parameters:
    """Weights of variance 2 / fan-in (He et al., 2015) and biases 0 of linear layers (outputs, inputs)."""
    made: Parameters = {}
    for number, (name, (out, fan_in)) in enumerate(layers.items()):
        weight = rng.normal_(like.new_empty(1, out, fan_in), "weights", number)[0]
        made[f"{name}.weight"] = weight.mul_(math.sqrt(2 / fan_in))
        made[f"{name}.bias"] = like.new_zeros(out)
    return made


def _linear(parameters: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"])


def weight_shapes(net: Net, likelihood: Likelihood) -> tuple[tuple[int, ...], ...]:
    """The tensors that make up a whole vector [net | likelihood]."""
    return (*net.layout.shapes, *(tuple(p.shape) for p in likelihood.parameters().values()))


def stored(folder: Path, manifest: Mapping[str, Any], net: Net, likelihood: Likelihood) -> GeneratorPosterior:
    """The posterior a folder holds."""
    made = manifest["generator"]
    generator = Generator(made["noise"], tuple(made["widths"]), weight_shapes(net, likelihood), made["rank"])
    wanted = {f"{name}.weight": shape for name, shape in generator.layers.items()}
    held = files.load_tensors(folder, TENSORS, net, tuple(wanted))
    for name, shape in wanted.items():
        if tuple(held[name].shape) != shape:
            found = tuple(held[name].shape)
            raise Damaged(
                f"{folder / TENSORS} belongs to another network: {name} is {found} there, {shape} here; give the "
                "network it was made from"
            )
    return GeneratorPosterior(net, likelihood, generator, held, manifest.get("about", {}))
