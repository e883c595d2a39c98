"""Quick runs of the studies about what doubt is for: every line runs, on data that need no files."""

from dataclasses import replace

import pytest
import torch

from dubito import studies
from dubito.studies import apd_active, apd_ood, bald_mnist, base, cifar_novel_class, wunn


@pytest.fixture
def quick(tmp_path):
    return lambda name: studies.run(name, quick=True, device="cpu", folder=tmp_path, progress=False)


def test_apd_ood(quick):
    result = quick("apd-ood")
    assert set(result.numbers["detection"]) >= {"Gaussian", "Uniform", "Gaussian ×5", "Uniform ×5"}
    assert set(result.numbers["detection"]["Gaussian"]) == set(apd_ood.METHODS)
    assert len(result.tables[0].rows) == len(result.tables[1].rows) == 40
    bald = [row for row in result.tables[0].rows if row[0] == "BALD" and row[1] == "Gaussian"]
    assert bald[0][3:] == (None,) * 9 and bald[3][3] == 100.0 and bald[3][4] is not None
    assert "neighbours apart" in result.summary


def test_bytes_times_5_wrap_around():
    x = torch.tensor([-1.0, 1.0, 2 * 60 / 255 - 1])
    plain, wrapped = apd_ood.as_released(x).values()
    assert plain.tolist() == [0, 255, 60] and wrapped.tolist() == [0, (255 * 5) % 256, 300 % 256]


def test_bald_mnist(quick):
    result = quick("bald-mnist")
    assert set(result.numbers["runs"]) == set(bald_mnist.PUBLISHED)
    first = [runs[0]["chosen"][0] for runs in result.numbers["runs"].values()]
    assert all(start == first[0] for start in first)  # every acquisition begins with the same labels
    assert len(result.tables[0].rows) == 10


def test_a_run_of_bald_mnist_ends_once_both_errors_are_reached(tmp_path, monkeypatch):
    sizes = bald_mnist.Sizes(1, 3, 3, 10, 5, 3, 300, 100, 50)
    monkeypatch.setattr(bald_mnist, "_sizes", lambda _: sizes)
    settings = base.Settings(quick=True, device="cpu", progress=False, work=tmp_path)
    for within, rounds in ((0.99, 0), (0.0, 3)):  # the errors of no network, and of none that is always right
        monkeypatch.setattr(bald_mnist, "ERRORS", (within, within))
        found = bald_mnist.curve("entropy", 0, replace(settings, work=tmp_path / str(within)))
        assert found["labels"] == [20 + 10 * i for i in range(rounds + 1)]
        assert bald_mnist.needs(found) == ([20, 20] if within else [None, None])


def test_intervals_of_labels_needed():
    assert bald_mnist.interval([100, 110, 120]) == pytest.approx((110 - 24.84, 110 + 24.84), abs=0.01)
    needed = {name: [[100, None], [110, None], [105, None]] for name in bald_mnist.PUBLISHED}
    needed["random"] = [[200, None], [210, None], [190, None]]
    said = bald_mnist.verdict(needed)
    assert "10% error: bald needs 105 labels, 200 at random (intervals apart)." in said and "5% error" not in said


def test_wunn_ood(quick):
    result = quick("wunn-ood")
    assert set(result.numbers["accuracy by set"]) == {wunn.MLP, wunn.DROPPED, wunn.BNN, wunn.OWN}
    assert any(figure.name == "votes-0-1" for figure in result.figures)
    assert "needs several networks" in result.numbers["undefined"][wunn.MLP]["bald"]


def test_wunn_attack(quick):
    result = quick("wunn-attack")
    masking = result.numbers["masking"]
    assert masking["FGSM, one draw"][wunn.MLP] == masking[f"FGSM, one draw, made on the {wunn.MLP}"][wunn.MLP]
    assert len(masking) == 8 and "about 50 % in the report" in result.summary


def test_apd_adversarial(quick):
    result = quick("apd-adversarial")
    assert [table.title.split(":")[0] for table in result.tables] == ["FGSM", "PGD"]
    rows = {row[:2]: row[2:] for row in result.tables[0].rows}
    assert len(rows) == 9 and rows["SGLD", "SGLD"][0] == 83.76 and rows["SGLD", "SGLD"][1] is not None
    assert rows["APD", "SGLD"][0] == 83.05
    assert result.numbers["PGD"]["transfer"]["SGLD"].keys() == {"MC dropout", "SGLD", "APD"}


def test_alpha_attacks(quick):
    result = quick("alpha-attacks")
    assert set(result.numbers["targeted"]) == {"plain MLP", "alpha = 0", "alpha = 0.5", "alpha = 1"}
    assert [row[0] for row in result.tables[0].rows] == ["0", "0.2"]
    assert "mean entropy" in result.summary


def test_cifar_novel_class(quick):
    result = quick("cifar-novel-class")
    assert set(result.numbers["accuracy on known classes"]) == set(cifar_novel_class.PUBLISHED)
    assert result.numbers["seeds"][0]["ood"]["undefined"]["plain"].keys() == {"bald", "vote_ratio", "top_spread"}
    assert {figure.name for figure in result.figures} >= {"answers", "doubt-entropy", "most-certain"}


def test_the_lecture_s_network_and_its_nine_classes():
    assert sum(p.numel() for p in cifar_novel_class.network().parameters()) == 117_805
    images = cifar_novel_class.pictures(base.Settings(quick=True))
    assert set(images.train.y.tolist()) == set(range(9))
    assert images.train.x.shape[1:] == (3, 32, 32) and float(images.train.x.min()) == -1.0


def test_apd_active(quick):
    result = quick("apd-active")
    assert set(result.numbers) == {"APD", "SGLD", "MC dropout", "SGD", "random"}
    assert all(runs[0]["labels"] == [20, 30] for runs in result.numbers.values())
    assert len({tuple(runs[0]["chosen"][0]) for runs in result.numbers.values()}) == 1


@pytest.mark.parametrize("name", ["sgld", "sgd", "dropout"])
def test_a_fit_of_apd_active_goes_on_from_the_one_before(name):
    settings = base.Settings(quick=True, device="cpu", progress=False)
    data = torch.rand(20, 1, 28, 28), torch.arange(20) % 10
    recipe = apd_active.Recipe(apd_active.Row(name), apd_active.QUICK, settings)
    first = recipe(data, None, 0)
    last = first.samples.get([len(first) - 1])[0][0]  # of a chain the latest, else the only one
    assert torch.equal(torch.cat([p.flatten() for p in recipe.reached.values()]), last)
    again = apd_active.Recipe(apd_active.Row(name), apd_active.QUICK, settings, recipe.reached)
    assert torch.equal(*(r(data, None, 1).samples.get([0])[0] for r in (recipe, again)))
    fresh = apd_active.Recipe(apd_active.Row(name), apd_active.QUICK, settings)(data, None, 1)
    assert not torch.equal(recipe(data, None, 1).samples.get([0])[0], fresh.samples.get([0])[0])
