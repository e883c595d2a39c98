"""Distillation while a sampler runs."""

import json

import pytest
import torch
from torch import nn

import dubito
from dubito import metrics
from dubito.distill import Adversarial, DarkKnowledge, Optimiser
from dubito.posteriors.generator import GeneratorPosterior
from dubito.posteriors.student import StudentPosterior

QUIET = {"progress": False, "device": "cpu"}
SAMPLER = dubito.SGLD(burn_in=20, thin=2)
SMALL = Adversarial(noise=4, widths=(16,), batch_size=16, optimiser=Optimiser("adam", 2e-3, 0.5, 0.9))
METHODS = {
    "generator": dubito.OnlineDistillation(sampler=SAMPLER, distiller=SMALL, every=4, buffer=20, restart=30),
    "student": dubito.OnlineDistillation(sampler=SAMPLER, distiller=DarkKnowledge(learning_rate=0.02), every=2),
}


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))


def numbers(posterior) -> torch.Tensor:
    return posterior.thetas(5)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_was_stopped_continues_to_the_same_bits_and_stores_no_chain(name, classifier, tmp_path):
    class Stop(Exception):
        pass

    def brake(record):
        if record["step"] >= 75:
            raise Stop

    _, x, y = classifier
    options = {"steps": 100, "batch_size": 20, "members": 2, "checkpoint_every": 30, **QUIET}
    options["validation"] = (x[:20], y[:20])
    whole = dubito.fit(net(), (x, y), METHODS[name], folder=tmp_path / "whole", **options)
    with pytest.raises(Stop):
        dubito.fit(net(), (x, y), METHODS[name], folder=tmp_path / "parts", callback=brake, **options)
    parts = dubito.fit(net(), (x, y), METHODS[name], folder=tmp_path / "parts", **options)
    assert torch.equal(numbers(parts), numbers(whole))
    assert isinstance(parts, GeneratorPosterior if name == "generator" else StudentPosterior)
    again = dubito.load(tmp_path / "parts", net(), device="cpu")
    assert torch.equal(numbers(again), numbers(whole)) and type(again) is type(whole)
    kept = sorted(p.name for p in (tmp_path / "parts" / "posterior").iterdir())
    assert sum(n.startswith("samples-") for n in kept) == (name == "student")
    records = [json.loads(line) for line in (tmp_path / "parts" / "history.jsonl").read_text().splitlines()]
    assert {"fit", "complexity", "learner", "validation"} <= set(records[-1])


def test_an_online_student_predicts_like_the_chain(classifier):
    _, x, y = classifier
    sampler = dubito.SGLD(burn_in=100, thin=5)
    student = DarkKnowledge(learning_rate=0.01, schedule="cosine", noise=0.05)
    method = dubito.OnlineDistillation(sampler=sampler, distiller=student, every=1)
    taught = dubito.fit(net(), (x, y), sampler, steps=600, members=4, **QUIET).predict(x)
    said = dubito.fit(net(), (x, y), method, steps=600, members=4, **QUIET).predict(x)
    assert metrics.total_variation(said.probs, taught.probs) < 0.06


def test_the_chains_are_those_of_the_sampler_alone(classifier):
    """Without restarts a learner changes nothing of what it learns from."""
    _, x, y = classifier
    method = dubito.OnlineDistillation(sampler=SAMPLER, distiller=SMALL, buffer=10)
    found: list[torch.Tensor] = []
    for chosen in (method, SAMPLER):
        records: list[float] = []
        options = {"steps": 60, "batch_size": 20, "callback": lambda r, to=records: to.append(r["fit"]), **QUIET}
        dubito.fit(net(), (x, y), chosen, **options)
        found.append(torch.tensor(records))
    assert torch.equal(*found)


def test_a_buffer_that_never_fills_is_an_error(classifier):
    _, x, y = classifier
    method = dubito.OnlineDistillation(sampler=SAMPLER, distiller=SMALL, buffer=1000)
    with pytest.raises(ValueError, match="a buffer of 1000 does not fit a run that keeps 15 samples of 1 chains"):
        dubito.fit(net(), (x, y), method, steps=50, **QUIET)


def test_wrong_settings_say_so():
    with pytest.raises(ValueError, match="every must be at least 1"):
        dubito.OnlineDistillation(every=0)
    with pytest.raises(ValueError, match="restart needs a generator"):
        dubito.OnlineDistillation(distiller=DarkKnowledge(), restart=10)
