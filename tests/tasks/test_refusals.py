"""Settings, posteriors and labels that no task can use are refused in one sentence, before anything is predicted."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import dubito
from dubito.tasks import FGSM, OOD, PGD, Active, Known, Robustness, Selective, TargetedFGSM, Trajectory

X = torch.rand(12, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


@pytest.fixture(scope="module")
def posteriors() -> dict[str, dubito.Posterior]:
    torch.manual_seed(0)
    return {"MAP": dubito.fit(nn.Linear(4, 3), (X, Y), dubito.MAP(), steps=2, progress=False)}


@pytest.mark.parametrize(
    ("task", "settings", "sentence"),
    [
        (OOD, {"draws": 0}, "OOD: draws must be at least 1, got 0"),
        (OOD, {"draws": 2.5}, "OOD: draws must be a whole number, got 2.5"),
        (OOD, {"shown": -1}, "OOD: shown must be at least 0, got -1"),
        (OOD, {"bootstrap": -1}, "OOD: bootstrap must be at least 0, got -1"),
        (OOD, {"bootstrap": 1}, "rounds=1 bootstrap samples have no spread"),
        (OOD, {"level": 2.0}, "level=2.0 is no confidence level"),
        (OOD, {"scores": "bald"}, r"scores='bald' is one name, not several; give a tuple, \('bald',\)"),
        (Selective, {"draws": 0}, "Selective: draws must be at least 1, got 0"),
        (Selective, {"counts": (2.5,)}, "Selective: counts must be a whole number, got 2.5"),
        (Selective, {"counts": (0,)}, "Selective: counts must be at least 1, got 0"),
        (Robustness, {"draws": 0}, "Robustness: draws must be at least 1, got 0"),
        (Robustness, {"level": 0.0}, "level=0.0 is no confidence level"),
        (Robustness, {"attack": FGSM}, r"is no attack; give one with its settings, FGSM\(epsilon=0.1\)"),
        (Trajectory, {"attack": FGSM()}, r"goes to no class; give one that does, TargetedFGSM\(target=0\)"),
        (Trajectory, {"shown": -1}, "Trajectory: shown must be at least 0, got -1"),
        (TargetedFGSM, {"target": -100}, "TargetedFGSM: target must be at least 0, got -100"),
        (FGSM, {"draws": 1.5}, "FGSM: draws must be a whole number, got 1.5"),
        (OOD, {"scales": 5.0}, r"scales=5.0 must hold at least one number; \(1.0,\) leaves inputs as they are"),
        (OOD, {"scales": ("5",)}, "OOD: scales must be a finite number, got '5'"),
        (Selective, {"counts": 5}, r"counts=5 is no tuple of numbers; give one, such as \(10, 100\)"),
        (Robustness, {"epsilons": 0.1}, r"epsilons=0.1 is no tuple of numbers; give one, such as \(0.1, 0.2\)"),
        (Robustness, {"epsilons": (0.0, float("nan"))}, "epsilon=nan must be 0 or more"),
        (Trajectory, {"every": 1.5}, "Trajectory: every must be a whole number, got 1.5"),
        (PGD, {"steps": 2.5}, "PGD: steps must be a whole number, got 2.5"),
        (PGD, {"restarts": 1.5}, "PGD: restarts must be a whole number, got 1.5"),
        (FGSM, {"epsilon": "0.1"}, "epsilon='0.1' must be 0 or more"),
        (FGSM, {"epsilon": float("inf")}, "epsilon=inf must be 0 or more and finite"),
        (PGD, {"epsilon": float("inf")}, "epsilon=inf must be 0 or more and finite"),
        (Robustness, {"epsilons": (float("inf"),)}, "epsilon=inf must be 0 or more and finite"),
        (PGD, {"step_size": "0.1"}, "step_size='0.1' must be positive"),
        (Robustness, {"epsilons": (0.1, 0.1)}, r"epsilons=\(0.1, 0.1\) hold one number twice"),
        (Robustness, {"sources": [1]}, r"sources=\[1\] come by name; give \{name: posterior or network\}"),
        (OOD, {"level": "0.9"}, "level='0.9' is no confidence level"),
        (Selective, {"target_error": "0.1"}, "target_error='0.1' is no error rate"),
        (Active, {"sharpness": "1"}, "sharpness='1' must be positive and finite"),
    ],
)
def test_settings_that_cannot_be(task, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        task(**settings)


@pytest.mark.parametrize("task", [OOD(), Selective(), Robustness(), Trajectory()])
def test_a_module_is_no_posterior(task):
    with pytest.raises(ValueError, match=r"'net' is of type Linear, not a posterior; give what dubito\.fit"):
        task.run({"net": nn.Linear(4, 3)}, {"inside": X, "outside": X, "test": (X, Y)})


@pytest.mark.parametrize("task", [OOD(), Selective(), Robustness(), Trajectory()])
def test_data_come_by_name(task, posteriors):
    with pytest.raises(ValueError, match=r"data come by name, not as list; give \{name: inputs or"):
        task.run(posteriors, [X, Y])


@pytest.mark.parametrize("task", [OOD(), Selective(), Robustness(), Trajectory()])
def test_names_are_text(task, posteriors):
    with pytest.raises(ValueError, match="posteriors come by name, and 10 is no text; give it as '10'"):
        task.run({10: posteriors["MAP"]}, {"inside": X, "outside": X, "test": (X, Y)})
    with pytest.raises(ValueError, match="data come by name, and 5 is no text; give it as '5'"):
        task.run(posteriors, {"inside": X, "test": (X, Y), 5: X})


@pytest.mark.parametrize("bounds", [(0,), 1.0, ("low", "high"), (0.0, float("inf")), (float("nan"), 1.0)])
def test_bounds_are_two_numbers(posteriors, bounds):
    with pytest.raises(ValueError, match="hold no range; give the least and the largest"):
        FGSM().perturb(posteriors["MAP"], X, Y, bounds=bounds)


def test_attacks_refuse_a_module_and_inputs_of_another_shape(posteriors):
    with pytest.raises(ValueError, match="is of type Linear, not a posterior"):
        FGSM().perturb(nn.Linear(4, 3), X, Y)
    with pytest.raises(ValueError, match="the network does not accept rows of"):
        FGSM().perturb(posteriors["MAP"], X[:, :2], Y)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (Y + 30, "there is a label 30 for 3 classes; number them from 0 to 2"),
        (Y - 100, "there is a label -100 for 3 classes"),
        (Y + 0.5, "there is a label 0.5 for 3 classes"),
        (torch.stack([Y, Y], 1), r"labels have shape \(12, 2\) for 12 inputs; give one whole number for each"),
    ],
)
def test_labels_that_are_none(posteriors, labels, sentence):
    with pytest.raises(ValueError, match=sentence):
        Selective(draws=1).run(posteriors, {"test": (X, labels)})
    with pytest.raises(ValueError, match=sentence):
        OOD(draws=1).run(posteriors, {"inside": (X, labels), "outside": X})


def test_a_batch_is_chosen_by_class_probabilities_of_whole_inputs():
    means = dubito.fit(nn.Linear(4, 1), (X, X[:, 0]), dubito.DeepEnsemble(), members=2, steps=2, progress=False)
    tokens = dubito.fit(
        nn.Linear(2, 3), (X.view(12, 2, 2), torch.stack([Y, Y], 1)), dubito.DeepEnsemble(), steps=2, progress=False
    )
    task = Active(acquisition="batch_bald", batch=2, rounds=1, start=3, draws=2)
    with pytest.raises(dubito.Undefined, match="class probabilities do not exist under LearnedGaussian"):
        task.run(lambda data, previous, seed: means, {"pool": (X, Y)})
    with pytest.raises(
        ValueError, match=r"an input has \(2,\) scores, one for each token or pixel; label whole inputs"
    ):
        task.run(lambda data, previous, seed: tokens, {"pool": (X.view(12, 2, 2), Y)})


def test_who_cannot_be_asked(posteriors):
    with pytest.raises(ValueError, match="is no function; give one,"):
        Active().run(posteriors["MAP"], {"pool": (X, Y)})
    with pytest.raises(ValueError, match="cannot be asked; give Known"):
        Active().run(lambda data, previous, seed: posteriors["MAP"], {"pool": X}, oracle=Known)


def test_labels_in_a_column_are_labels(posteriors):
    task = Selective(draws=1)
    rows, column = (task.run(posteriors, {"test": (X, y)}).numbers["error"] for y in (Y, Y[:, None]))
    assert rows == column
    assert OOD(draws=1, bootstrap=0, shown=0).run(posteriors, {"inside": (X, Y[:, None]), "outside": X})
    attacks = Robustness(draws=1, bootstrap=0, shown=0, epsilons=(0.1,))
    rows, column = (attacks.run(posteriors, {"test": (X, y)}).numbers for y in (Y, Y[:, None]))
    assert rows == column


@pytest.mark.parametrize("task", [OOD(), Selective(), Robustness(), Trajectory()])
def test_a_task_takes_one_answer_for_an_input(task):
    x, y = torch.rand(6, 1, 2, 2), torch.arange(24).view(6, 2, 2) % 3
    likelihood = dubito.Categorical(class_axis=1)
    pixels = dubito.fit(nn.Conv2d(1, 3, 1), (x, y), dubito.MAP(), likelihood=likelihood, steps=2, progress=False)
    with pytest.raises(ValueError, match=r"an input has \(2, 2\) answers, one for each token, pixel or label"):
        task.run({"pixels": pixels}, {"test": (x, y)} | ({"inside": x, "outside": x} if task == OOD() else {}))


def test_a_mean_network_stands_in_for_its_posterior():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    posterior = dubito.fit(net, (X, Y), dubito.Variational(), steps=3, progress=False)
    mean = posterior.mean_network()
    point = dubito.fit(mean, (X, Y), dubito.MAP(learning_rate=1e-12), steps=1, progress=False)
    task = Robustness(draws=4, bootstrap=0, shown=0, epsilons=())
    plain, whole = (
        replace(task, sources={"VI": one}).run({"VI": posterior}, {"test": (X, Y)}).numbers["transfer"]
        for one in (mean, point)
    )
    assert plain == whole
