"""Training: validation, the best state of each member, early stopping, divergence and memory."""

import pytest
import torch
from torch import nn

import dubito
from dubito import training

X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) + 0.5 * torch.randn(60, generator=torch.Generator().manual_seed(1)) > 0).long()
HELD = (X[40:], Y[40:])


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


def fit(method, steps=200, **settings):
    settings = {"progress": False, "batch_size": 20, "device": "cpu", **settings}
    return dubito.fit(net(), (X[:40], Y[:40]), method, steps=steps, **settings)


def held_out_nll(posterior) -> torch.Tensor:
    """Nats per datum of each network alone."""
    draws = posterior.predict(HELD[0]).draws
    return -draws[:, torch.arange(20), HELD[1]].log().mean(1)


def test_the_best_state_of_each_member_is_returned():
    checks = []
    method = dubito.MAP(learning_rate=0.3)
    best = fit(method, steps=60, members=3, validation=HELD, callback=lambda r: checks.append(r.get("validation")))
    last = fit(method, steps=60, members=3)
    each = [held_out_nll(fit(method, steps=s, members=3)) for s in range(10, 61, 10)]
    expected = torch.stack(each).min(0).values
    torch.testing.assert_close(held_out_nll(best), expected, rtol=1e-4, atol=1e-5)
    assert bool((held_out_nll(last) > expected + 1e-3).any())
    measured = [c for c in checks if c is not None]
    torch.testing.assert_close(torch.tensor(measured), torch.stack(each).mean(1), rtol=1e-3, atol=1e-4)


def test_the_last_state_counts_even_between_two_checks():
    method = dubito.MAP(learning_rate=0.01)
    posterior = fit(method, steps=7, validation=HELD)
    assert torch.equal(posterior.predict(X).probs, fit(method, steps=7).predict(X).probs)


def test_patience_stops_early_and_the_same_call_returns_the_same(tmp_path):
    records = []
    method = dubito.MAP(learning_rate=0.1)
    stopped = fit(method, steps=5000, validation=HELD, patience=3, folder=tmp_path, callback=records.append)
    reached = records[-1]["step"]
    assert reached < 5000 and records[-1]["validation"] > min(r["validation"] for r in records if "validation" in r)
    again = fit(method, steps=5000, validation=HELD, patience=3, folder=tmp_path)
    assert torch.equal(again.predict(X).probs, stopped.predict(X).probs)
    longer = fit(method, steps=6000, validation=HELD, patience=3, folder=tmp_path, callback=records.append)
    assert torch.equal(longer.predict(X).probs, stopped.predict(X).probs) and records[-1]["step"] == reached


def test_patience_waits_for_the_last_member():
    records = []
    fit(dubito.MAP(learning_rate=0.1), steps=5000, validation=HELD, patience=3, members=1, callback=records.append)
    alone = records[-1]["step"]
    fit(dubito.MAP(learning_rate=0.1), steps=5000, validation=HELD, patience=3, members=4, callback=records.append)
    assert records[-1]["step"] >= alone


@pytest.mark.parametrize("settings", [{"patience": 3}, {"patience": 0, "validation": HELD}])
def test_patience_needs_validation_data(settings):
    with pytest.raises(ValueError, match="patience counts checks on validation data: give validation="):
        fit("map", **settings)


def test_samplers_are_measured_but_not_selected():
    records = []
    method = dubito.SGLD(burn_in=20, thin=20)
    plain = fit(method, steps=100)
    measured = fit(method, steps=100, validation=HELD, callback=records.append)
    assert torch.equal(plain.thetas(9), measured.thetas(9))
    assert sum("validation" in r for r in records) == 10


@pytest.mark.parametrize(
    ("method", "quantity"),
    [
        (dubito.MAP(optimiser="sgd", learning_rate=1e12), "log-likelihood|log-prior|weight"),
        (dubito.SGLD(step_size=1e8, burn_in=0, thin=1), "weight|log-likelihood|log-prior"),
        (dubito.SGHMC(step_size=1e8, burn_in=10, thin=90), "log-likelihood|log-prior|weight"),
    ],
)
def test_divergence_stops_with_the_step_the_quantity_and_the_cure(method, quantity, tmp_path):
    with pytest.raises(
        dubito.Diverged, match=rf"at step \d+ (the|a) ({quantity}) left the finite.*try a smaller step_size"
    ):
        fit(method, folder=tmp_path / "run")
    manifest = tmp_path / "run" / "posterior" / "posterior.json"
    if manifest.exists():
        assert torch.isfinite(dubito.load(tmp_path / "run", net(), device="cpu").thetas(1000)).all()


def test_an_optimiser_whose_last_step_explodes_is_caught_at_the_end():
    with pytest.raises(dubito.Diverged, match="at step 1 a weight left the finite"):
        fit(dubito.MAP(optimiser="sgd", learning_rate=3e38, momentum=0.0), steps=1, prior=dubito.Normal(1e-3))


def test_targets_far_out_of_scale_get_the_cure_too():
    with pytest.raises(dubito.Diverged, match="inputs and targets scaled to about 1"):
        dubito.fit(nn.Linear(2, 1), (X, 1e9 * X[:, 0]), "map", steps=20, progress=False)


def test_samples_that_would_not_fit_memory_want_a_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(training, "MEMORY_LIMIT", 1000)
    method = dubito.SGLD(burn_in=0, thin=10)
    with pytest.raises(ValueError, match=r"20 samples of .* bytes do not fit .*give fit\(folder=\.\.\.\)"):
        fit(method)
    assert len(fit(method, folder=tmp_path)) == 20


def test_a_run_that_would_keep_nothing_is_refused_at_once():
    with pytest.raises(
        ValueError, match="no sample would be kept in 200 steps; take more, or a smaller burn_in or thin"
    ):
        fit(dubito.SGLD(burn_in=500))


def test_keep_is_the_last_so_many():
    everything = fit(dubito.SGLD(burn_in=0, thin=10), steps=60)
    last = fit(dubito.SGLD(burn_in=0, thin=10, keep=2), steps=60)
    assert torch.equal(last.thetas(9), everything.thetas(9)[-2:])


def test_what_a_posterior_knows_about_itself(tmp_path):
    posterior = fit(dubito.SGLD(burn_in=0, thin=10), steps=60, prior=dubito.Normal(0.7), folder=tmp_path)
    about = dubito.load(tmp_path, net(), device="cpu").about
    assert about["method"]["name"] == "SGLD" and about["method"]["step_size"] == pytest.approx(0.05 / 40)
    assert about["prior"] == {"name": "Normal", "std": 0.7, "mean": 0.0}
    assert (about["n_data"], about["batch_size"], about["steps"], about["seed"]) == (40, 20, 60, 0)
    assert repr(posterior).startswith("<SGLD: 1 x 6 samples of 82 weights, Categorical")
