"""Posteriors made of stored networks: drawing, sampling, moments, the mean network and diagnosis."""

import pytest
import torch
from torch import nn

import dubito
from dubito.net import Net
from dubito.posteriors.samples import SamplesPosterior, coordinate_names
from dubito.posteriors.storage import MemorySamples

X = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))


def posterior(rows: int = 9, chains: int = 1, form: str = "chains", likelihood=None, fixed=()) -> SamplesPosterior:
    torch.manual_seed(0)
    net = Net(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), fixed)
    likelihood = likelihood or dubito.Categorical()
    size = net.layout.size + sum(p.numel() for p in likelihood.parameters().values())
    return SamplesPosterior(net, likelihood, MemorySamples(torch.randn(rows, chains, size)), form)


def test_draws_are_without_replacement_and_all_of_them_once_at_most():
    made = posterior(rows=20)
    some = made.thetas(7, seed=3)
    assert len({tuple(t.tolist()) for t in some}) == 7
    assert torch.equal(some, made.thetas(7, seed=3)) and not torch.equal(some, made.thetas(7, seed=4))
    assert torch.equal(made.thetas(1000), made.samples.theta[:, 0])
    assert made.predict(X, draws=1000).n_draws == 20 == len(made)


def test_sampled_weights_have_the_modules_names_and_shapes():
    made = posterior(fixed=["0.bias"], likelihood=dubito.Gaussian.learned())
    weights = made.sample(5)
    module = made.net.module
    assert {n: (5, *p.shape) for n, p in module.named_parameters()} == {n: tuple(w.shape) for n, w in weights.items()}
    assert bool((weights["0.bias"] == module[0].bias).all())
    outputs = torch.func.functional_call(module, {n: w[2] for n, w in weights.items()}, (X,))
    torch.testing.assert_close(made.draw(5)(X)[2], outputs)


