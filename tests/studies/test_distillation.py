"""Quick runs of the studies of distillation: every line runs, and what must hold at any size holds."""

import math
from itertools import combinations
from statistics import mean

import pytest
import torch

import dubito
from dubito import studies
from dubito.studies import apd_accuracy, apd_online, apd_storage, apd_target, digits
from dubito.studies.base import Settings
from dubito.studies.bdk_toy import kl


def quick(name, tmp_path):
    return studies.run(name, quick=True, device="cpu", folder=tmp_path, progress=False)


def test_apd_target(tmp_path):
    found = quick("apd-target", tmp_path).numbers
    assert set(found) == {
        "fresh draws", "one Gaussian", "two Gaussians", "WGAN-GP", "WGAN-GP, as published", "WGAN", "GAN"
    }  # fmt: skip
    assert found["two Gaussians"]["energy"] < found["one Gaussian"]["energy"]
    assert found["one Gaussian"]["p"] == 0.005 and found["fresh draws"]["p"] > 0.01


def test_the_target_is_what_it_says_and_lost_modes_are_told():
    truth = apd_target.Truth.of(0)
    theta, fresh = truth.draw(20_000, "a"), truth.draw(50_000, "b")
    found = apd_target.errors(truth, theta, fresh)
    assert found.within and abs(found.energy) < 0.01
    (share, mean, _), _ = truth.moments(fresh)
    assert share == pytest.approx(0.3, abs=0.01) and ((mean - truth.mean[0]) / truth.std[0]).abs().max() < 0.05
    lost = apd_target.errors(truth, truth.mean[1] + 0.01 * torch.randn(500, 10), fresh)
    assert not lost.within and math.isnan(lost.mean)


def test_energy_distance_by_hand():
    x, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [3.0]])
    assert apd_target.energy(x, y) == pytest.approx(2 * (1 + 3 + 1 + 1) / 4 - 2 - 2)


def test_the_permutation_test_by_counting_all():
    x, y = torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[2.0], [8.0], [9.0]])
    both = torch.cat([x, y])

    def distance(mine):
        other = [i for i in range(6) if i not in mine]
        a, b = both[list(mine)], both[other]
        return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())

    here = distance((0, 1, 2))
    exact = mean(distance(mine) >= here - 1e-9 for mine in combinations(range(6), 3))
    assert 0 < exact < 1 and apd_target.permuted(x, y, 4000) == pytest.approx(exact, abs=0.03)
    truth = apd_target.Truth.of(0)
    same, shifted = truth.draw(300, "a"), truth.draw(300, "c") + 1
    assert apd_target.permuted(same, truth.draw(300, "b")) > 0.01
    assert apd_target.permuted(shifted, truth.draw(300, "b")) == 1 / 200


@pytest.mark.parametrize("name", ["apd-accuracy", "apd-gans", "apd-online", "bdk-mnist"])
def test_digits(name, tmp_path):
    result = quick(name, tmp_path)
    assert result.tables and "Quick" in result.summary
    if name == "apd-accuracy":
        first, second = result.numbers["fcNN1"]
        assert list(first) == list(second) == list(apd_accuracy.DRAWS)
        assert first["SGD"]["bald_auroc"] is None
        assert [row[-1] for row in result.tables[-1].rows].count("chosen") == 2  # one rate a network
        assert all(first[m]["nll"] != second[m]["nll"] and first[m]["bytes"] == second[m]["bytes"] for m in second)
        assert first["SGLD"]["bytes"] == 37 * first["SGD"]["bytes"] and first["SGLD"]["variation"] is None
    if name == "apd-gans":
        assert [r["step"] for r in result.numbers["validation"]["WGAN"]] == [1, 2, 3, 4]
    if name == "apd-online":
        held = {row: one["held"] for row, one in result.numbers.items()}
        assert held["online"] < held["offline, ten times as many samples"]
    if name == "bdk-mnist":
        assert result.numbers["distilled"]["bald_auroc"] is None
        assert result.numbers["Dirichlet student"]["bald_auroc"] is not None


