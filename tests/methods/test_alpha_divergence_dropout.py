"""Dropout by alpha-divergence: the known limits first, then masks, likelihoods and refusals."""

import itertools
import math

import pytest
import torch
from torch import nn

import dubito
from dubito.net import Net
from dubito.pooling import pooled
from dubito.priors import assign
from dubito.target import Batch, Target
from dubito.tick import Tick

G = torch.Generator().manual_seed(0)
X = torch.randn(20, 4, generator=G)
Y = X[:, 0] - 0.5 * X[:, 1] + 0.1 * torch.randn(20, generator=G)
RATE = 0.4


def perceptron(outputs: int = 1) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, outputs))


def one_step(method, likelihood=None, y=Y, members: int = 2, net=None):
    """The state and what was told after one step from the same starts."""
    module = net or perceptron()
    prepared = method.prepare(Net(module), X)
    target = Target(prepared, likelihood or dubito.Gaussian(0.5), assign(None, module), 50)
    theta = target.start(torch.stack([prepared.theta() * (1 + m) for m in range(members)]))
    state = method.init(theta, target, Tick.at(0, 10))
    return method.step(state, Batch(X, y, torch.arange(20)), target, Tick.at(3, 10, seed=7))


# -- known answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.5, 1.0, 5.0])
def test_one_mask_is_mc_dropout(alpha):
    state, told = one_step(dubito.AlphaDivergenceDropout(alpha, draws=1, rate=RATE))
    known, said = one_step(dubito.MCDropout(rate=RATE))
    torch.testing.assert_close(told.fit, said.fit)
    torch.testing.assert_close(told.complexity, said.complexity)
    torch.testing.assert_close(state.theta, known.theta)


def masks_and_likelihoods(draws: int):
    """Log-likelihoods (draws, B) under the masks that one step uses, network by network."""
    net = dubito.MCDropout(rate=RATE).prepare(Net(perceptron()), X)
    (mask,) = net.masks(X, 1, Tick.at(3, 10, seed=7).rng.child("train"), shared=False, draws=(draws,))
    outputs = [net(net.theta(), X, "dropout", None, [one]) for one in mask[0]]
    return mask[0], torch.stack([dubito.Gaussian(0.5).log_prob(o, Y) for o in outputs])


