"""What no distillation can use is refused in one sentence, before the first step."""

import pytest
import torch
from torch import nn

import dubito
from dubito import distill

QUIET = {"steps": 5, "progress": False, "check_every": 1_000}
SMALL = distill.Adversarial(widths=(4,), noise=2, batch_size=4)


def _wrong(x, y):
    return [
        ((x[:0], y[:0]), "the data are empty; give at least one row"),
        ((x * torch.nan, y), "x holds NaN or infinity"),
        ((x, y[:3]), "x has 60 rows and y has 3"),
        ((x, y + 5), "y holds the label 5|y holds the label 6"),
        ((x[:, :2], y), "does not accept rows of"),
    ]


def test_validation_is_checked_before_the_first_step(classifier):
    chain, x, y = classifier
    steps = []
    for validation, sentence in _wrong(x, y):
        with pytest.raises(ValueError, match=sentence):
            distill.adversarial(chain, SMALL, validation=validation, callback=steps.append, **QUIET)
        with pytest.raises(ValueError, match=sentence):
            distill.dark_knowledge(chain, x, validation=validation, callback=steps.append, **QUIET)
    assert not steps


def test_a_module_is_no_teacher(classifier):
    _, x, y = classifier
    sentence = r"is of type Linear, not a posterior; give what dubito\.fit or dubito\.load returns"
    for make in (
        lambda: distill.adversarial(nn.Linear(3, 2), SMALL, **QUIET),
        lambda: distill.mixture(nn.Linear(3, 2), progress=False),
        lambda: distill.dark_knowledge(nn.Linear(3, 2), x, **QUIET),
        lambda: dubito.compare({"net": nn.Linear(3, 2)}, (x, y)),
    ):
        with pytest.raises(ValueError, match=sentence):
            make()


def test_settings_that_cannot_be(classifier):
    chain, x, y = classifier
    for make, sentence in (
        (lambda: distill.Adversarial(widths=8), r"widths is 8; give the width of each layer, such as \(100, 100\)"),
        (lambda: distill.Adversarial(critic_widths=8), "critic_widths is 8; give the width of each layer"),
        (lambda: distill.DarkKnowledge(student="mlp"), "student is 'mlp'; give a network, an nn.Module, or leave"),
        (lambda: distill.DarkKnowledge(noise=float("inf")), "noise must be finite and not negative, got inf"),
        (lambda: distill.DarkKnowledge(weight_decay="0"), "weight_decay must be finite and not negative, got '0'"),
        (lambda: distill.Adversarial(averaging="0.9"), r"averaging must lie in \[0, 1\), got '0.9'"),
        (lambda: distill.Optimiser("adam", float("inf")), "learning_rate must be positive, got inf"),
        (lambda: distill.Optimiser("adam", 1e-3, "0.5"), r"decay rates must lie in \[0, 1\), got '0.5' and 0.999"),
        (lambda: dubito.OnlineDistillation(sampler=dubito.MAP()), r"MAP\(.*\) is no sampler; give one, such as SGLD"),
        (lambda: dubito.OnlineDistillation(distiller=distill.Mixture()), "cannot learn while a sampler runs"),
        (lambda: dubito.compare({"chain": chain}, (x, y), timed_rows=0), "timed_rows is 0; give the rows"),
        (
            lambda: dubito.compare({"chain": chain}, (x, y), timed_rows=2.5),
            "timed_rows must be a whole number",
        ),
        (lambda: distill.Adversarial(widths=(10.5,)), "widths must be a whole number, got 10.5"),
        (
            lambda: distill.Adversarial(optimiser="adam"),
            "optimiser is 'adam'; give distill",
        ),
        (lambda: distill.adversarial(chain, SMALL, **QUIET | {"steps": 2.5}), "steps must be a whole number, got 2.5"),
        (lambda: distill.dark_knowledge(chain, x, **QUIET | {"steps": 2.5}), "steps must be a whole number, got 2.5"),
        (
            lambda: distill.adversarial(chain, SMALL, **QUIET | {"check_every": 2.5}),
            "check_every must be a whole",
        ),
        (
            lambda: distill.adversarial(chain, SMALL, checkpoint_every=0, **QUIET),
            "checkpoint_every is 0; give 1 step or more",
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            make()


def test_a_student_with_norms_must_have_seen_data(classifier):
    chain, x, y = classifier
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="has never seen data; use a batch-free norm, or a trained student"):
        distill.dark_knowledge(chain, x, distill.DarkKnowledge(student=net), **QUIET)
    trained = dubito.fit(net, (x, y), dubito.MAP(), steps=3, progress=False).mean_network()
    assert len(distill.dark_knowledge(chain, x, distill.DarkKnowledge(student=trained), **QUIET)) == 1
