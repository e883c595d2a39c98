"""Sparse variational dropout: which weights go, what is left, and that zeros are zeros."""

import pytest
import torch
from torch import nn

import dubito
from dubito.net import Net
from dubito.posteriors.sparse import SparsePosterior
from dubito.priors import assign
from dubito.schedules import Cosine, Rise, WarmUp
from dubito.target import Batch, Target
from dubito.tick import Tick

G = torch.Generator().manual_seed(0)
X = torch.randn(400, 20, generator=G)
Y = (X[:, 0] - X[:, 1] + 0.3 * torch.randn(400, generator=G) > 0).long()


def perceptron(inputs: int = 20) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 2))


def fit(method=None, net=None, data=(X, Y), **options):
    method = method or dubito.SparseVD(learning_rate=0.03, schedule="linear")
    settings = {"steps": 500, "batch_size": 100, "device": "cpu", "progress": False, **options}
    return dubito.fit(net or perceptron(), data, method, **settings)


@pytest.mark.parametrize("kl", ["log-uniform", "ard"])
def test_weights_of_inputs_that_tell_nothing_go(kl):
    """Inputs at right angles to each other and to the noise of y, so that 18 of 20 tell exactly nothing."""
    whole = torch.cat([torch.ones(100, 1), torch.randn(100, 21, generator=torch.Generator().manual_seed(1))], 1)
    axes = 10 * torch.linalg.qr(whole)[0]
    x, y = axes[:, 1:21], axes[:, 1] - axes[:, 2] + 0.3 * axes[:, 21]
    method = dubito.SparseVD(kl=kl, learning_rate=0.03, schedule="linear")
    posterior = fit(method, nn.Linear(20, 1), (x, y), likelihood=dubito.Gaussian(0.3), steps=600)
    slopes = posterior.mean_network().weight.detach()[0]
    assert (slopes != 0).tolist() == [True, True] + [False] * 18
    torch.testing.assert_close(slopes[:2], torch.tensor([1.0, -1.0]), rtol=0.02, atol=0.0)
    assert posterior.sparsity() == {"weight": pytest.approx(0.9)}


def test_a_network_loses_most_of_its_weights_and_none_of_its_answers():
    posterior = fit()
    right = posterior.mean_network()(X).argmax(1) == Y
    assert float(right.float().mean()) > 0.9
    assert posterior.sparsity()["0.weight"] > 0.9 and set(posterior.sparsity()) == {"0.weight", "2.weight"}
    assert "weights left" in repr(posterior)


def test_zeros_are_exact_in_every_network_made_from_it(tmp_path):
    posterior = fit(steps=200, members=2)
    gone = posterior.log_alpha() > posterior.threshold
    assert int(gone.sum()) > 0 and bool((posterior.mean[gone] != 0).all()), "the posterior itself keeps all"
    pruned = posterior.pruned()
    assert not pruned.mean[gone].any() and not pruned.std[gone].any()
    drawn = posterior.thetas(6)
    assert not drawn[::2][:, gone[0]].any() and not drawn[1::2][:, gone[1]].any()
    assert bool((drawn[::2][:, posterior.pruned().std[0] > 0].std(0) > 0).all())
    posterior.save(tmp_path / "p")
    again = dubito.load(tmp_path / "p", perceptron(), device="cpu")
    assert isinstance(again, SparsePosterior) and again.threshold == posterior.threshold
    assert torch.equal(again.predict(X, draws=4).draws, posterior.predict(X, draws=4).draws)


def test_a_trained_net_goes_on_from_its_weights():
    trained = fit(dubito.MAP(learning_rate=0.02), steps=100).mean_network()
    posterior = fit(dubito.SparseVD(learning_rate=1e-9), trained, steps=1)
    torch.testing.assert_close(posterior.mean[0], torch.cat([p.detach().flatten() for p in trained.parameters()]))
    sparse = fit(net=trained)
    assert float((sparse.mean_network()(X).argmax(1) == Y).float().mean()) > 0.9
    assert sparse.sparsity()["0.weight"] > 0.85


