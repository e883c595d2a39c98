"""Quick runs of the studies of dropout and sparsity: every line runs, and what must hold at any size holds."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dubito import compress, studies
from dubito.compress import Scored
from dubito.studies import alpha_uci, sparsity
from dubito.studies.base import Settings
from dubito.studies.sparsevd_lenet import SUBJECTS, recipe, share
from dubito.studies.sparsevd_random_labels import shuffled
from dubito.studies.sparsevd_recurrent import sequences

QUICK = Settings(quick=True, device="cpu", progress=False)


def quick(name, folder):
    return studies.run(name, quick=True, device="cpu", folder=folder, progress=False)


@pytest.mark.parametrize("name", ["sparsevd-lenet-300-100", "sparsevd-lenet-5"])
def test_lenets(name, tmp_path):
    result = quick(name, tmp_path)
    networks = result.numbers["networks"]
    assert len(networks) == 16 and all(one["ratio"] >= 1 for one in networks)
    dense = [one for one in networks if one["what"].startswith("dense")]
    assert all(one["ratio"] == 1 and one["smaller"] == pytest.approx(1, abs=0.2) for one in dense)
    published = {row[0]: row[1] for row in result.tables[0].rows}
    assert published["Sparse VD: weights / non-zero"] == (68 if "300" in name else 280)
    assert [figure.name for figure in result.figures][:3] == ["log-alpha", "sparsity", "matrix"]
    assert ("filters" in [figure.name for figure in result.figures]) == (name == "sparsevd-lenet-5")
    zeros = result.figures[1].panels[0].data["series"][0]["y"]
    assert all(0 <= share <= 1 for share in zeros)
    assert len(zeros) == (1 if result.settings["moved by"] else 6)  # once in a pass through all copies


def test_a_lenet_that_was_fitted_before_has_its_figures(tmp_path, monkeypatch):
    settings = replace(QUICK, work=tmp_path)
    first = studies.find("sparsevd-lenet-300-100").run(settings)
    monkeypatch.setattr("dubito.runs.run", lambda *_, **__: pytest.fail("fitted again"))
    again = studies.find("sparsevd-lenet-300-100").run(settings)
    assert [figure.name for figure in again.figures] == [figure.name for figure in first.figures]


@pytest.mark.parametrize("ratio", [1, 68, 280, 1000])
def test_as_many_weights_go_as_a_ratio_asks_for(ratio):
    held = Scored(torch.nn.Linear(100, 77), {"weight": torch.randn(77, 100)}, "magnitude")
    left = compress.ratio(held.masked(held.at_share(share(held, ratio))))
    assert ratio <= left < ratio * 1.13


def test_validation_images_are_no_training_images():
    data = sparsity.images("mnist", QUICK)
    trained = {tuple(row) for row in data.train.x.flatten(1).tolist()}
    assert not any(tuple(row) in trained for row in data.validation.x.flatten(1).tolist())
    assert len(data.validation.x) == 200 and float(data.train.x.mean(0).abs().max()) < 1e-5


def test_images_are_moved_by_a_pixel_each_way_before_the_mean_is_taken_off():
    still, held = sparsity.images("mnist", QUICK), sparsity.images("mnist", QUICK, shift=1)
    rows = len(still.train.x)
    assert torch.equal(held.train.y, still.train.y.repeat(9)) and torch.equal(held.test.x, still.test.x)
    places = held.train.x.unflatten(0, (9, rows))
    assert torch.equal(places[4], still.train.x)
    down = (places[1] - places[4])[..., 1:, :] + still.train.x[..., 1:, :] - still.train.x[..., :-1, :]
    assert float((down - down[0]).abs().max()) < 1e-4  # the mean alone, which is the same for every image
    assert recipe(SUBJECTS["sparsevd-lenet-5"], "nothing", 1, QUICK).span(held) == (rows, rows // 100)


def test_once_all_is_chosen_validation_images_are_learnt_from():
    some, every = sparsity.images("mnist", QUICK), sparsity.images("mnist", QUICK, whole=True)
    assert torch.equal(every.train.x, torch.cat([some.train.x, some.validation.x]))
    assert torch.equal(every.train.y, torch.cat([some.train.y, some.validation.y]))


def test_random_labels(tmp_path):
    result = quick("sparsevd-random-labels", tmp_path)
    assert set(result.numbers["digits"]) == {"binary dropout", "Sparse VD"}
    assert result.numbers["digits"]["Sparse VD"][2] > 50
    data = sparsity.images("mnist", QUICK)
    drawn = shuffled(data, 0)
    assert float((drawn.train.y == data.train.y).float().mean()) < 0.2
    assert torch.equal(drawn.train.y, shuffled(data, 0).train.y)


def test_alpha_uci(tmp_path):
    result = quick("alpha-uci", tmp_path)
    scores = result.numbers["scores"]["toy"]
    assert set(scores) == {"0", "0.5", "1", "HMC"} and all(len(values) == 2 for values in scores.values())
    gap = np.array(scores["1"]) - np.array(scores["0"])
    row = next(row for row in result.tables[1].rows if row[1] == "alpha 1 - alpha 0")
    assert row[2] == pytest.approx(gap[:, 0].mean())
    assert row[3] == pytest.approx(abs(gap[0, 0] - gap[1, 0]) / 2)
    assert set(alpha_uci.PUBLISHED) == set(alpha_uci.NAMES)


def test_alpha_mnist(tmp_path):
    result = quick("alpha-mnist", tmp_path)
    assert [row[:2] for row in result.numbers["rows"]] == [[n, a] for n in ("2 x 100", "CNN") for a in (0.0, 0.5, 1.0)]
    labels = [row[0] for row in result.numbers["costs"]]
    assert labels[0] == "MC dropout" and "Gaussian, alpha 1, K = 3" in labels
    assert all(math.isfinite(row[3]) for row in result.numbers["rows"])


def test_recurrent(tmp_path):
    result = quick("sparsevd-recurrent", tmp_path)
    assert [row[0] for row in result.numbers["rows"]] == ["dense", "Sparse VD"]
    labels = [series["label"] for series in result.figures[0].panels[0].data["series"]]
    assert labels == ["cell.weight_ih_l0", "cell.weight_hh_l0", "head.weight"]
    x, y = sequences(50, seed=3)
    assert bool((x[:, :, 1].sum(1) == 2).all()) and torch.equal(y, ((x[:, :, 0] * x[:, :, 1]).sum(1) > 1).long())


def test_vgg(tmp_path):
    result = quick("sparsevd-vgg", tmp_path)
    assert [row[1] for row in result.numbers["rows"]] == [
        "dense", "Sparse VD, log alpha < 3", "Sparse VD, cut on validation",
    ]  # fmt: skip
