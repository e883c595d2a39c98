"""Quick runs of the studies of variational inference: every line runs, and what must hold at any size holds."""

import numpy as np
import pytest
import torch

import dubito
from dubito import studies
from dubito.data import Split, toys
from dubito.studies import ensemble_vi_hmc, wunn_bandit, wunn_mnist, wunn_pruning, wunn_timing, wunn_variance
from dubito.studies.base import Settings
from dubito.tasks import bandit


def quick(name, tmp_path):
    return studies.run(name, quick=True, device="cpu", folder=tmp_path, progress=False)


def test_mnist(tmp_path):
    result = quick("wunn-mnist", tmp_path)
    assert list(result.numbers["error"]) == list(wunn_mnist.PUBLISHED)
    assert all(0 <= v <= 100 for by in result.numbers["error"].values() for row in by.values() for v in row)
    assert result.numbers["error"]["SGD"] == result.numbers["error of the mean network"]["SGD"]
    assert set(result.settings["chosen"]) == set(wunn_mnist.PUBLISHED)


def test_mnist_tries_twelve_configurations_and_judges_none_by_what_it_learned():
    assert sum(map(len, wunn_mnist.configs().values())) == 12
    data = wunn_mnist.images(Settings(quick=True))
    known = {tuple(row) for row in data.known.x.tolist()}
    assert len(data.known.x) + len(data.validation.x) == len(data.train.x)
    assert sum(tuple(row) in known for row in data.validation.x.tolist()) < 5  # digits has a few doubles


def test_errors_of_members_are_their_own():
    x, y = wunn_mnist.images(Settings(quick=True)).train
    settings = {"steps": 3, "members": 2, "device": "cpu", "progress": False}
    for method in (dubito.MAP(), dubito.Variational()):
        posterior = dubito.fit(dubito.nn.mlp([64, 8, 10]), (x, y), method, **settings)
        found = wunn_mnist.errors(wunn_mnist.mean_network(posterior), Split(x, y), 1)
        networks = posterior.mean if isinstance(method, dubito.Variational) else posterior.thetas(2)
        exact = (posterior.net.many(networks, x).argmax(-1) != y).double().mean(1) * 100
        np.testing.assert_allclose(found, exact)


def test_pruning(tmp_path):
    result = quick("wunn-pruning", tmp_path)
    assert list(result.numbers) == ["SGD", "BBB, Gaussian", "BBB, mixture"]
    assert np.array(result.numbers["SGD"]).shape == (2, 5, 2)
    sgd = np.array(result.numbers["SGD"])
    np.testing.assert_allclose(sgd[..., 0], sgd[..., 1], atol=1.0)
    assert [figure.name for figure in result.figures] == ["curve", "density", "cdf"]


def test_networks_without_a_spread_are_pruned_by_size():
    posterior = dubito.fit(dubito.nn.mlp([1, 4, 1]), toys.line(), dubito.MAP(), steps=2, device="cpu", progress=False)
    left = dubito.compress.pruned(wunn_pruning.prunable(posterior), 0.5).mean[0, :13]
    whole = posterior.thetas(1)[0, :13].abs()
    assert set((left != 0).nonzero().flatten().tolist()) == set(whole.argsort()[-int((left != 0).sum()) :].tolist())


def test_regression(tmp_path):
    result = quick("wunn-regression", tmp_path)
    assert result.numbers["Plain network"][3:] == [None] * 4
    assert all(v > 0 for v in result.numbers["BBB, mixture"][3:])


def test_timing(tmp_path):
    result = quick("wunn-timing", tmp_path)
    assert result.numbers["draws"] == [1, 2, 3]
    assert all(cost[0] > 0 for way in wunn_timing.WAYS for cost in result.numbers["classification"][way])


def test_slope_is_least_squares():
    costs = [wunn_timing.Cost(s, None) for s in (1.0, 3.0, 4.0)]
    assert wunn_timing.slope([1, 2, 3], costs) == pytest.approx(1.5)


def test_variance(tmp_path):
    result = quick("wunn-variance", tmp_path)
    assert set(result.numbers["curves"]) == set(wunn_variance.ESTIMATORS)
    values = [v for by in result.numbers["variance"].values() for parts in by.values() for part in parts for v in part]
    assert len(values) == 2 * 3 * 2 * 3 and min(values) >= 0


def test_gradient_variance_of_whole_draws_is_larger():
    """On a wide posterior, where the noise of the weights outweighs that of the batch."""
    data, settings = wunn_variance.digits(Settings(quick=True)), Settings(quick=True, device="cpu", progress=False)
    posterior, _ = wunn_variance.fitted(data, "local", 1, 1, settings)
    posterior.std.fill_(0.1)
    found = wunn_variance.variances(posterior, data, 40, settings)
    assert float(found["weights"].mean()) > 2 * float(found["local"].mean())


def test_ensemble_vi_hmc(tmp_path):
    result = quick("ensemble-vi-hmc", tmp_path)
    rows = result.numbers["rows"]
    assert list(rows) == ["HMC", "Deep ensemble", "VI", "MC dropout", "SGLD"] and rows["HMC"][3:] == [1.0] * 3
    assert len(result.figures[0].panels) == 5


def test_distance_of_shifted_and_stretched_normals():
    draws = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0)).double().numpy()
    np.testing.assert_allclose(ensemble_vi_hmc.distance(draws + 0.3, draws), 0.3, atol=1e-9)
    np.testing.assert_allclose(ensemble_vi_hmc.distance(2 * draws, draws), np.sqrt(2 / np.pi), atol=0.03)


def test_bandit(tmp_path, monkeypatch):
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    made = bandit.mushrooms(x, (x[:, 0] > 0).long(), wunn_bandit.UNIT)
    monkeypatch.setattr(wunn_bandit, "arena", lambda settings: made)
    result = quick("wunn-bandit", tmp_path)
    assert set(result.numbers["regret"]) == {"Bayes by Backprop", *wunn_bandit.EPSILONS}
    assert all(np.diff(np.array(runs)).min() >= 0 for runs in result.numbers["regret"].values())