def test_alpha_zero_is_mc_dropout_averaged_over_its_masks():
    _, log_lik = masks_and_likelihoods(6)
    _, told = one_step(dubito.AlphaDivergenceDropout(0.0, draws=6, rate=RATE), members=1)
    torch.testing.assert_close(told.fit, -log_lik.mean().view(1))
    _, near = one_step(dubito.AlphaDivergenceDropout(1e-3, draws=6, rate=RATE), members=1)
    torch.testing.assert_close(near.fit, told.fit, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
def test_the_masks_of_a_datum_are_joined_inside_the_logarithm(alpha):
    _, log_lik = masks_and_likelihoods(6)
    known = ((alpha * log_lik.double()).exp().mean(0)).log().div(alpha).mean()
    _, told = one_step(dubito.AlphaDivergenceDropout(alpha, draws=6, rate=RATE), members=1)
    torch.testing.assert_close(told.fit, -known.float().view(1))


def test_alpha_one_with_many_masks_is_the_averaged_likelihood():
    """Every mask of three units, with its probability, against twenty thousand drawn ones."""
    net = dubito.MCDropout(rate=RATE).prepare(Net(perceptron()), X)
    total = torch.zeros(20, dtype=torch.float64)
    for keep in itertools.product([0.0, 1.0], repeat=3):
        chance = math.prod((1 - RATE) if one else RATE for one in keep)
        mask = torch.tensor(keep).expand(20, 3) / (1 - RATE)
        total += chance * dubito.Gaussian(0.5).log_prob(net(net.theta(), X, "dropout", None, [mask]), Y).double().exp()
    _, told = one_step(dubito.AlphaDivergenceDropout(1.0, draws=20_000, rate=RATE), members=1)
    assert float(told.fit) == pytest.approx(-float(total.log().mean()), abs=2e-3)


def test_the_gradient_is_that_of_the_loss():
    method = dubito.AlphaDivergenceDropout(
        0.7, draws=5, rate=RATE, optimiser="sgd", momentum=0.0, learning_rate=1.0, schedule="constant"
    )
    state, told = one_step(method, members=1)
    net = method.prepare(Net(perceptron()), X)
    masks = net.masks(X, 1, Tick.at(3, 10, seed=7).rng.child("train"), shared=False, draws=(5,))
    target = Target(net, dubito.Gaussian(0.5), assign(None, perceptron()), 50)
    theta = net.theta().requires_grad_()
    each = torch.stack([dubito.Gaussian(0.5).log_prob(net(theta, X, "dropout", None, [m]), Y) for m in masks[0][0]])
    loss = -(torch.logsumexp(0.7 * each, 0) - math.log(5)).mean() / 0.7
    (grad,) = torch.autograd.grad(loss, theta)
    grad = grad - target.flat_prior.value_and_grad(theta.detach().unsqueeze(0))[1][0] / 50
    torch.testing.assert_close(state.theta[0], theta.detach() - grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(told.fit, loss.detach().view(1))


def test_joining_is_stable_where_likelihoods_are_tiny():
    log_lik = torch.tensor([[-1e4, -3.0], [-2e4, -3.0]])
    found = pooled(log_lik, 1.0)
    torch.testing.assert_close(found, torch.tensor([-1e4 - math.log(2), -3.0]))


@pytest.mark.parametrize("alpha", [-2.0, -1e-6, 1e-12, 1e-6, 1e-4, 0.01, 0.5, 1.0, 50.0])
def test_joining_is_exact_for_every_alpha(alpha):
    """In single precision as in double, down to the mean, whose gradient it shares."""
    log_lik = torch.randn(10, 40, generator=torch.Generator().manual_seed(0)).mul(3).sub(2).requires_grad_()
    exact = (torch.logsumexp(alpha * log_lik.double(), 0) - math.log(10)) / alpha
    if abs(alpha) < 1e-5:
        exact = log_lik.double().mean(0)
    found = pooled(log_lik, alpha)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=2e-5)
    (grad,) = torch.autograd.grad(found.sum(), log_lik)
    torch.testing.assert_close(grad, (alpha * log_lik).softmax(0), rtol=1e-4, atol=1e-6)


# -- masks, likelihoods, members -------------------------------------------------------------------------------


def test_masks_differ_by_datum_and_by_draw():
    mask, _ = masks_and_likelihoods(40)
    assert mask.shape == (40, 20, 3)
    assert len({tuple(row) for row in mask[:, 0].tolist()}) > 1 and len({tuple(row) for row in mask[0].tolist()}) > 1
    kept = float((mask > 0).float().mean())
    assert kept == pytest.approx(1 - RATE, abs=0.05)


@pytest.mark.parametrize(
    ("likelihood", "y", "outputs"),
    [
        (dubito.Gaussian.learned(), Y, 1),
        (dubito.Gaussian.heteroscedastic(), Y, 2),
        (dubito.Categorical(), (Y > 0).long(), 2),
        (dubito.Bernoulli(), (Y > 0).long(), 1),
        (dubito.Poisson(), (Y > 0).long(), 1),
    ],
    ids=repr,
)
def test_any_likelihood(likelihood, y, outputs):
    posterior = dubito.fit(
        perceptron(outputs), (X, y), dubito.AlphaDivergenceDropout(0.5, draws=4), likelihood=likelihood, steps=5,
        members=2, device="cpu", progress=False,
    )  # fmt: skip
    prediction = posterior.predict(X, draws=8)
    assert len(posterior) == 2 and bool(torch.isfinite(prediction.log_prob(y)).all())
    assert "AlphaDivergenceDropout" in repr(posterior)


def test_learned_noise_is_found():
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
    y = x[:, 0] + 0.3 * torch.randn(300, generator=torch.Generator().manual_seed(2))
    net = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Dropout(0.02), nn.Linear(20, 1))
    method = dubito.AlphaDivergenceDropout(0.5, draws=5, learning_rate=0.02, schedule="cosine")
    posterior = dubito.fit(net, (x, y), method, steps=300, device="cpu", progress=False)
    assert float(posterior.predict(x, draws=20).aleatoric.sqrt().mean()) == pytest.approx(0.3, rel=0.15)


def test_batch_norm_moves_with_the_average_over_masks():
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 1))
    state, _ = one_step(dubito.AlphaDivergenceDropout(0.5, draws=3), net=net)
    hidden = net[0](X).detach()
    torch.testing.assert_close(state.buffers["1.running_mean"][0], 0.1 * hidden.mean(0), rtol=1e-4, atol=1e-5)
    assert state.buffers["1.num_batches_tracked"].tolist() == [1, 1]


def test_what_is_no_setting_is_refused():
    for alpha in (math.inf, math.nan, "half"):
        with pytest.raises(ValueError, match=f"alpha must be a finite number, got {alpha!r}"):
            dubito.AlphaDivergenceDropout(alpha)
        with pytest.raises(ValueError, match=f"alpha must be a finite number, got {alpha!r}"):
            dubito.Variational(alpha=alpha, draws=10)
    with pytest.raises(ValueError, match="draws must be at least 1"):
        dubito.AlphaDivergenceDropout(0.5, draws=0)
    with pytest.raises(ValueError, match="AlphaDivergenceDropout: rate must lie between 0 and 1"):
        dubito.AlphaDivergenceDropout(0.5, rate=1.5)
