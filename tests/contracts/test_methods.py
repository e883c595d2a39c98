"""What every method must do, whatever it is: run for each one found in the package."""

import copy
from dataclasses import fields, replace

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import dubito
from dubito import methods
from dubito.config import dumps_toml, from_dict, loads_toml, to_dict
from dubito.initial import starting_points
from dubito.methods.base import Sampler
from dubito.posteriors.gaussian import GaussianPosterior
from dubito.priors import assign
from dubito.rng import Prepared, Rng, Stream
from dubito.schedules import Schedule
from dubito.target import Batch, Target
from dubito.tick import Tick

METHODS = methods.registry()
STEPS = 24


def data(n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator)
    return x, (x.sum(1) > 0).long()


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))


def short(name: str) -> methods.Method:
    """The method with settings small enough for a few steps."""
    wished = {"burn_in": 4, "thin": 2, "cycles": 2, "leapfrog": 3, "exploration": 0.5}
    method = METHODS[name]()
    settable = {f.name for f in fields(method) if f.init}
    return replace(method, **{k: v for k, v in wished.items() if k in settable})


def fit(name: str, **options) -> dubito.Posterior:
    settings = {"steps": STEPS, "progress": False, "device": "cpu", "batch_size": None, **options}
    if not METHODS[name].full_batch:
        settings["batch_size"] = 10
    return dubito.fit(network(), data(), short(name), **settings)


def weights(posterior) -> torch.Tensor:
    if isinstance(posterior, GaussianPosterior):
        return torch.cat([posterior.mean, posterior.std], dim=1)
    return posterior.samples.get(range(len(posterior)))[0]


def by_hand(name: str, members: int = 2):
    net, module, (x, y) = dubito.Net(network()), network(), data()
    target = Target(net, dubito.Categorical(), assign(None, module), len(y))
    method = short(name)
    prepared = method.prepare(net, x)
    target = Target(prepared, dubito.Categorical(), assign(None, module), len(y))
    theta = target.start(starting_points(prepared, members, 0, None))
    state = method.init(theta, target, Tick(torch.tensor(0), STEPS, Rng(0)))
    return method, target, theta, state, Batch(x, y, torch.arange(len(y)))


@pytest.fixture(params=sorted(METHODS))
def name(request) -> str:
    return request.param


def test_init_copies(name):
    method, target, theta, state, batch = by_hand(name)
    before = theta.clone()
    method.step(state, batch, target, Tick(torch.tensor(0), STEPS, Rng(0)))
    assert torch.equal(theta, before)


def test_addresses_do_not_move(name):
    method, target, _, state, batch = by_hand(name)
    first = [leaf.data_ptr() for leaf in tree_leaves(state)]
    for step in range(5):
        state, _ = method.step(state, batch, target, Tick(torch.tensor(step), STEPS, Rng(0, step)))
    assert [leaf.data_ptr() for leaf in tree_leaves(state)] == first


def test_members_come_first_in_every_tensor_of_a_state(name):
    _, _, _, state, _ = by_hand(name, members=3)
    assert all(leaf.numel() == 0 or len(leaf) == 3 for leaf in tree_leaves(state))


@pytest.mark.parametrize("stop", [5, 13])
def test_a_run_that_was_stopped_continues_to_the_same_bits(name, stop, tmp_path):
    class Stop(Exception):
        pass

    def brake(record) -> None:
        if record["step"] >= stop:
            raise Stop

    whole = fit(name, folder=tmp_path / "whole", members=2)
    with pytest.raises(Stop):
        fit(name, folder=tmp_path / "parts", members=2, checkpoint_every=3, callback=brake)
    parts = fit(name, folder=tmp_path / "parts", members=2, checkpoint_every=3)
    assert torch.equal(weights(parts), weights(whole))
    again = dubito.load(tmp_path / "parts", network(), device="cpu")
    assert torch.equal(weights(again), weights(whole))


def test_the_global_generator_and_the_module_are_left_alone(name):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    module = network()
    state = copy.deepcopy(module.state_dict())
    posterior = dubito.fit(module, data(), short(name), steps=STEPS, progress=False, device="cpu")
    posterior.predict(data()[0], draws=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(state[key], value) for key, value in module.state_dict().items())
    assert module.training and all(p.requires_grad and p.grad is None for p in module.parameters())