def test_moments_are_those_of_all_samples():
    made = posterior(rows=70, chains=2)
    mean, std = made.moments()
    flat = made.samples.theta.flatten(0, 1).double()
    torch.testing.assert_close(mean.double(), flat.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(std.double(), flat.std(0), rtol=1e-5, atol=1e-6)
    shifted = SamplesPosterior(made.net, made.likelihood, MemorySamples(1e4 + 1e-2 * made.samples.theta))
    expected = shifted.samples.theta.flatten(0, 1).double().std(0)
    torch.testing.assert_close(shifted.moments()[1].double(), expected, rtol=1e-4, atol=1e-7)
    assert not posterior(rows=1).moments()[1].any()


def test_the_mean_network_is_a_plain_module_of_mean_weights():
    made = posterior(likelihood=dubito.Gaussian.learned())
    network = made.mean_network()
    assert isinstance(network, nn.Sequential) and not network.training
    mean = made.samples.theta[:, 0].mean(0)
    torch.testing.assert_close(nn.utils.parameters_to_vector(network.parameters()), mean[:-1])


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_member_is_one_chain_left_where_it_is(tmp_path, where):
    made = posterior(rows=7, chains=3)
    all_of_it = made.thetas(21)
    if where == "disk":
        made.save(tmp_path / "chains")
        made = dubito.load(tmp_path / "chains", made.net.module, device="cpu")
    for index in range(3):
        one = made.member(index)
        assert torch.equal(one.thetas(100), all_of_it[index::3]) and one.form == "chains"
        assert one.samples.on_disk == (where == "disk") and (one.samples.rows, one.samples.chains) == (7, 1)
        assert torch.equal(one.mean_network()[0].bias, one.moments()[0][12:16])
    if where == "memory":
        assert one.samples.theta.data_ptr() == made.samples.theta[0, 2].data_ptr()
    one.save(tmp_path / "one")
    assert torch.equal(dubito.load(tmp_path / "one", made.net.module, device="cpu").thetas(7), all_of_it[2::3])
    some = made.thinned(3)
    assert torch.equal(some.samples.get(range(6))[0], torch.cat([all_of_it[6:9], all_of_it[15:18]]))
    assert torch.equal(made.member(1).thinned(3).thetas(9), some.member(1).thetas(9))


def test_networks_of_an_ensemble_are_points_and_members_that_are_not_there_are_refused():
    one = posterior(rows=1, chains=3, form="ensemble").member(1)
    assert one.form == "point" and len(one) == 1
    with pytest.raises(dubito.Undefined, match="a point has no chain"):
        one.diagnose()
    for index in (-1, 3):
        with pytest.raises(ValueError, match=f"there is no member {index} of 3; they are counted from 0"):
            posterior(chains=3).member(index)
    for every in (0, 10):
        with pytest.raises(ValueError, match=f"every is {every}, of 9 samples a chain"):
            posterior().thinned(every)


@pytest.mark.parametrize("folder", [None, "run"])
def test_every_third_sample_is_what_three_times_the_thinning_keeps(tmp_path, folder):
    torch.manual_seed(0)
    net, rows = nn.Linear(2, 2), (torch.randn(8, 2), torch.tensor([0, 1] * 4))

    def chain(thin: int, folder) -> SamplesPosterior:
        method = dubito.SGLD(burn_in=5, thin=thin)
        return dubito.fit(net, rows, method, steps=30, members=2, folder=folder, device="cpu", progress=False)

    long = chain(2, folder and tmp_path / folder)
    assert torch.equal(long.thinned(3).thetas(100), chain(6, None).thetas(100))


def test_ensembles_and_several_chains_have_no_mean_network():
    with pytest.raises(dubito.Undefined, match="the average weights of an ensemble are no network that fits"):
        posterior(rows=1, chains=3, form="ensemble").mean_network()
    with pytest.raises(dubito.Undefined, match="of several chains"):
        posterior(chains=2).mean_network()
    assert posterior(rows=1, chains=1, form="ensemble").mean_network()(X).shape == (10, 2)


def test_only_chains_are_diagnosed():
    made = posterior(rows=50, chains=4)
    found = made.diagnose(X)
    assert found.predictions is not None and len(found.weights.rhat) == 26
    assert "0.weight[0]" in found.weights.names
    for form, what in (("point", "a point"), ("ensemble", "an ensemble")):
        with pytest.raises(dubito.Undefined, match=f"^{what} has no chain to diagnose"):
            posterior(form=form).diagnose()


def test_diagnosis_keeps_chains_apart():
    made = posterior(rows=60, chains=3)
    made.samples.theta[:, 1] += 100
    assert float(min(made.diagnose().weights.rhat)) > 1.5
    made = posterior(rows=200, chains=3)
    assert float(max(made.diagnose(X).predictions.rhat)) < 1.1


def test_coordinates_are_named_by_parameter_and_place():
    layout = posterior().net.layout
    assert coordinate_names(layout, [0, 11, 12, 25]) == ["0.weight[0]", "0.weight[11]", "0.bias[0]", "2.bias[1]"]


def test_descriptions():
    assert (
        repr(posterior(9, 2))
        == "<posterior: 2 x 9 samples of 26 weights, Categorical(ignore_index=-100, class_axis=-1)>"
    )
    assert "3 networks" in repr(posterior(1, 3, "ensemble"))


def test_moving_to_the_device_it_is_on_changes_nothing():
    made = posterior()
    assert torch.equal(made.to("cpu").predict(X).probs, made.predict(X).probs)


def test_a_chain_is_no_prior_but_its_mixture_is():
    torch.manual_seed(0)
    rows = torch.randn(8, 2), torch.tensor([0, 1] * 4)
    chain = dubito.fit(torch.nn.Linear(2, 2), rows, dubito.SGLD(burn_in=2, thin=1), steps=8, progress=False)
    with pytest.raises(dubito.Undefined, match=r"no density to be a prior; take one that has.*distill\.mixture"):
        chain.as_prior()
    assert set(dubito.distill.mixture(chain, progress=False).as_prior()) == {"weight", "bias"}


@pytest.mark.parametrize("method", [dubito.MCDropout(rate=0.3), dubito.ConcreteDropout()])
def test_a_member_of_dropout_keeps_its_weights_and_rates(tmp_path, method):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 2))
    rows = X, torch.tensor([0, 1] * 5)
    made = dubito.fit(net, rows, method, steps=3, members=2, folder=tmp_path / "run", device="cpu", progress=False)
    one = made.member(1)
    assert len(one) == 1 and one.about == made.about
    weights = nn.utils.parameters_to_vector(one.mean_network().parameters())
    assert torch.equal(weights, made.samples.get([1])[0][0, : len(weights)])
    assert made.rates is None or torch.equal(one.rates, made.rates[1:])
    with pytest.raises(ValueError, match="there is no member 2 of 2"):
        made.member(2)


def test_a_generator_has_no_members():
    made = dubito.distill.adversarial(posterior(), steps=1, device="cpu", progress=False)
    with pytest.raises(dubito.Undefined, match="GeneratorPosterior has no members to take apart"):
        made.member(0)


@pytest.mark.parametrize("method", ["map", "variational"])
def test_what_was_sampled_belongs_to_the_caller(method):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(20, 3)
    prior = {"0.bias": dubito.Fixed()}
    made = dubito.fit(net, (x, x[:, 0].gt(0).long()), method, prior=prior, steps=3, device="cpu", progress=False)
    before = made.predict(x, draws=2).probs
    for value in made.sample(2).values():
        value.zero_()
    assert torch.equal(made.predict(x, draws=2).probs, before)
