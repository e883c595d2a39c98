"""Steps put into a better order compute what they did before."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import dubito
from dubito.fusing import turn_products
from dubito.net import Net
from dubito.priors import assign
from dubito.target import Batch, Target

aten = torch.ops.aten


def count(graph: torch.fx.Graph, target: object) -> int:
    return sum(node.target == target for node in graph.nodes)


def test_gradients_of_many_members_are_not_turned_but_the_same():
    module = dubito.nn.mlp([5, 4, 3])
    target = Target(Net(module), dubito.Categorical(), assign(None, module), 20)
    batch = Batch(torch.randn(6, 5), torch.randint(0, 3, (6,)), torch.arange(6))
    theta = torch.randn(3, target.layout.size)
    target.value_and_grad(theta, batch)  # tries whether members can go side by side
    traced = make_fx(lambda theta: target.value_and_grad(theta, batch)[1])(theta)
    wanted, products, turns = traced(theta), count(traced.graph, aten.bmm.default), _turns_of_products(traced.graph)
    turn_products(traced.graph)
    traced.recompile()
    assert turns == 2
    assert _turns_of_products(traced.graph) == 0
    assert count(traced.graph, aten.bmm.default) == products
    torch.testing.assert_close(traced(theta), wanted)


def test_a_product_that_is_wanted_as_it_is_stays():
    def both(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = torch.bmm(a, b)
        return product, product.transpose(1, 2)

    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    traced = make_fx(both)(a, b)
    before = traced.code
    turn_products(traced.graph)
    traced.recompile()
    assert traced.code == before


def test_another_turn_is_left_alone():
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    traced = make_fx(lambda a, b: torch.bmm(a, b).transpose(0, 1))(a, b)
    turn_products(traced.graph)
    traced.recompile()
    torch.testing.assert_close(traced(a, b), torch.bmm(a, b).transpose(0, 1))


def _turns_of_products(graph: torch.fx.Graph) -> int:
    """Transposes of products, perhaps through views."""

    def source(node: torch.fx.Node) -> torch.fx.Node:
        return source(node.args[0]) if node.target == aten.view.default else node

    turns = [node for node in graph.nodes if node.target == aten.transpose.int]
    return sum(source(node.args[0]).target == aten.bmm.default for node in turns)