@pytest.mark.parametrize("members", [1, 3])
def test_one_and_several_members(name, members):
    posterior = fit(name, members=members)
    probs = posterior.predict(data()[0], draws=20).probs
    assert len(posterior) % members == 0
    torch.testing.assert_close(probs.sum(-1), torch.ones(40))


def test_draws_are_the_same_functions_on_any_batching(name):
    posterior, x = fit(name, members=2), data()[0]
    whole = posterior.predict(x, draws=6).draws
    pieces = posterior.predict(x, draws=6, batch_size=7).draws
    alone = torch.cat([posterior.predict(x[i : i + 1], draws=6).draws for i in range(4)], dim=1)
    torch.testing.assert_close(pieces, whole)
    torch.testing.assert_close(alone, whole[:, :4])


def test_equal_seeds_make_equal_bits_and_others_do_not(name):
    first, second, third = fit(name, members=2), fit(name, members=2), fit(name, members=2, seed=1)
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(third))


def test_a_member_does_not_depend_on_how_many_there_are(name):
    few, many = fit(name, members=2), fit(name, members=3)
    rows = len(few) // 2
    torch.testing.assert_close(weights(few).view(rows, 2, -1), weights(many).view(rows, 3, -1)[:, :2])


def test_settings_survive_toml(name):
    method = short(name)
    known = {**METHODS, **{c.__name__: c for c in Schedule.__subclasses__()}}
    assert from_dict(loads_toml(dumps_toml(to_dict(method))), known) == method


def test_saved_posteriors_predict_the_same(name, tmp_path):
    posterior, x = fit(name, members=2), data()[0]
    posterior.save(tmp_path / "p")
    again = dubito.load(tmp_path / "p", network(), device="cpu")
    assert len(again) == len(posterior)
    assert torch.equal(again.predict(x, draws=9).draws, posterior.predict(x, draws=9).draws)


def test_a_posterior_moves_to_a_device_that_is_there(name, monkeypatch):
    posterior, x = fit(name), data()[0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("auto", "cpu", torch.device("cpu")):
        assert torch.equal(posterior.to(device).predict(x, draws=9).draws, posterior.predict(x, draws=9).draws)
    for device, named in (("cuda", "this machine has no CUDA device"), ("gpu", "unknown device 'gpu'")):
        with pytest.raises(ValueError, match=named):
            posterior.to(device)


def test_every_posterior_diagnoses_itself_or_says_why_not(name):
    posterior = fit(name, members=2)
    if issubclass(METHODS[name], Sampler):
        assert posterior.diagnose(data()[0][:3]).predictions is not None
    else:
        with pytest.raises(dubito.Undefined):
            posterior.diagnose()


def test_what_a_step_tells_is_finite_and_per_member(name):
    method, target, _, state, batch = by_hand(name, members=2)
    _, told = method.step(state, batch, target, Tick(torch.tensor(0), STEPS, Rng(0)))
    assert all(value.shape == (2,) and bool(torch.isfinite(value).all()) for value in told)


def test_a_step_can_be_recorded_and_compiled(name):
    """Traced with its random numbers and its changing numbers as arguments, it does what it did."""
    method, target, _, state, batch = by_hand(name)
    with torch.no_grad():
        for step in range(2):
            method.step(state, batch, target, Tick.at(step, STEPS))
        stream, rules = Stream(torch.device("cpu")), []
        leaves, spec = tree_flatten(state)

        def step(leaves, numbers, noise):
            given = iter(numbers)
            tick = Tick(torch.tensor(2), STEPS, Rng(0, 2, stream=Prepared(noise)), lambda rule: next(given))
            return tuple(method.step(tree_unflatten(list(leaves), spec), batch, target, tick)[1])

        def recorder(rule):
            rules.append(rule)
            return torch.tensor(rule(2, STEPS))

        rehearsal = tree_map(torch.clone, state)
        method.step(rehearsal, batch, target, Tick(torch.tensor(2), STEPS, Rng(0, 2, stream=stream), recorder))
        numbers = [torch.tensor(rule(2, STEPS)) for rule in rules]
        noise = [stream.draw(a.kind, torch.empty(a.shape, dtype=a.dtype)) for a in list(stream.asked)]
        copies = [tree_map(torch.clone, (leaves, numbers, noise)) for _ in range(3)]
        traced = make_fx(step)(*copies[0])
        told, expected = traced(*copies[1]), step(*copies[2])
    for ours, known in zip(tree_leaves((told, copies[1][0])), tree_leaves((expected, copies[2][0])), strict=True):
        torch.testing.assert_close(ours, known, equal_nan=True)
