"""The critic of adversarial distillation: an MLP on weight vectors whose slope is known in closed form."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito.posteriors.generator import Parameters, he_initial
from dubito.rng import Rng


@dataclass(frozen=True)
class Critic:
    """Vectors (n, D) -> ReLU layers -> one score each.

    The first layer is linear, so its pre-activations of a mixture of two vectors are the mixture of theirs; and between
    its kinks the slope of the score is the product of the layers, g = w D_k W_k ... D_1 W_1, so that
    |g|^2 = h (W_1 W_1^T) h^T with h = w D_k W_k ... D_1. Neither mixtures nor slopes, (n, D) each, are ever made.
    """

    size: int
    widths: tuple[int, ...]

    def init(self, rng: Rng, like: Tensor) -> Parameters:
        """Parameters to start from."""
        sizes = (self.size, *self.widths, 1)
        return he_initial({str(i): (b, a) for i, (a, b) in enumerate(pairwise(sizes))}, rng, like)

    def first(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Pre-activations of the first layer, (n, width).

        Not by F.linear: a GPU's product that adds the bias itself does not share out so long a sum.
        """
        return x @ parameters["0.weight"].T + parameters["0.bias"]

    def scores(self, parameters: Mapping[str, Tensor], first: Tensor) -> Tensor:
        """Scores (n,) from pre-activations of the first layer."""
        h = first
        for i in range(1, len(self.widths) + 1):
            h = F.linear(F.relu(h), parameters[f"{i}.weight"], parameters[f"{i}.bias"])
        return h.squeeze(1)

    def slopes(self, parameters: Mapping[str, Tensor], first: Tensor) -> Tensor:
        """The norm of the score's gradient by the vector, (n,), from pre-activations of the first layer."""
        masks, h = [], first
        for i in range(1, len(self.widths) + 1):
            masks.append((h > 0).to(h.dtype))
            h = F.linear(F.relu(h), parameters[f"{i}.weight"], parameters[f"{i}.bias"])
        back = torch.ones_like(h)
        for i in range(len(self.widths), 0, -1):
            back = (back @ parameters[f"{i}.weight"]) * masks[i - 1]
        square = ((back @ gram(parameters["0.weight"])) * back).sum(1)
        return square.clamp_min(1e-12).sqrt()


def gram(weight: Tensor) -> Tensor:
    """W W^T, with the gradient (G + G^T) W as one product: autograd would make two, each as large as W."""
    return cast(Tensor, _Gram.apply(weight))  # type: ignore[no-untyped-call]


class _Gram(torch.autograd.Function):
    @staticmethod
    def forward(weight: Tensor) -> Tensor:
        return weight @ weight.T

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (weight,) = ctx.saved_tensors
        by_weight: Tensor = (grad + grad.T) @ weight
        return by_weight
