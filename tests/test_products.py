"""Products of matrices by oneDNN are those of torch, whatever lies where in memory."""

import pytest
import torch
import torch.nn.functional as F

import dubito
from dubito import products

ROWS = {
    "one row": lambda: torch.randn(5),
    "a batch": lambda: torch.randn(4, 5),
    "two axes in front": lambda: torch.randn(3, 4, 5),
    "transposed": lambda: torch.randn(5, 4).t(),
    "every other column": lambda: torch.randn(4, 10)[:, ::2],
    "one row many times": lambda: torch.randn(5).expand(4, 5),
    "no rows": lambda: torch.randn(0, 5),
    "double precision": lambda: torch.randn(4, 5, dtype=torch.float64),
}


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("rows", ROWS)
def test_linear_maps(rows, biased):
    x = ROWS[rows]()
    weight, bias = torch.randn(3, 5, dtype=x.dtype), torch.randn(3, dtype=x.dtype) if biased else None
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    made = products.linear(x, weight, bias)
    assert made.dtype == x.dtype
    torch.testing.assert_close(made.double(), exact, atol=1e-6, rtol=1e-6)


BIASES = {
    "every other number": lambda: torch.randn(6)[::2],
    "one number many times": lambda: torch.randn(1).expand(3),
    "one number": lambda: torch.randn(1),
    "one for each row": lambda: torch.randn(4, 1),
}


@pytest.mark.parametrize("bias", BIASES)
def test_biases_of_any_layout(bias):
    x, weight, given = torch.randn(4, 5), torch.randn(3, 5), BIASES[bias]()
    torch.testing.assert_close(products.linear(x, weight, given), F.linear(x, weight, given))


def test_sparse_factors():
    x, weight = torch.randn(4, 5), torch.randn(3, 5)
    torch.testing.assert_close(products.linear(x.to_sparse(), weight), F.linear(x, weight))
    torch.testing.assert_close(products.linear(x, weight.to_sparse()), F.linear(x, weight))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_rows():
    parts, weight = [torch.randn(2, 5), torch.randn(3, 5)], torch.randn(3, 5)
    rows = torch.nested.as_nested_tensor(parts, layout=torch.strided)
    for made, part in zip(products.linear(rows, weight).unbind(), parts, strict=True):
        torch.testing.assert_close(made, F.linear(part, weight))


def test_a_vector_for_a_weight():
    x, weight = torch.randn(4, 5), torch.randn(5)
    torch.testing.assert_close(products.linear(x, weight), x @ weight)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # what torch's own jvp sets off
@pytest.mark.parametrize("inside", [False, True])
def test_slopes_forward(inside):
    given = torch.randn(4, 5), torch.randn(3, 5), torch.randn(3)

    def slope(layer, *given):
        return torch.func.jvp(lambda *args: layer(*args).square(), given, given)[1]

    def slopes(layer):
        return torch.vmap(lambda x: slope(layer, x, *given[1:]))(given[0]) if inside else slope(layer, *given)

    with torch.no_grad():
        torch.testing.assert_close(slopes(products.linear), slopes(F.linear))


def test_what_rounds_by_itself_does_so():
    x, weight = torch.randn(4, 5), torch.randn(3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert products.linear(x, weight).dtype == torch.bfloat16


def test_products_of_transposed_factors():
    a, b = torch.randn(300, 20), torch.randn(300, 30)
    torch.testing.assert_close(products.matmul(a.t(), b), a.t() @ b, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("axes", [(0, None, None), (1, None, None), (0, 0, None), (None, 0, 0), (0, None, 0)])
def test_several_at_once(axes):
    x, weight, bias = torch.randn(4, 4, 5), torch.randn(4, 3, 5), torch.randn(4, 3)
    given = [value if axis is not None else value[0] for value, axis in zip((x, weight, bias), axes, strict=True)]
    with torch.no_grad():
        made = torch.vmap(products.linear, axes)(*given)
        torch.testing.assert_close(made, torch.vmap(F.linear, axes)(*given))


def test_without_onednn_torch_multiplies(monkeypatch):
    x, weight = torch.randn(4, 5), torch.randn(3, 5)
    monkeypatch.setattr(products, "_HAS_ONEDNN", False)
    assert torch.equal(products.linear(x, weight), F.linear(x, weight))


def test_networks_that_are_not_differentiated_are_multiplied_so(monkeypatch):
    net, x, seen = torch.nn.Linear(5, 3), torch.randn(4, 5), []
    monkeypatch.setattr(products, "linear", lambda *args: seen.append(args) or F.linear(*args))
    with products.ByOneDNN():
        differentiable = net(x)
        with torch.no_grad():
            assert torch.equal(net(x), differentiable)
    assert differentiable.requires_grad and len(seen) == 1


def test_predictions_of_large_networks_are_those_of_the_network():
    net, x = (
        torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.ReLU(), torch.nn.Linear(400, 3)),
        torch.randn(200, 300),
    )
    y = torch.arange(200) % 3
    posterior = dubito.fit(net, (x, y), dubito.DeepEnsemble(), members=2, steps=2, device="cpu", progress=False)
    expected = torch.stack([posterior.member(i).mean_network()(x).softmax(-1) for i in range(2)]).mean(0)
    torch.testing.assert_close(posterior.predict(x).probs, expected.detach(), rtol=1e-4, atol=1e-6)
