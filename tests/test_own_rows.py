"""Members with rows of their own: the same as shared rows where they are equal, and nobody else's business."""

import pytest
import torch

import dubito
from dubito.nn import mlp
from dubito.priors import assign
from dubito.target import Batch, Target

G = torch.Generator().manual_seed(3)
X, Y = torch.randn(6, 4, generator=G), torch.randint(3, (6,), generator=G)
METHODS = [
    dubito.MAP(),
    dubito.SGLD(),
    dubito.MCDropout(rate=0.3),
    dubito.ConcreteDropout(rate=0.3),
    dubito.AlphaDivergenceDropout(0.5, draws=3, rate=0.3),
    dubito.Variational(draws=2),
    dubito.Variational(estimator="flipout", draws=2),
    dubito.Variational(estimator="weights", draws=2),
    dubito.Variational(estimator="weights", draws=3, alpha=1.0),
    dubito.SparseVD(),
]


def stepped(method, batch):
    """The state of three members after one step."""
    torch.manual_seed(0)
    module = mlp([4, 5, 3])
    net = method.prepare(dubito.net.Net(module), X)
    target = Target(net, dubito.Categorical(), assign(None, module), 50)
    theta = torch.randn(3, net.layout.size, generator=torch.Generator().manual_seed(1))
    state = method.init(target.start(theta), target, dubito.Tick.at(0, 9))
    with torch.no_grad():
        return method.step(state, batch, target, dubito.Tick.at(0, 9, seed=2))


def shown(state):
    return state.q if hasattr(state, "q") else state.theta


def test_the_parts_of_a_batch():
    own = Batch(X.expand(3, 6, 4), Y.expand(3, 6), torch.arange(6), torch.rand(3, 6), own=True)
    assert own.example.shape == (6, 4) and sorted(own.apart(3)) == ["weight", "x", "y"]
    twice = own.repeated(2)
    assert torch.equal(twice.weight, own.weight[[0, 0, 1, 1, 2, 2]]) and twice.x.shape == (6, 6, 4)
    shared = Batch(X, Y, torch.arange(6), torch.rand(6))
    assert shared.repeated(2).x is X and shared.repeated(2).weight is shared.weight
    assert shared.apart(3)["weight"].shape == (3, 6) and "x" not in shared.apart(3)


@pytest.mark.parametrize("weight", [None, torch.rand(3, 6, generator=G)], ids=["", "weighted"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_equal_rows_are_shared_rows(method, weight):
    one, told = stepped(method, Batch(X, Y, torch.arange(6), weight))
    other, said = stepped(method, Batch(X.expand(3, 6, 4), Y.expand(3, 6), torch.arange(6), weight, own=True))
    torch.testing.assert_close(shown(other), shown(one), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(said.fit, told.fit)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_other_members_rows_do_not_matter(method):
    x, y = X.repeat(3, 1, 1), Y.repeat(3, 1)
    before, told = stepped(method, Batch(x, y, torch.arange(6), own=True))
    x, y = x.clone(), y.clone()
    x[1], y[1] = x[1] + 1, 2 - y[1]
    after, said = stepped(method, Batch(x, y, torch.arange(6), own=True))
    torch.testing.assert_close(shown(after)[[0, 2]], shown(before)[[0, 2]], rtol=1e-6, atol=1e-7)
    assert not torch.equal(shown(after)[1], shown(before)[1]) and float(said.fit[1]) != float(told.fit[1])