def test_posteriors_are_taken_from_the_folders_of_apd_accuracy(tmp_path, monkeypatch):
    settings = Settings(quick=True, device="cpu", progress=False, work=tmp_path / "runs" / "another-0")
    held = digits.load(settings)
    made = apd_accuracy.posteriors("fcNN1", ("APD", "SGD"), held, settings)
    folders = {path.name for path in (tmp_path / "runs" / "apd-accuracy-0").iterdir() if path.is_dir()}
    assert folders == {"fcnn1-sgld", "fcnn1-apd-0", "fcnn1-sgd", "pieces"}
    monkeypatch.setattr("dubito.runs.run", lambda *_, **__: pytest.fail("fitted again"))
    found = apd_accuracy.posteriors("fcNN1", ("APD", "SGD"), held, settings)
    for name, posterior in made.items():
        probs = [p.predict(held.test.x[:5], draws=2).probs for p in (posterior, found[name])]
        assert torch.equal(*probs)
    network = apd_storage.measured("single network", 1, settings)["bytes"]
    assert apd_storage.measured("chain", 0, settings)["bytes"] == 7 * network
    assert apd_online.measured("teacher", 1, settings)["quality"]["bytes"] == 37 * network


def test_seeds_are_members_of_one_fit_and_each_has_a_generator_of_its_own(tmp_path):
    settings = Settings(quick=True, device="cpu", progress=False, work=tmp_path / "apd-accuracy-0")
    held = digits.load(settings)
    chains = apd_accuracy.made("fcNN2", "SGLD", [0, 1], held, settings)
    whole = dubito.load(tmp_path / "apd-accuracy-0" / "fcnn2-sgld", chains[0].net.module, device="cpu")
    for index, chain in enumerate(chains):
        assert chain.samples.on_disk and torch.equal(chain.thetas(37), whole.thetas(74)[index::2])
    assert torch.equal(apd_accuracy.chain("fcNN2", held, settings).thetas(37), chains[0].thetas(37))
    (second,) = apd_accuracy.made("fcNN2", "APD", [1], held, settings)
    told = {"steps": 4, "validation": held.validation, "seed": 1, "device": "cpu", "precision": "tf32"}
    alone = dubito.distill.adversarial(chains[1], apd_accuracy.distiller("fcNN2", settings), **told, progress=False)
    assert torch.equal(second.thetas(3), alone.thetas(3))


def test_apd_storage(tmp_path):
    result = quick("apd-storage", tmp_path)
    assert set(result.numbers) == {"chain", "single network", "samples", "mixtures", "generators"}
    weights = result.numbers["single network"]["SGD"]["bytes"] // 4
    assert result.numbers["samples"]["2 samples"]["bytes"] == 8 * weights
    assert result.numbers["mixtures"]["1 Gaussian"]["bytes"] == 4 * (2 * weights + 1)
    assert "Least total variation" in result.summary and len(result.figures) == 4


def test_apd_toy(tmp_path):
    rows = quick("apd-toy", tmp_path).numbers["rows"]
    assert list(rows) == ["SGLD", "APD", "BDK", "Dirichlet student", "MC dropout"]
    assert rows["BDK"][3:5] == [None, None] and rows["Dirichlet student"][3] is not None


@pytest.mark.parametrize("name", ["bdk-toy", "bdk-boston"])
def test_bdk(name, tmp_path):
    result = quick(name, tmp_path)
    assert result.tables[0].rows[0][1] is not None


def test_kl_by_hand():
    p, q = torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    expected = (0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75) + math.log(2)) / 2
    assert kl(p, q) == pytest.approx(expected)


def test_rows_and_letters_are_in_one_range():
    held = digits.load(Settings(quick=True), 0.0, 2.0)
    for x in (held.train.x, held.validation.x, held.test.x, held.outside):
        assert float(x.min()) == 0 and float(x.max()) == 2