def test_biases_are_optimised_under_their_prior_and_matrices_are_not():
    """One step by hand: the gradient of a bound written out here, for weights whose log alpha is not clipped."""
    module = nn.Linear(3, 1)
    nn.init.constant_(module.weight, 0.4)
    target = Target(Net(module), dubito.Gaussian(0.5), assign(dubito.Normal(0.8), module), 30)
    method = dubito.SparseVD(
        estimator="weights", optimiser="sgd", momentum=0.0, learning_rate=0.1, init_std=0.3, warm_up=WarmUp(4),
        masked="nothing",
    )  # fmt: skip
    state = method.init(target.net.theta().unsqueeze(0), target, Tick.at(0, 9))
    q, tick = state.q.clone(), Tick.at(1, 9, seed=5)
    x, y = X[:10, :3], X[:10, :3].sum(1)
    moved, info = method.step(state, Batch(x, y, torch.arange(10)), target, tick)
    mean, log_var = (half.clone().requires_grad_() for half in q[0].chunk(2))
    assert log_var.tolist()[-1] == -torch.inf
    eps = tick.rng.child("variational").normal_(torch.empty(1, 1, 4), "weights")[0, 0]
    theta = mean + torch.cat([(log_var[:3] / 2).exp(), torch.zeros(1)]) * eps
    fit = -target.likelihood.log_prob((x @ theta[:3] + theta[3]).unsqueeze(1), y).mean()
    ratio = log_var[:3] - mean[:3].square().log()
    kl = (0.63576 * (1 - torch.sigmoid(1.8732 + 1.48695 * ratio)) + 0.5 * (1 + (-ratio).exp()).log()).sum()
    kl = kl - torch.distributions.Normal(0.0, 0.8).log_prob(mean[3:]).sum()
    by_mean, by_log_var = torch.autograd.grad(fit + 2 / 4 * kl / 30, (mean, log_var))
    by_log_var = torch.cat([by_log_var[:3], torch.zeros(1)])
    torch.testing.assert_close(moved.q[0], q[0] - 0.1 * torch.cat([by_mean, by_log_var]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(info.complexity, (kl / 30).detach().view(1))


def test_masked_weights_have_no_say_in_training():
    module = nn.Linear(3, 1, bias=False)
    target = Target(Net(module), dubito.Gaussian(0.5), assign(None, module), 30)
    method = dubito.SparseVD(init_std=1e-6, optimiser="sgd", momentum=0.0, learning_rate=1e-9)
    theta = torch.tensor([[1.0, 1e-8, -2.0]])
    state = method.init(theta, target, Tick.at(0, 9))
    x = X[:10, :3]
    batch = Batch(x, x[:, 0] - 2 * x[:, 2], torch.arange(10))
    _, info = method.step(state, batch, target, Tick.at(0, 9))
    assert method.weights(state).theta.tolist() == [[1.0, 0.0, -2.0]]
    assert float(info.fit) == pytest.approx(-float(dubito.Gaussian(0.5).log_prob(torch.zeros(1, 1), torch.zeros(1))))


@pytest.mark.parametrize(("masked", "heard"), [("nothing", True), ("mean", True), ("weight", False)])
def test_a_weight_that_is_gone_makes_noise_unless_all_of_it_is_masked(masked, heard):
    module = nn.Linear(3, 1, bias=False)
    target = Target(Net(module), dubito.Gaussian(0.5), assign(None, module), 30)
    method = dubito.SparseVD(init_std=0.1, masked=masked)
    mean, std = torch.tensor([[1.0, 1e-8, -2.0]]), torch.tensor([[1e-9, 0.1, 1e-9]])
    x = torch.tensor([[0.0, 1.0, 0.0]]).expand(500, 3)
    batch = Batch(x, torch.zeros(500), torch.arange(500))
    fit = method.expected(mean, std, batch, target, {}, Tick.at(0, 9).rng)
    still = float(dubito.Gaussian(0.5).log_prob(torch.zeros(1, 1), torch.zeros(1)))
    spread = 0.1**2 / (2 * 0.5**2)  # what the noise costs on average
    assert float(fit.log_lik) == pytest.approx(still - spread * heard, abs=0.2 * spread)
    assert bool(fit.by_std[0][0, 1] != 0) is heard


def test_an_unknown_mask_is_refused():
    with pytest.raises(ValueError, match="'nothing', 'mean' or 'weight'"):
        dubito.SparseVD(masked="everything")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.cell, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


@pytest.mark.parametrize("kl", ["log-uniform", "ard"])
def test_recurrent_weights_of_silent_inputs_go(kl):
    """Two of four channels are always 0, so that the data say nothing of their weights and the KL alone moves them."""
    x = torch.randn(200, 3, 4, generator=torch.Generator().manual_seed(2))
    x[..., 2:] = 0
    y = (x[:, -1, 0] > 0).long()
    method = dubito.SparseVD(kl=kl, learning_rate=0.03, schedule="linear", init_std=0.05)
    posterior = fit(method, Recurrent(), (x, y), steps=400)
    network = posterior.mean_network()
    inner = network.cell.weight_ih_l0.detach()
    assert not inner[:, 2:].any() and bool(inner[:, 0].any())
    assert float((network(x).argmax(1) == y).float().mean()) > 0.9
    zeros = float((network.cell.weight_hh_l0 == 0).float().mean())
    assert posterior.sparsity()["cell.weight_hh_l0"] == pytest.approx(zeros)


def test_convolutions_and_recurrent_weights_become_sparse():
    posterior = fit(dubito.SparseVD(), Recurrent(), (X.view(400, 5, 4), Y), steps=5)
    assert set(posterior.sparsity()) == {"cell.weight_ih_l0", "cell.weight_hh_l0", "head.weight"}
    conv = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(36, 2))
    assert set(fit(dubito.SparseVD(), conv, (X.view(400, 1, 4, 5), Y), steps=5).sparsity()) == {"0.weight", "2.weight"}
    rows = {r.name: (r.role, r.estimator) for r in dubito.plan(conv, "sparse_vd", example=X[:1].view(1, 1, 4, 5)).rows}
    assert rows == {
        "0.weight": ("random", "local (approximate)"),
        "0.bias": ("point", "optimised"),
        "2.weight": ("random", "local"),
        "2.bias": ("point", "optimised"),
    }


def test_validation_looks_and_does_not_choose():
    records = []
    options = {"steps": 40, "callback": records.append}
    watched = fit(validation=(X, Y), **options)
    assert any("validation" in record for record in records)
    last = records[-1]
    assert {k: v for k, v in last.items() if k.startswith("sparsity/")} == {
        f"sparsity/{name}": pytest.approx(share) for name, share in watched.sparsity().items()
    }
    assert torch.equal(watched.mean, fit(**options).mean)
    with pytest.raises(ValueError, match="leave patience=3 out"):
        fit(validation=(X, Y), patience=3)


def test_a_matrix_of_zeros_is_refused_where_it_could_not_grow():
    net = perceptron()
    nn.init.zeros_(net[2].weight)
    for masked in ("mean", "weight"):
        with pytest.raises(ValueError, match=r"^2\.weight starts at 0 throughout.*use masked='nothing' to let it grow"):
            fit(dubito.SparseVD(masked=masked), net)
    assert fit(dubito.SparseVD(), net, prior={"2.weight": dubito.Fixed()}, steps=2).mean_network()[2].weight.any() == 0
    grown = fit(dubito.SparseVD(masked="nothing", learning_rate=0.03), net)
    assert float((grown.mean_network()(X).argmax(1) == Y).float().mean()) > 0.9


def test_what_is_no_setting_is_refused():
    for wrong, match in [
        ({"kl": "normal"}, "kl is 'normal'; use 'log-uniform' or 'ard'"),
        ({"warm_up": WarmUp(5, Cosine())}, r"use schedules.Rise\(start, end\)"),
        ({"threshold": 9.0}, "which clip=8.0 never lets a weight pass"),
        ({"clip": -1.0}, "clip must be positive"),
        ({"clip": None}, "clip must be positive, got None"),
        ({"threshold": "high"}, "threshold must be a finite number, got 'high'"),
    ]:
        with pytest.raises(ValueError, match=match):
            dubito.SparseVD(**wrong)
    with pytest.raises(ValueError, match="SparseVD acts on matrices and kernels, and none has a prior"):
        fit(prior={"*weight": dubito.Point()})
    assert dubito.SparseVD().depends_on_steps and not dubito.SparseVD(warm_up=WarmUp(9)).depends_on_steps
    assert dubito.SparseVD(warm_up=Rise(0.0, 1.0)).warm_up(5, 10) == 0.5
