"""Floating-point operations of a forward pass, counted where matrices meet.

`torch.utils.flop_counter` counts the same but loads the compiler first, which takes seconds.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
LAYERS = (F.linear, *CONVOLUTIONS)
TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
PRODUCTS = (torch.matmul, torch.bmm, torch.mm, torch.mv, Tensor.matmul, Tensor.__matmul__, Tensor.bmm, Tensor.mm)
RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


class FlopCounter(TorchFunctionMode):
    """Adds up multiplications and additions of linear, recurrent and convolutional layers, products and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.convolves = 0, False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [a for a in (*args, *(kwargs or {}).values()) if isinstance(a, Tensor)]
        self.convolves |= func in CONVOLUTIONS or func in TRANSPOSED
        if func in LAYERS:
            self.total += 2 * out.numel() * tensors[1][0].numel()
        elif func in TRANSPOSED:
            self.total += 2 * tensors[0].numel() * tensors[1][0].numel()
        elif func in PRODUCTS:
            self.total += 2 * out.numel() * tensors[0].shape[-1]
        elif func in RECURRENT:
            self.total += _recurrent(*args)
        elif func is F.scaled_dot_product_attention:
            self.total += 4 * tensors[0].numel() * tensors[1].shape[-2]
        elif func is F.multi_head_attention_forward:
            self.total += _attention(tensors[0], tensors[1])
        return out


def _recurrent(x: Tensor, *rest: Any) -> int:
    """Every matrix once per row and step, whether rows come padded or packed; states have three axes."""
    held: list[Tensor] = [leaf for part in rest if isinstance(part, list | tuple) for leaf in part]
    return 2 * (x.numel() // x.shape[-1]) * sum(weight.numel() for weight in held if weight.dim() == 2)


def _attention(query: Tensor, key: Tensor) -> int:
    """Four projections, and two products of every query with every key; (length, batch, features) each."""
    return 8 * query.numel() * query.shape[-1] + 4 * query.numel() * key.shape[0]
