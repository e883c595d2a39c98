"""Products of matrices on the CPU by oneDNN, which uses the widest instructions of any processor.

torch multiplies float32 matrices by MKL where it has it, and MKL takes a general path on processors that are not
Intel's: oneDNN, which comes with torch too, is then the faster. Where it cannot be had, in other precisions and on
other devices the products are torch's own.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, without a gradient: x (..., n), W (m, n)."""
    if not _by_onednn(x, weight, bias):
        return F.linear(x, weight, bias)
    made: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return made


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a b, without a gradient: a (..., n), b (n, m)."""
    return linear(a, b.t())


class ByOneDNN(TorchFunctionMode):
    """Inside it the linear maps of a network that is not differentiated are `linear`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear and not kwargs and not torch.is_grad_enabled():
            return linear(*args)
        return func(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """oneDNN's linear map, with the rules for vmap and for slopes forward that it does not have."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        dense = None if bias is None else bias.contiguous()  # it reads on from the first number, whatever the strides
        made: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, dense, "none", [], "")
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """What slopes forward need; a gradient is never asked for."""
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def jvp(ctx: Any, by_x: Tensor | None, by_weight: Tensor | None, by_bias: Tensor | None) -> Any:
        x, weight = ctx.saved_tensors
        along = None if by_x is None else F.linear(by_x, weight)
        turned = None if by_weight is None else F.linear(x, by_weight)
        return sum(part for part in (along, turned, by_bias) if part is not None)

    @staticmethod
    def vmap(
        info: Any, axes: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Any, int]:
        if axes[1] is None and axes[2] is None:  # one tall product
            return linear(x.movedim(axes[0] or 0, 0), weight, bias), 0
        return torch.vmap(F.linear, axes)(x, weight, bias), 0


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    dense = type(x) is Tensor and x.layout == weight.layout == torch.strided and not x.is_nested
    plain = dense and x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    fits = weight.dim() == 2 and (bias is None or bias.shape == weight.shape[:1])  # torch's own take others
    rounds = torch.is_autocast_enabled("cpu")  # torch's own alone know
    return plain and fits and not rounds and _HAS_ONEDNN and bool(torch.backends.mkldnn.enabled) and x.numel() > 0


_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
