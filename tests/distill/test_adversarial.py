"""Adversarial distillation from a posterior to a posterior; how well it matches is the study `apd-target`."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import dubito
from dubito.distill import Adversarial, Optimiser, adversarial, bank
from dubito.distill.game import Game
from dubito.distill.offline import AdversarialDistillation, AlongDirections
from dubito.distill.work import Order, describe
from dubito.posteriors.generator import GeneratorPosterior, weight_shapes
from dubito.rng import Prepared, Rng, Stream
from dubito.tick import Tick

SMALL = Adversarial(noise=4, widths=(16, 16), batch_size=32, optimiser=Optimiser("adam", 2e-3, 0.5, 0.9))
QUIET = {"progress": False, "device": "cpu"}


def weights(posterior: GeneratorPosterior) -> torch.Tensor:
    return torch.cat([p.flatten() for _, p in sorted(posterior.parameters.items())])


@pytest.mark.parametrize("directions", [None, 10])
def test_a_generator_finds_both_modes(known, directions):
    found = adversarial(known.posterior, replace(SMALL, directions=directions), steps=250, **QUIET)
    theta = found.thetas(2000)
    distance = torch.stack([((theta - m) / s).square().sum(1) for m, s in zip(known.mean, known.std, strict=True)])
    share = float((distance[0] < distance[1]).float().mean())
    assert 0.1 < share < 0.6  # 0.3 in truth
    # the squared distance of a draw to its own mode is 10 on average, to a single Gaussian's centre about 40
    assert float(distance.amin(0).median()) < 25


def test_it_is_a_posterior(classifier, tmp_path):
    teacher, x, _ = classifier
    found = adversarial(teacher, SMALL, steps=20, **QUIET)
    prediction = found.predict(x, draws=30)
    assert prediction.bald.shape == (60,) and torch.equal(prediction.probs, found.predict(x, draws=30).probs)
    torch.testing.assert_close(found.predict(x, draws=6, batch_size=7).draws, prediction.draws[:6])
    assert {n: tuple(v.shape) for n, v in found.sample(5).items()} == {
        n: (5, *p.shape) for n, p in teacher.net.module.named_parameters()
    }
    found.save(tmp_path / "g")
    again = dubito.load(tmp_path / "g", teacher.net.module, device="cpu")
    assert isinstance(again, GeneratorPosterior) and torch.equal(again.thetas(9, seed=2), found.thetas(9, seed=2))
    assert again.about["distiller"]["noise"] == 4 and again.about["teacher"]["method"]["name"] == "SGLD"
    assert "a generator of" in repr(again) and again.to("cpu").size == found.size
    with pytest.raises(dubito.Undefined):
        found.mean_network()
    with pytest.raises(ValueError, match="belongs to another network"):
        dubito.load(tmp_path / "g", nn.Linear(3, 2), device="cpu")


def test_draws_of_a_generator_are_independent_and_collapse_is_named(classifier):
    teacher, x, _ = classifier
    found = adversarial(teacher, SMALL, steps=20, **QUIET)
    told = found.diagnose(x[:5])
    assert float(told.weights.rhat.max()) < 1.02 and float(told.predictions.rhat.max()) < 1.02
    assert float(np.median(told.weights.ess_bulk)) == pytest.approx(2000, rel=0.1) and not told.weights.constant
    parameters = {n: p.clone() for n, p in found.parameters.items()}
    parameters["head.0.weight"][3] = 0.0
    assert len(replace(found, parameters=parameters).diagnose().weights.constant) == 1


def test_a_generator_can_teach_a_mixture(classifier):
    found = adversarial(classifier[0], SMALL, steps=5, **QUIET)
    mean, std = found.moments()
    fitted = dubito.distill.mixture(found, **QUIET)
    assert ((fitted.mean[0] - mean) / std).abs().max() < 0.2


def test_a_run_keeps_its_validation_rows(classifier, tmp_path):
    teacher, x, y = classifier
    options = {"steps": 4, "check_every": 2, "folder": tmp_path, **QUIET}
    adversarial(teacher, SMALL, validation=(x, y), **options)
    for rows in (None, (x[:20], y[:20])):
        with pytest.raises(ValueError, match=r"holds another run; validation: \w+ here, \w+ there"):
            adversarial(teacher, SMALL, validation=rows, **options)
    adversarial(teacher, SMALL, validation=(x, y), **options)
    path = tmp_path / "run.json"
    told = json.loads(path.read_text())
    del told["settings"]["validation"]  # as folders of earlier versions
    path.write_text(json.dumps(told))
    adversarial(teacher, SMALL, validation=(x[:20], y[:20]), **{**options, "steps": 6})


def test_progress_is_told(classifier, tmp_path):
    teacher, x, y = classifier
    adversarial(teacher, SMALL, steps=20, validation=(x, y), check_every=10, folder=tmp_path / "a", **QUIET)
    records = [json.loads(line) for line in (tmp_path / "a" / "history.jsonl").read_text().splitlines()]
    assert {"estimate", "penalty", "generator"} <= set(records[0])
    scored = [r for r in records if "accuracy" in r]
    assert [r["step"] for r in scored] == [10, 20] and all(0 <= r["accuracy"] <= 1 for r in scored)
    assert all(r["validation"] > 0 for r in scored)


@pytest.mark.parametrize("how", [{}, {"rank": 1}, {"directions": 5}])
def test_a_run_that_was_stopped_continues_to_the_same_bits(classifier, tmp_path, how):
    class Stop(Exception):
        pass

    def brake(record):
        if record["step"] >= 12:
            raise Stop

    settings = Adversarial(noise=4, widths=(8,), batch_size=16, **how)
    whole = adversarial(classifier[0], settings, steps=20, folder=tmp_path / "whole", **QUIET)
    with pytest.raises(Stop):
        adversarial(
            classifier[0], settings, steps=20, folder=tmp_path / "parts", checkpoint_every=5, callback=brake, **QUIET
        )
    parts = adversarial(classifier[0], settings, steps=20, folder=tmp_path / "parts", checkpoint_every=5, **QUIET)
    assert torch.equal(weights(parts), weights(whole))
    again = adversarial(classifier[0], settings, steps=20, folder=tmp_path / "parts", **QUIET)
    assert torch.equal(weights(again), weights(whole))
    longer = adversarial(classifier[0], settings, steps=25, folder=tmp_path / "parts", **QUIET)
    assert not torch.equal(weights(longer), weights(whole))
    with pytest.raises(ValueError, match="holds another run"):
        adversarial(classifier[0], SMALL, steps=25, folder=tmp_path / "parts", **QUIET)


@pytest.mark.parametrize("directions", [None, 5])
def test_a_chain_on_disk_is_read_by_row_and_gives_the_same(classifier, tmp_path, monkeypatch, directions):
    classifier[0].save(tmp_path / "chain")
    chain = dubito.load(tmp_path / "chain", classifier[0].net.module, device="cpu")
    settings = replace(SMALL, directions=directions)
    resident = adversarial(classifier[0], settings, steps=3, **QUIET)
    monkeypatch.setattr(bank, "CPU_BYTES", 0)
    torch.testing.assert_close(weights(adversarial(chain, settings, steps=3, **QUIET)), weights(resident))


@pytest.mark.parametrize("how", [{}, {"rank": 1}, {"directions": 5}])
def test_weights_that_never_move_stay_where_they_are(classifier, how):
    _, x, y = classifier
    prior = {"*.bias": dubito.Point(), "*": dubito.Normal(1.0)}
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    teacher = dubito.fit(net, (x, y), dubito.Variational(), prior=prior, steps=20, **QUIET)
    found = adversarial(teacher, replace(SMALL, **how), steps=2, **QUIET).sample(5)
    still = teacher.sample(1)
    for name in found:
        assert torch.allclose(found[name], still[name], atol=1e-6, rtol=0) == name.endswith("bias")


@pytest.mark.parametrize("scaled", [True, False])
def test_the_game_sees_standardised_weights_or_raw_ones(known, scaled):
    theta, device = known.posterior.thetas(10_000), torch.device("cpu")
    held = bank.Bank(known.posterior.samples, bank.standard(known.posterior.samples, device, scaled))
    seen = torch.cat(list(held.pieces()))
    assert torch.equal(held.take(torch.tensor([5, 0])), seen[[5, 0]])
    if scaled:
        torch.testing.assert_close(seen.mean(0), torch.zeros(10), atol=1e-5, rtol=0)
        torch.testing.assert_close(seen.std(0), torch.ones(10))
        torch.testing.assert_close(held.standard.outward(seen), theta)
    else:
        assert torch.equal(seen, theta)


def test_raw_weights_start_where_the_generator_does(known):
    raw = adversarial(known.posterior, Adversarial(noise=4, widths=(8,), standardise=False), steps=1, **QUIET)
    scaled = adversarial(known.posterior, Adversarial(noise=4, widths=(8,)), steps=1, **QUIET)
    mean, std = known.posterior.moments()
    torch.testing.assert_close(scaled.thetas(500).mean(0) - mean, std * raw.thetas(500).mean(0), rtol=0, atol=0.1)


def test_the_global_generator_is_left_alone(classifier):
    before = torch.get_rng_state()
    adversarial(classifier[0], SMALL, steps=2, **QUIET)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_does_not_fit_is_refused_with_the_cure(classifier):
    teacher, x, _ = classifier
    with pytest.raises(ValueError, match=r"give distill\.Adversarial"):
        adversarial(teacher, dubito.distill.Mixture(), steps=1, **QUIET)
    with pytest.raises(ValueError, match=r"pass it as \(x, y\)"):
        adversarial(teacher, SMALL, steps=1, validation=x, **QUIET)


@pytest.mark.parametrize("method", ["deep_ensemble", "variational"])
def test_any_distribution_over_weights_can_teach(classifier, method):
    _, x, y = classifier
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    other = dubito.fit(net, (x, y), method, steps=5, **QUIET)
    assert adversarial(other, SMALL, steps=2, **QUIET).predict(x, draws=3).probs.shape == (60, 2)


def test_half_a_dimension_is_refused():
    with pytest.raises(ValueError, match=r"noise must be a whole number, got 2\.5"):
        Adversarial(noise=2.5)


def test_nothing_to_do_is_an_error(classifier):
    with pytest.raises(ValueError, match="nothing to do in 0 steps"):
        adversarial(classifier[0], SMALL, steps=0, **QUIET)


def test_precision_is_recorded_and_refused(classifier):
    found = adversarial(classifier[0], SMALL, steps=3, precision="tf32", **QUIET)
    assert found.about["precision"] == "tf32"
    with pytest.raises(ValueError, match="unknown precision 'half'"):
        adversarial(classifier[0], SMALL, steps=3, precision="half", **QUIET)


@pytest.mark.parametrize("directions", [None, 5])
def test_a_step_can_be_compiled(classifier, directions):
    """Traced with its random numbers and its changing numbers as arguments, it does what it did."""
    posterior = classifier[0]
    samples = bank.teacher(posterior, 0)
    held = bank.Bank(samples, bank.standard(samples, posterior.net.device))
    settings = {**describe(SMALL, posterior, 0), "precision": "float32"}
    order = Order(posterior.net, posterior.likelihood, 10, settings, None)
    if directions is None:
        game = Game(SMALL, weight_shapes(posterior.net, posterior.likelihood))
        work = AdversarialDistillation(order, game, held)
    else:
        work = AlongDirections(order, Game(SMALL, ((directions,),)), held, 0, False)
    state, stream = work.begin(0), Stream(torch.device("cpu"))
    work.attach(None, 0, state)
    leaves, spec = tree_flatten(state)
    work.step(tree_map(torch.clone, state), Tick(torch.tensor(0), 10, Rng(0, stream=stream)))
    noise = [stream.draw(a.kind, torch.empty(a.shape, dtype=a.dtype)) for a in list(stream.asked)]

    def step(leaves, noise):
        tick = Tick(torch.tensor(0), 10, Rng(0, stream=Prepared(noise)), lambda rule: torch.tensor(1.0))
        return tuple(work.step(tree_unflatten(list(leaves), spec), tick)[1])

    copies = [tree_map(torch.clone, (leaves, noise)) for _ in range(3)]
    traced = make_fx(step)(*copies[0])
    told, expected = traced(*copies[1]), step(*copies[2])
    torch.testing.assert_close(told, expected)
    torch.testing.assert_close(copies[1][0], copies[2][0])
