import pytest
import torch
from torch import nn

import dubito
from dubito.distill import Mixture, bank, mixture
from dubito.posteriors.mixture import TENSORS, MixturePosterior
from dubito.posteriors.samples import SamplesPosterior
from dubito.posteriors.storage import MemorySamples

QUIET = {"progress": False, "device": "cpu"}


def ordered(fitted: MixturePosterior) -> tuple[torch.Tensor, ...]:
    order = fitted.mean[:, 0].argsort()
    return fitted.share[order], fitted.mean[order], fitted.std[order]


def test_two_components_are_found(known):
    share, mean, std = ordered(mixture(known.posterior, Mixture(components=2), **QUIET))
    torch.testing.assert_close(share, torch.tensor([0.3, 0.7]), atol=0.02, rtol=0)
    assert ((mean - known.mean) / known.std).abs().max() < 0.1
    assert ((std / known.std).square() - 1).abs().max() < 0.15


def test_one_component_has_the_moments_of_the_samples(known):
    fitted = mixture(known.posterior, **QUIET)
    theta = known.posterior.thetas(10_000)
    torch.testing.assert_close(fitted.mean[0], theta.mean(0))
    torch.testing.assert_close(fitted.std[0], theta.std(0, correction=0), rtol=1e-4, atol=0)
    assert isinstance(fitted.mean_network(), nn.Linear)


def test_em_agrees_with_scikit_learn(known):
    from sklearn.mixture import GaussianMixture

    theta = known.posterior.thetas(10_000).double().numpy()
    other = GaussianMixture(2, covariance_type="diag", tol=1e-9, random_state=0, max_iter=500).fit(theta)
    fitted = mixture(known.posterior, Mixture(components=2, tolerance=1e-12, passes=200), **QUIET)
    assert float(fitted.log_prob(known.posterior.thetas(10_000)).double().mean()) == pytest.approx(
        other.score(theta), abs=1e-3
    )
    order = other.means_[:, 0].argsort()
    theirs = (other.weights_[order], other.means_[order], other.covariances_[order] ** 0.5)
    for mine, peer in zip(ordered(fitted), theirs, strict=True):
        torch.testing.assert_close(mine.double(), torch.from_numpy(peer), atol=2e-3, rtol=0)


def test_draws_have_the_moments_of_the_mixture_and_its_shares(known):
    fitted = mixture(known.posterior, Mixture(components=2), **QUIET)
    theta, (mean, std) = fitted.thetas(4000), fitted.moments()
    assert ((theta.mean(0) - mean) / std).abs().max() < 0.06
    torch.testing.assert_close(theta.std(0), std, rtol=0.05, atol=0)
    which = torch.tensor(fitted.components(range(4000), 0)).bincount() / 4000
    torch.testing.assert_close(which, fitted.share, atol=0.03, rtol=0)
    torch.testing.assert_close(fitted.thetas(7), theta[:7])


def test_a_chain_on_disk_stays_there_and_gives_the_same(known, tmp_path, monkeypatch):
    known.posterior.save(tmp_path / "chain")
    chain = dubito.load(tmp_path / "chain", nn.Linear(9, 1), device="cpu")
    monkeypatch.setattr(bank, "CPU_BYTES", 0)
    monkeypatch.setattr(bank, "PIECE_BYTES", 20_000)
    one, other = (mixture(p, Mixture(components=2), **QUIET) for p in (known.posterior, chain))
    torch.testing.assert_close(one.mean, other.mean)
    assert bank.Bank(chain.samples, bank.standard(chain.samples, torch.device("cpu"))).resident is None


def test_saved_and_loaded(known, tmp_path):
    fitted = mixture(known.posterior, Mixture(components=3), seed=1, **QUIET)
    fitted.save(tmp_path / "m")
    again = dubito.load(tmp_path / "m", nn.Linear(9, 1), device="cpu")
    assert len(again) == 3 and torch.equal(again.thetas(20, seed=4), fitted.thetas(20, seed=4))
    assert again.about["distiller"]["components"] == 3
    x = torch.randn(5, 9)
    assert torch.equal(again.predict(x).mean, fitted.predict(x).mean)
    with pytest.raises(dubito.Undefined, match="average weights of several Gaussians"):
        again.mean_network()
    with pytest.raises(dubito.Undefined, match="draws independently"):
        again.diagnose()
    (tmp_path / "m" / TENSORS).write_bytes(b"nothing")
    with pytest.raises(ValueError, match="missing or damaged"):
        dubito.load(tmp_path / "m", nn.Linear(9, 1), device="cpu")


def test_components_do_not_collapse_on_single_vectors():
    theta = torch.randn(6, 1, 10, generator=torch.Generator().manual_seed(0))
    few = SamplesPosterior(dubito.Net(nn.Linear(9, 1)), dubito.Gaussian(1.0), MemorySamples(theta))
    fitted = mixture(few, Mixture(components=6), **QUIET)
    assert torch.isfinite(fitted.std).all() and fitted.std.min() > 0.01
    with pytest.raises(ValueError, match="7 components need as many weight vectors, but there are 6"):
        mixture(few, Mixture(components=7), **QUIET)


@pytest.mark.parametrize("components", [1, 2])
def test_weights_that_never_move_stay_where_they_are(components):
    theta = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    theta[:, 1] = 0.3
    net = dubito.net.Net(nn.Linear(3, 1))
    teacher = SamplesPosterior(net, dubito.Gaussian(std=1.0), MemorySamples(theta.unsqueeze(1)), "chain")
    fitted = mixture(teacher, Mixture(components=components), **QUIET)
    assert (fitted.thetas(20)[:, 1] == theta[0, 1]).all() and (fitted.std[:, [0, 2, 3]] > 0).all()
    assert torch.isfinite(fitted.log_prob(theta)).all()


def test_only_distributions_over_weights_can_be_teachers():
    x = torch.randn(20, 3)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    posterior = dubito.fit(net, (x, x.sum(1).gt(0).long()), "mc_dropout", steps=2, **QUIET)
    with pytest.raises(dubito.Undefined, match="dark_knowledge"):
        mixture(posterior, **QUIET)


@pytest.mark.parametrize("wrong", [{"components": 0}, {"passes": 0}, {"floor": 0.0}, {"tolerance": -1.0}])
def test_wrong_settings_say_so(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Mixture(**wrong)
