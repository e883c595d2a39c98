"""Local reparameterisation: a layer's outputs under Gaussian weights, with noise of their own on every output.

For a linear map with W ~ N(M, S^2) and b ~ N(a, c^2),

    y = m + s zeta,   m = x M^T + a,   s^2 = x^2 (S^2)^T + c^2,   zeta ~ N(0, 1)

(Kingma et al. 2015, https://arxiv.org/abs/1506.02557), and so for convolutions. On the CPU the linear map's gradients
are written out, because autograd would pass over memory twice as often. With g by y and h = g zeta / s every 2 cancels:

    by x: g M + x (h S^2),   by M: g^T x,   by S: S (h^T x^2),   by a: sum g,   by c: c sum h
"""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dubito import products

Layer = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def moments(
    layer: Layer, x: Tensor, weight: Tensor, bias: Tensor | None, weight_std: Tensor, bias_std: Tensor | None
) -> tuple[Tensor, Tensor]:
    """m and s of a layer's outputs; a bias without a standard deviation is a number."""
    variance = layer(x.square(), weight_std.square(), None if bias_std is None else bias_std.square())
    return layer(x, weight, bias), cast(Tensor, _Root.apply(variance))  # type: ignore[no-untyped-call]


class _Root(torch.autograd.Function):
    """s from s^2, 0 where a convolution by transforms has rounded to below it, with the slope s / 2 (s^2 + eps^2).

    That is 1 / 2s, but for noise below rounding, whose slope would be nothing but large.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(variance: Tensor) -> Tensor:
        return variance.clamp_min(0).sqrt_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        s: Tensor = ctx.saved_tensors[0]
        least = torch.full((), 2 * torch.finfo(s.dtype).eps ** 2, dtype=s.dtype, device=s.device)
        return (grad * s).div_(torch.addcmul(least, s, s, value=2))


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, weight_std: Tensor, bias_std: Tensor | None, zeta: Tensor
) -> Tensor:
    """A linear map's outputs; zeta may have more axes in front than x, and then m and s are computed once."""
    if x.device.type != "cpu":  # a compiler fuses what is written out here
        return _plain(x, weight, bias, weight_std, bias_std, zeta)
    outputs = _Linear.apply(x, weight, bias, weight_std, bias_std, zeta)  # type: ignore[no-untyped-call]
    return cast(Tensor, outputs[0])


def _plain(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    return torch.addcmul(*moments(F.linear, x, weight, *rest[:-1]), rest[-1])


class _Linear(torch.autograd.Function):
    """y, and what its gradient needs again: s, x^2 and S^2."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, weight_std: Tensor, bias_std: Tensor | None, zeta: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        squares, variances = x.square(), weight_std.square()
        s = products.linear(squares, variances, None if bias_std is None else bias_std.square())
        s.clamp_min_(torch.finfo(s.dtype).tiny).sqrt_()  # above 0, as it will be divided by
        m = products.linear(x, weight, bias)
        y = m.addcmul_(s, zeta) if m.shape == zeta.shape else torch.addcmul(m, s, zeta)
        return y, s, squares, variances

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, _, weight_std, bias_std, zeta = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # no zeros for what has no gradient
        ctx.save_for_backward(x, weight, weight_std, bias_std, zeta, *output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 6
        x, weight, weight_std, bias_std, zeta, s, squares, variances = ctx.saved_tensors
        grad, noisy = _summed(grad, zeta, grad.dim() - s.dim())
        g, h, rows = (t.flatten(0, -2) for t in (grad, noisy.div_(s), x))
        by_x = None
        if ctx.needs_input_grad[0]:
            by_x = products.matmul(g, weight).addcmul_(products.matmul(h, variances), rows).view_as(x)
        by_weight = products.matmul(g.t(), rows)
        by_weight_std = products.matmul(h.t(), squares.flatten(0, -2)).mul_(weight_std)
        by_bias = g.sum(0) if ctx.needs_input_grad[2] else None
        return by_x, by_weight, by_bias, by_weight_std, None if bias_std is None else h.sum(0).mul_(bias_std), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor], tuple[int]]:
        """Draws that share their weights are more rows of one tall product; members with their own go side by side."""
        if in_dims[5] is None or any(axis is not None for axis in in_dims[1:5]):
            return (torch.vmap(_plain, in_dims)(*args),), (0,)
        x, *weights, zeta = (t if axis is None else t.movedim(axis, 0) for t, axis in zip(args, in_dims, strict=True))
        return (linear(x, weights[0], weights[1], weights[2], weights[3], zeta),), (0,)


def _summed(grad: Tensor, zeta: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    """grad and grad zeta, summed over so many axes in front, one slice after another while it is in the cache."""
    if not axes:
        return grad, grad * zeta
    grad, zeta = grad.flatten(0, axes - 1), zeta.flatten(0, axes - 1)
    noisy = grad[0] * zeta[0]
    for g, z in zip(grad[1:], zeta[1:], strict=True):
        noisy.addcmul_(g, z)
    return grad.sum(0), noisy
