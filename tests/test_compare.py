"""Posteriors side by side."""

import json

import pytest
import torch
from torch import nn

import dubito
from dubito.compare import stored_bytes
from dubito.distill import Adversarial, DarkKnowledge, Mixture

QUIET = {"progress": False, "device": "cpu"}


@pytest.fixture(scope="module")
def shown():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 2, generator=generator)
    y = (x[:, 0] > 0).long()
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2))
    chain = dubito.fit(net, (x, y), dubito.SGLD(burn_in=50, thin=5), steps=300, **QUIET)
    small = Adversarial(noise=2, widths=(4,))
    posteriors = {
        "chain": chain,
        "mixture": dubito.distill.mixture(chain, Mixture(components=2), **QUIET),
        "generator": dubito.distill.adversarial(chain, small, steps=3, **QUIET),
        "student": dubito.distill.dark_knowledge(chain, x, DarkKnowledge(), steps=3, **QUIET),
        "Dirichlet": dubito.distill.dark_knowledge(chain, x, DarkKnowledge(head="dirichlet"), steps=3, **QUIET),
    }
    return posteriors, x, y


def test_bytes_are_those_of_the_numbers_stored(shown):
    posteriors, *_ = shown
    assert stored_bytes(posteriors["chain"]) == 50 * 27 * 4
    assert stored_bytes(posteriors["mixture"]) == (2 * 2 * 27 + 2) * 4
    assert stored_bytes(posteriors["generator"]) == posteriors["generator"].size * 4 == (2 * 4 + 4 + 5 * 27) * 4
    assert stored_bytes(posteriors["student"]) == 27 * 4


def test_side_by_side(shown, tmp_path):
    posteriors, x, y = shown
    result = dubito.compare(posteriors, (x, y), outside=5 * x, draws=20, timed_rows=100)
    found = result.numbers
    assert list(found) == list(posteriors)
    assert found["chain"]["nearness"] == {"agreement": None, "total variation": None}
    assert all(0 <= found[n]["nearness"]["total variation"] <= 1 for n in list(found)[1:])
    assert found["student"]["detection"]["bald"] is None and found["Dirichlet"]["detection"]["bald"] is not None
    probs = posteriors["mixture"].predict(x, draws=20).probs
    assert found["mixture"]["scores"]["accuracy"] == dubito.metrics.accuracy(probs, y)
    assert all(one["predict_seconds"] > 0 for one in found.values())
    assert [figure.name for figure in result.figures] == ["bytes-nll", "bytes-accuracy"]
    saved = json.loads(result.save(tmp_path / "c.json").read_text())
    assert saved["numbers"]["chain"]["bytes"] == 5400
    assert len(result.tables[0].rows) == 5 and "AUROC BALD" in result.tables[0].columns


def test_regression_has_no_agreement():
    x = torch.randn(30, 1)
    posterior = dubito.fit(nn.Linear(1, 1), (x, x[:, 0]), dubito.MAP(), steps=3, **QUIET)
    result = dubito.compare({"a": posterior, "b": posterior}, (x, x[:, 0]), draws=2, timed_rows=10)
    assert result.numbers["b"]["nearness"]["agreement"] is None and "rmse" in result.numbers["b"]["scores"]


def test_classes_are_the_same_and_doubt_of_a_pixel_detects_no_input(shown):
    posteriors, x, y = shown
    three = dubito.fit(nn.Linear(2, 3), (x, y), dubito.MAP(), steps=1, **QUIET)
    with pytest.raises(ValueError, match=r"'three' gives \(3,\) probabilities for an input and 'chain' \(2,\)"):
        dubito.compare({"chain": posteriors["chain"], "three": three}, (x, y), draws=2, timed_rows=1)
    x, y = torch.rand(6, 1, 2, 2), torch.arange(24).view(6, 2, 2) % 3
    net, likelihood = nn.Conv2d(1, 3, 1), dubito.Categorical(class_axis=1)
    pixels = dubito.fit(net, (x, y), dubito.DeepEnsemble(), likelihood=likelihood, members=2, steps=2, **QUIET)
    found = dubito.compare({"pixels": pixels}, (x, y), outside=x, draws=2, timed_rows=1).numbers["pixels"]
    assert found["detection"] == {"entropy": None, "bald": None} and found["scores"]["accuracy"] >= 0


def test_nothing_to_compare():
    with pytest.raises(ValueError, match="nothing to compare"):
        dubito.compare({}, (torch.zeros(1, 1), torch.zeros(1)))


def test_what_cannot_stand_side_by_side(shown):
    posteriors, x, y = shown
    line = dubito.fit(nn.Linear(2, 1), (x, x[:, 0]), dubito.MAP(), steps=1, **QUIET)
    with pytest.raises(ValueError, match="'line' and 'chain' answer different questions"):
        dubito.compare({"chain": posteriors["chain"], "line": line}, (x, y))
    with pytest.raises(ValueError, match=r"pass data as \(x, y\)"):
        dubito.compare(posteriors, x)
