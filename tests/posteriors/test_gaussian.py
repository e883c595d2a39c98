"""The Gaussian posterior: draws that are functions, densities and divergences, files, and a prior for the next run."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributions import Normal as Reference
from torch.distributions import kl_divergence

import dubito
from dubito.net import Net
from dubito.posteriors.gaussian import TENSORS, GaussianPosterior
from dubito.priors import Fixed, Normals, Point

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def made(
    members: int = 1, seed: int = 0, fixed: tuple[str, ...] = (), still: tuple[str, ...] = ()
) -> GaussianPosterior:
    net = Net(module(), fixed)
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(members, net.layout.size, generator=g)
    std = 0.1 + torch.rand(members, net.layout.size, generator=g)
    for name in still:
        std[:, net.layout.spans[name]] = 0
    return GaussianPosterior(net, dubito.Categorical(), mean, std)


def test_draws_are_the_same_functions_on_any_batching():
    posterior = made(2)
    whole = posterior.predict(X, draws=7).draws
    for batch_size in (1, 5):
        torch.testing.assert_close(posterior.predict(X, draws=7, batch_size=batch_size).draws, whole)
    torch.testing.assert_close(posterior.predict(X, draws=3).draws, whole[:3])
    assert not torch.equal(posterior.predict(X, draws=7, seed=1).draws, whole)
    by_hand = posterior.net.many(posterior.thetas(7), X).softmax(-1)
    torch.testing.assert_close(whole, by_hand)


def test_samples_have_the_moments_and_take_components_in_turn():
    posterior, n = made(2), 8000
    thetas = posterior.thetas(n)
    for member in range(2):
        mine, mean, std = thetas[member::2], posterior.mean[member], posterior.std[member]
        count = len(mine)
        assert float(((mine.mean(0) - mean) / std).abs().max()) * math.sqrt(count) < 5
        assert float((mine.var(0) / std.square() - 1).abs().max()) * math.sqrt(count / 2) < 5
    mean, std = posterior.moments()
    torch.testing.assert_close(thetas.mean(0), mean, atol=0.1, rtol=0.0)
    torch.testing.assert_close(thetas.std(0), std, atol=0.05, rtol=0.05)
    assert len(posterior) == 2
    assert {n: tuple(t.shape) for n, t in posterior.sample(3).items()}["0.weight"] == (3, 5, 4)
    with pytest.raises(dubito.Undefined, match="average weights of several Gaussians"):
        posterior.mean_network()


def test_the_mean_network_is_plain():
    posterior = made()
    net = posterior.mean_network()
    assert torch.equal(torch.cat([p.flatten() for p in net.parameters()]), posterior.mean[0])
    assert type(net) is nn.Sequential
    with pytest.raises(dubito.Undefined, match=r"no chain to diagnose; judge it by .* dubito\.compare"):
        posterior.diagnose()


def test_log_density_of_one_gaussian_and_of_a_mixture():
    one, thetas = made(), made().thetas(4, seed=9)
    exact = Reference(one.mean[0], one.std[0]).log_prob(thetas).sum(1)
    torch.testing.assert_close(one.log_prob(thetas), exact)
    torch.testing.assert_close(one.log_prob(one.sample(4, seed=9)), exact)
    assert one.log_prob(thetas[0]).shape == ()
    two = made(2)
    each = torch.stack([Reference(m, s).log_prob(thetas).sum(1) for m, s in zip(two.mean, two.std, strict=True)])
    torch.testing.assert_close(two.log_prob(thetas), each.logsumexp(0) - math.log(2))


def test_what_has_no_spread_has_no_density():
    posterior = made(fixed=("0.weight",), still=("2.bias",))
    random = posterior.net.layout.size - 3
    assert int(posterior.random.sum()) == random
    assert bool(torch.isfinite(posterior.log_prob(posterior.thetas(2))).all())
    drawn = posterior.sample(3)
    assert torch.equal(drawn["0.weight"][2], posterior.net.module[0].weight)
    assert torch.equal(drawn["2.bias"][0], drawn["2.bias"][2])
    assert f"over {random} of 23 weights" in repr(posterior)


def test_kl_to_another():
    a, b = made(seed=0), made(seed=1)
    one, two = (Reference(p.mean[0].double(), p.std[0].double()) for p in (a, b))
    assert a.kl(b) == pytest.approx(float(kl_divergence(one, two).sum()))
    assert a.kl(a) == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(ValueError, match="spread over different weights"):
        a.kl(made(still=("2.bias",)))
    with pytest.raises(dubito.Undefined, match=r"mixture of 2 Gaussians has no KL .* fit with members=1"):
        a.kl(made(2))


def test_as_a_prior_for_the_next_run():
    posterior = made(fixed=("0.weight",), still=("2.bias",))
    prior = posterior.as_prior()
    assert prior["0.weight"] == Fixed() and prior["2.bias"] == Point()
    held = prior["2.weight"]
    assert isinstance(held, Normals) and torch.equal(
        held.mean, posterior.net.layout.split(posterior.mean[0])["2.weight"]
    )
    y = torch.arange(12) % 3
    following = dubito.fit(module(), (X, y), "variational", prior=prior, steps=2, device="cpu", progress=False)
    assert torch.equal(following.random, posterior.random)
    same = GaussianPosterior(following.net, following.likelihood, posterior.mean, posterior.std)
    assert same.kl(posterior) == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(dubito.Undefined, match="no normal prior"):
        made(2).as_prior()
    posterior.std[0, 0] = 0
    with pytest.raises(ValueError, match=r"some weights of '0\.bias' have no spread, as after pruning"):
        posterior.as_prior()


def test_the_prior_of_a_run_is_known_again_when_it_goes_on(tmp_path):
    y = torch.arange(12) % 3
    options = {"steps": 3, "device": "cpu", "progress": False, "folder": tmp_path}
    first = dubito.fit(module(), (X, y), "variational", prior=made().as_prior(), **options)
    again = dubito.fit(module(), (X, y), "variational", prior=made().as_prior(), **options)
    assert torch.equal(first.mean, again.mean)
    with pytest.raises(ValueError, match="holds another run"):
        dubito.fit(module(), (X, y), "variational", prior=made(seed=3).as_prior(), **options)


@pytest.mark.parametrize("members", [1, 3])
def test_files(members, tmp_path):
    posterior = made(members, fixed=("0.bias",))
    posterior.save(tmp_path / "p")
    again = dubito.load(tmp_path / "p", module(), device="cpu")
    assert isinstance(again, GaussianPosterior)
    assert torch.equal(again.mean, posterior.mean) and torch.equal(again.std, posterior.std)
    assert torch.equal(again.predict(X, draws=5).draws, posterior.predict(X, draws=5).draws)
    with pytest.raises(FileExistsError, match="already holds a posterior"):
        posterior.save(tmp_path / "p")
    assert not list((tmp_path / "p").glob("*.partial"))


def test_files_keep_running_statistics_noise_and_the_recipe(tmp_path):
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    made = dubito.fit(net, (X, X.sum(1)), "variational", steps=5, device="cpu", progress=False)
    made.save(tmp_path / "a")
    again = dubito.load(tmp_path / "a", net, device="cpu")
    assert torch.equal(again.buffers["1.running_mean"], made.buffers["1.running_mean"])
    torch.testing.assert_close(again.predict(X).std, made.predict(X).std)
    assert again.about["method"]["name"] == "Variational"
    named = dubito.nn.mlp((4, 6, 3))
    dubito.fit(named, (X, torch.arange(12) % 3), "variational", steps=2, device="cpu", progress=False).save(
        tmp_path / "b"
    )
    assert len(dubito.load(tmp_path / "b", device="cpu").predict(X)) == 12


def test_damaged_and_foreign_files_say_so(tmp_path):
    made().save(tmp_path)
    with pytest.raises(ValueError, match="belongs to another network"):
        dubito.load(tmp_path, nn.Linear(4, 3))
    held = load_file(tmp_path / TENSORS)
    cut = {n: t[:, :-1].contiguous() for n, t in held.items()}
    save_file(cut, tmp_path / TENSORS)
    with pytest.raises(ValueError, match=r"holds vectors of \(1, 42\) where \(members, 43\) was expected"):
        dubito.load(tmp_path, module())
    save_file({"mean": held["mean"]}, tmp_path / TENSORS)
    with pytest.raises(ValueError, match="missing or damaged"):
        dubito.load(tmp_path, module())
    (tmp_path / TENSORS).write_bytes(b"not a tensor")
    with pytest.raises(ValueError, match="missing or damaged"):
        dubito.load(tmp_path, module())


def test_it_moves_with_its_network():
    posterior = made(2)
    moved = posterior.to("cpu")
    assert moved is not posterior and torch.equal(moved.mean, posterior.mean)
    assert isinstance(moved.std, Tensor) and moved.net.device.type == "cpu"


def test_a_member_is_one_gaussian_of_the_mixture():
    posterior = made(3)
    one = posterior.member(1)
    assert len(one) == 1 and torch.equal(one.mean[0], posterior.mean[1]) and torch.equal(one.std[0], posterior.std[1])
    assert one.mean_network()(X).shape == (12, 3)


def test_what_is_no_vector_no_gaussian_and_no_member_is_refused():
    posterior = made(2)
    size = posterior.net.layout.size
    for wrong in (torch.zeros(3, size - 1), torch.zeros(()), {"0.wait": torch.zeros(1, 2)}):
        with pytest.raises(ValueError, match=rf"theta is .*; give vectors of {size} weights, or named ones as sample"):
            posterior.log_prob(wrong)
    x = torch.randn(8, 2)
    plain = dubito.fit(nn.Linear(2, 1), (x, x[:, :1]), dubito.MAP(), steps=2, device="cpu", progress=False)
    with pytest.raises(ValueError, match="is no Gaussian over weights, so there is no KL to it"):
        posterior.member(0).kl(plain)
    for index in (2, -1):
        with pytest.raises(ValueError, match=f"there is no member {index} of 2; they are counted from 0"):
            posterior.member(index)
