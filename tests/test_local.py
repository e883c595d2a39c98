"""Local reparameterisation of a linear map: its written-out gradients against finite differences and autograd."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dubito import local
from dubito.net import Net
from dubito.rng import Rng

G = torch.Generator().manual_seed(0)
DRAWS, ROWS, INPUTS, OUTPUTS = 4, 5, 3, 2


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=G, dtype=torch.float64)


def weights(lead: tuple[int, ...] = ()) -> list[Tensor]:
    """Means and standard deviations of weight and bias, in the order of the arguments."""
    shapes = [(OUTPUTS, INPUTS), (OUTPUTS,)]
    means, stds = [normal(*lead, *s) for s in shapes], [0.1 + normal(*lead, *s).abs() for s in shapes]
    return [t.requires_grad_() for t in (*means, *stds)]


def by_hand(x: Tensor, weight: Tensor, bias, weight_std: Tensor, bias_std, zeta: Tensor) -> Tensor:
    """The equation of the docstring."""
    variance = x.square() @ weight_std.square().T + (0 if bias_std is None else bias_std.square())
    return x @ weight.T + (0 if bias is None else bias) + variance.sqrt() * zeta


@pytest.mark.parametrize("lead", [(ROWS,), (2, ROWS)])
@pytest.mark.parametrize("biased", ["random", "point", "none"])
def test_outputs_by_the_equation_and_gradients_by_finite_differences(lead, biased):
    weight, bias, weight_std, bias_std = weights()
    bias, bias_std = None if biased == "none" else bias, bias_std if biased == "random" else None
    x, zeta = normal(*lead, INPUTS).requires_grad_(), normal(*lead, OUTPUTS)
    args = (x, weight, bias, weight_std, bias_std, zeta)
    torch.testing.assert_close(local.linear(*args), by_hand(*args))
    assert torch.autograd.gradcheck(local.linear, args)


@pytest.mark.parametrize("shared", [True, False])
def test_draws_are_one_product_with_the_gradients_of_a_loop(shared):
    x = normal(ROWS, INPUTS) if shared else normal(DRAWS, ROWS, INPUTS)
    x.requires_grad_()
    held, zeta, slope = weights(), normal(DRAWS, ROWS, OUTPUTS), normal(DRAWS, ROWS, OUTPUTS)
    together = torch.vmap(lambda x, z: local.linear(x, *held, z), (None if shared else 0, 0))
    found = together(x, zeta)
    each = torch.stack([by_hand(x if shared else x[k], *held, zeta[k]) for k in range(DRAWS)])
    torch.testing.assert_close(found, each)
    pairs = zip(*(torch.autograd.grad((y * slope).sum(), (x, *held)) for y in (found, each)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b)


def test_moments_of_an_input_that_draws_share_are_computed_once():
    x, held, zeta = normal(ROWS, INPUTS), weights(), normal(DRAWS, ROWS, OUTPUTS)
    flops = []
    for some in (zeta[:1], zeta):
        with FlopCounterMode(display=False) as counter:
            torch.vmap(lambda z: local.linear(x, *held, z))(some).sum().backward()
        flops.append(counter.get_total_flops())
    assert flops[0] == flops[1] > 0


def test_members_with_weights_of_their_own():
    members = 3
    x, held, zeta = normal(ROWS, INPUTS), weights((members,)), normal(members, DRAWS, ROWS, OUTPUTS)

    def member(*parts: Tensor) -> Tensor:
        return torch.vmap(lambda z: local.linear(x, *parts[:-1], z))(parts[-1])

    found = torch.vmap(member)(*held, zeta)
    each = torch.stack([by_hand(x, *(t[m] for t in held), zeta[m]) for m in range(members)])
    torch.testing.assert_close(found, each)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), held) for y in (found, each)), strict=True):
        torch.testing.assert_close(a, b)


def test_without_spread_or_input_gradients_are_finite():
    weight, bias, _, _ = weights()
    stds = [torch.zeros_like(t).requires_grad_() for t in (weight, bias)]
    for x in (normal(ROWS, INPUTS), torch.zeros(ROWS, INPUTS, dtype=torch.float64)):
        outputs = local.linear(x.requires_grad_(), weight, bias, *stds, normal(ROWS, OUTPUTS))
        torch.testing.assert_close(outputs, F.linear(x, weight, bias))
        grads = torch.autograd.grad(outputs.square().sum(), (x, weight, bias, *stds))
        assert all(bool(torch.isfinite(grad).all()) for grad in grads)


def test_a_layer_that_rounds_below_zero_has_finite_noise():
    """As convolutions by fast transforms do where the variance is next to nothing."""
    weight, std = (torch.tensor([[v]], requires_grad=True) for v in (0.5, 1e-9))

    def rounding(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight, bias) - 1e-12

    m, s = local.moments(rounding, torch.ones(3, 1), weight, None, std, None)
    (m + s).sum().backward()
    assert (s == 0).all()
    assert std.grad is not None and (std.grad == 0).all()


def test_the_slope_of_the_noise_is_half_its_inverse_and_none_below_rounding():
    x = torch.tensor([[2.0], [1e-3], [1e-25], [0.0]])
    weight, std = torch.zeros(1, 1), torch.full((1, 1), 0.3, requires_grad=True)
    _, s = local.moments(torch.nn.functional.linear, x, weight, None, std, None)
    slopes = [float(torch.autograd.grad(one, std, retain_graph=True)[0]) for one in s.flatten()]
    torch.testing.assert_close(slopes, [2.0, 1e-3, 0.0, 0.0], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_a_pass_is_freed_at_once(estimator):
    """A cycle would keep the weights' graph until the garbage collector comes, and every step would ask for more."""
    net, x = Net(nn.Linear(4, 3)), torch.randn(5, 4)
    scheme = net.scheme(x, net.layout.names, estimator)
    noise = {n: z[0, 0] for n, z in net.noise(scheme, x, 1, 1, Rng(0)).items()}
    std = torch.full((net.layout.size,), 0.1)
    gc.collect()
    gc.disable()
    try:
        net.noisy(net.theta(), std, x, scheme, noise).sum()
        gone = weakref.ref(std)
        del std
        assert gone() is None
    finally:
        gc.enable()
