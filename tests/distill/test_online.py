"""Distillation while a sampler runs."""

import json

import pytest
import torch
from safetensors.torch import load_file
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


def held(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoint.safetensors")


def test_the_buffer_holds_the_latest_samples_and_no_more(classifier, tmp_path):
    _, x, y = classifier
    method = dubito.OnlineDistillation(sampler=SAMPLER, distiller=SMALL, buffer=10)
    options = {"steps": 75, "batch_size": 20, "members": 2, **QUIET}
    chain = dubito.fit(net(), (x, y), SAMPLER, folder=tmp_path / "chain", **options)
    dubito.fit(net(), (x, y), method, folder=tmp_path / "online", **options)
    (buffer,) = (t for n, t in held(tmp_path / "online").items() if n.endswith("buffer"))
    stored = chain.samples.get(range(len(chain)))[0]
    assert len(stored) == 2 * ((75 - 20) // 2) and buffer.shape == (10, stored.shape[1])
    places = torch.arange(len(stored) - 10, len(stored))
    assert torch.equal(buffer[places % 10], stored[places])


@pytest.mark.parametrize("restart", [None, 30])
def test_restarted_chains_stand_where_the_generator_put_them(classifier, tmp_path, restart):
    """A generator with one hidden unit emits a line; only chains that were just restarted lie on it."""
    _, x, y = classifier
    line = Adversarial(noise=2, widths=(1,), batch_size=8, averaging=0.0)
    method = dubito.OnlineDistillation(sampler=SAMPLER, distiller=line, buffer=10, restart=restart)
    options = {"steps": 60, "batch_size": 20, "members": 2, "folder": tmp_path, **QUIET}
    made = dubito.fit(net(), (x, y), method, **options)
    theta = next(t for n, t in held(tmp_path).items() if n.endswith("theta"))
    along, start = made.parameters["head.0.weight"][:, 0], made.parameters["head.0.bias"]
    away = theta - start
    off = away - (away @ along / along.square().sum()).unsqueeze(1) * along
    assert (float(off.abs().max()) < 1e-5) == (restart is not None)


def test_an_online_regression_student_learns_mean_and_total_variance():
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 40).unsqueeze(1)
    y = x[:, 0] + 0.3 * torch.randn(40, generator=generator)
    sampler = dubito.SGLD(burn_in=100, thin=5, step_size=2e-3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        student = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))
    settings = DarkKnowledge(student=student, learning_rate=0.02, schedule="cosine", noise=0.1)
    method = dubito.OnlineDistillation(sampler=sampler, distiller=settings, every=2)
    options = {"likelihood": dubito.Gaussian(0.3), "steps": 900, "members": 4, "batch_size": 40, **QUIET}
    taught, said = (dubito.fit(nn.Linear(1, 1), (x, y), m, **options).predict(x) for m in (sampler, method))
    assert (said.mean - taught.mean).abs().max() < 0.15
    assert (said.std / taught.std - 1).abs().max() < 0.15
    with pytest.raises(dubito.Undefined, match="a student is one network"):
        _ = said.epistemic


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
