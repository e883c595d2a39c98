"""A step traced and compiled: its operations are written down, put into a better order, and fused by Inductor."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from dubito.rng import isolated

aten = torch.ops.aten
TURN = (1, 2)  # the axes of a matrix among many


def fused(step: Callable[..., Any], inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """The step as one compiled function of tensors like these, which it is tried on."""
    from torch._inductor import compile as fuse
    from torch.fx.experimental.proxy_tensor import make_fx

    with isolated("tracing"):  # what is to be drawn inside comes from the global generator here
        traced = make_fx(step)(*inputs)
    turn_products(traced.graph)
    traced.recompile()
    with warnings.catch_warnings():  # it would have us use tf32, which is for the user to choose
        warnings.simplefilter("ignore")
        made: Callable[..., Any] = fuse(traced, list(inputs))
        made(*inputs)
    return made


def turn_products(graph: Graph) -> None:
    """Products of many matrices that are only made to be turned are made turned, (A B)^T = B^T A^T.

    Such are the gradients that vmap gives of weights, and to turn them is to pass over all of them once more.
    """
    for node in list(graph.nodes):
        product = _turned(node)
        if product is not None:
            with graph.inserting_before(node):
                a, b = (graph.call_function(aten.transpose.int, (factor, *TURN)) for factor in product.args)
                node.replace_all_uses_with(graph.call_function(aten.bmm.default, (b, a)))
            _erase(graph, node)


def _turned(node: Node) -> Node | None:
    """The product that a node does nothing but turn and that nobody else wants; None where there is none."""
    if node.target != aten.transpose.int or tuple(axis % 3 for axis in node.args[1:]) != TURN:  # type: ignore[operator]
        return None
    source = node.args[0]
    while isinstance(source, Node) and len(source.users) == 1 and source.target == aten.view.default:
        if _shape(source) != _shape(source.args[0]):
            return None
        source = source.args[0]
    alone = isinstance(source, Node) and len(source.users) == 1 and source.target == aten.bmm.default
    return source if alone else None  # type: ignore[return-value]


def _shape(node: Any) -> torch.Size:
    shape: torch.Size = node.meta["val"].shape
    return shape


def _erase(graph: Graph, node: Node) -> None:
    """Remove a node that nobody wants, and what was only there for it, down to the product."""
    source = node.args[0]
    graph.erase_node(node)
    if isinstance(source, Node) and not source.users and source.target in (aten.view.default, aten.bmm.default):
        _erase(graph, source)
