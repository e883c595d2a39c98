"""Students: losses by hand, agreement with the teacher, and what a single network cannot tell."""

import math
from dataclasses import replace
from statistics import mean

import numpy as np
import pytest
import torch
from torch import nn

import dubito
from dubito import metrics
from dubito.distill import DarkKnowledge, dark_knowledge
from dubito.distill.student import _dirichlet_loss, _gaussian_loss
from dubito.likelihoods import Dirichlet
from dubito.posteriors.storage import MemorySamples
from dubito.posteriors.student import StudentPosterior

QUIET = {"progress": False, "device": "cpu"}


def net(outputs: int = 2) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, outputs))


def weights(posterior) -> torch.Tensor:
    return posterior.thetas(1)[0]


def test_a_student_predicts_like_its_teacher(classifier):
    teacher, x, _ = classifier
    student = dark_knowledge(teacher, x, DarkKnowledge(student=net(), learning_rate=0.02, draws=4), steps=300, **QUIET)
    taught, said, naive = (p.probs for p in (teacher.predict(x), student.predict(x), teacher.predict(x, draws=1)))
    assert metrics.total_variation(said, taught) < 0.04
    assert metrics.total_variation(said, taught) < metrics.total_variation(naive, taught)  # of one of its networks
    assert isinstance(student, StudentPosterior) and len(student) == 1
    assert isinstance(student.mean_network(), nn.Sequential)


def test_what_a_student_cannot_tell_raises_the_reason(classifier):
    teacher, x, _ = classifier
    prediction = dark_knowledge(teacher, x, steps=2, **QUIET).predict(x, draws=50)
    assert prediction.n_draws == 1 and prediction.entropy.shape == (60,)
    for name in ("bald", "epistemic", "std", "vote_ratio"):
        with pytest.raises(dubito.Undefined, match="a student is one network that has learnt its teacher's average"):
            getattr(prediction, name)


def test_a_student_is_saved_loaded_and_resumed(classifier, tmp_path):
    class Stop(Exception):
        pass

    def brake(record):
        if record["step"] >= 12:
            raise Stop

    teacher, x, y = classifier
    settings = DarkKnowledge(student=net(), batch_size=20)
    options = {"steps": 20, "checkpoint_every": 5, "validation": (x, y), "check_every": 10, **QUIET}
    whole = dark_knowledge(teacher, x, settings, folder=tmp_path / "whole", **options)
    with pytest.raises(Stop):
        dark_knowledge(teacher, x, settings, folder=tmp_path / "parts", callback=brake, **options)
    parts = dark_knowledge(teacher, x, settings, folder=tmp_path / "parts", **options)
    assert torch.equal(weights(parts), weights(whole))
    again = dubito.load(tmp_path / "parts", net(), device="cpu")
    assert isinstance(again, StudentPosterior) and torch.equal(again.predict(x).probs, whole.predict(x).probs)
    assert again.about["distiller"]["batch_size"] == 20
    with pytest.raises(ValueError, match="holds another run"):
        dark_knowledge(teacher, x[:30], settings, folder=tmp_path / "parts", **options)
    for rows in (None, (x + 0.01, y)):
        with pytest.raises(ValueError, match=r"holds another run; validation: \w+ here, \w+ there"):
            dark_knowledge(teacher, x, settings, folder=tmp_path / "parts", **{**options, "validation": rows})


def test_a_student_goes_on_under_the_forward_pass_it_began_with(classifier, tmp_path):
    class Scaled(nn.Linear):
        scale = 1.0

        def forward(self, x):
            return self.scale * super().forward(x)

    def settings(scale):
        torch.manual_seed(0)
        student = Scaled(classifier[1].shape[1], 2)
        student.scale = scale
        return DarkKnowledge(student=student, batch_size=20)

    teacher, x, _ = classifier
    dark_knowledge(teacher, x, settings(1.0), steps=2, folder=tmp_path, **QUIET)
    dark_knowledge(teacher, x, settings(1.0), steps=4, folder=tmp_path, **QUIET)
    with pytest.raises(ValueError, match=r"forward\.student: .* here, .* there"):
        dark_knowledge(teacher, x, settings(2.0), steps=4, folder=tmp_path, **QUIET)


def test_any_posterior_can_teach(classifier):
    _, x, y = classifier
    dropped = dubito.fit(net(), (x, y), dubito.MCDropout(rate=0.2), steps=5, **QUIET)
    student = dark_knowledge(dropped, x, steps=2, **QUIET)
    again = dark_knowledge(student, x, steps=2, **QUIET)
    assert again.predict(x).probs.shape == (60, 2)


def test_a_regression_student_learns_mean_and_total_variance():
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 40).unsqueeze(1)
    y = x[:, 0] + 0.3 * torch.randn(40, generator=generator)
    teacher = dubito.fit(
        nn.Linear(1, 1), (x, y), dubito.SGLD(burn_in=200, thin=10, step_size=2e-3), likelihood=dubito.Gaussian(0.3),
        steps=1200, batch_size=40, **QUIET
    )  # fmt: skip
    student = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 2))
    settings = DarkKnowledge(student=student, learning_rate=0.02, schedule="cosine", draws=8, noise=0.1)
    prediction = dark_knowledge(teacher, x, settings, steps=400, **QUIET).predict(x)
    taught = teacher.predict(x)
    assert (prediction.mean - taught.mean).abs().max() < 0.1
    assert (prediction.std / taught.std - 1).abs().max() < 0.12
    assert prediction.interval(0.9)[0].shape == (40, 1)
    with pytest.raises(dubito.Undefined, match="a student is one network"):
        _ = prediction.epistemic
    with pytest.raises(ValueError, match="twice the outputs"):
        dark_knowledge(teacher, x, steps=1, **QUIET)


def test_a_teacher_with_noise_outputs_has_a_student_of_its_own_shape():
    x = torch.linspace(-1, 1, 20).unsqueeze(1)
    likelihood = dubito.Gaussian.heteroscedastic()
    teacher = dubito.fit(nn.Linear(1, 2), (x, x[:, 0]), "deep_ensemble", likelihood=likelihood, steps=3, **QUIET)
    assert dark_knowledge(teacher, x, steps=2, **QUIET).predict(x).mean.shape == (20, 1)


def test_students_and_inputs_that_do_not_fit_are_refused(classifier):
    teacher, x, _ = classifier
    wide = net(5), r"outputs of \(5,\) where its teacher's ask for \(2,\)"
    for student, says in (wide, (nn.Linear(4, 2), "student does not accept its teacher's inputs")):
        with pytest.raises(ValueError, match=says):
            dark_knowledge(teacher, x, DarkKnowledge(student=student), steps=1, **QUIET)
    with pytest.raises(ValueError, match="does not accept rows"):
        dark_knowledge(teacher, x[:, :2], steps=1, **QUIET)
    with pytest.raises(ValueError, match=r"give distill\.DarkKnowledge"):
        dark_knowledge(teacher, x, dubito.distill.Mixture(), steps=1, **QUIET)


def test_the_gaussian_loss_is_least_at_the_mixtures_moments():
    means, variances = torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([[[0.5]], [[1.5]]])
    mu, v = torch.tensor([[2.0]], requires_grad=True), torch.tensor([[2.0]], requires_grad=True)
    _gaussian_loss(mu, v, means, variances).backward()  # mean 2; variance 1 between and 1 within
    assert float(mu.grad) == pytest.approx(0, abs=1e-6) and float(v.grad) == pytest.approx(0, abs=1e-6)


def test_the_dirichlet_loss_is_that_of_an_urn():
    """Label by label: the next one's probability is its concentration and how often it came, over all of both."""
    alpha, probs = torch.tensor([[2.0, 3.0, 0.5]]), torch.tensor([[[0.2, 0.3, 0.5]], [[0.6, 0.3, 0.1]]])
    losses = []
    for counts in ([20, 30, 50], [60, 30, 10]):
        urn, loss = alpha[0].double(), 0.0
        for label, count in enumerate(counts):
            for _ in range(count):
                loss -= float((urn[label] / urn.sum()).log())
                urn = urn + torch.nn.functional.one_hot(torch.tensor(label), 3)
        losses.append(loss)
    assert float(_dirichlet_loss(alpha, probs)) == pytest.approx(mean(losses), rel=1e-5)


def test_the_dirichlet_loss_finds_a_dirichlet_and_is_bounded():
    truth = torch.tensor([2.0, 1.0, 0.5])
    probs = torch.from_numpy(np.random.default_rng(0).dirichlet(truth.numpy(), (20_000, 1)))
    outputs = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([outputs], max_iter=100, line_search_fn="strong_wolfe")

    def loss():
        optimiser.zero_grad()
        found = _dirichlet_loss(outputs.exp(), probs)
        found.backward()
        return found

    optimiser.step(loss)
    torch.testing.assert_close(outputs.detach().exp()[0].float(), truth, rtol=0.2, atol=0)  # by 100 labels, not exactly
    sure = torch.eye(3)[[0, 0, 0]].unsqueeze(1)  # networks that agree: no concentration is infinitely likely
    assert all(float(_dirichlet_loss(torch.tensor([[a, 1e-3, 1e-3]]), sure)) >= 0 for a in (0.1, 10.0, 1e4))


def test_a_dirichlet_student_of_networks_that_are_sure_of_all_they_say(classifier):
    """Their probabilities are 0 and 1: what the student has to learn is how often they disagree."""
    teacher, x, _ = classifier
    sure = replace(teacher, samples=MemorySamples(200 * teacher.thetas(20).unsqueeze(1)))
    settings = DarkKnowledge(student=net(), head="dirichlet", learning_rate=0.02, draws=4, noise=0.05)
    student = dark_knowledge(sure, x, settings, steps=400, **QUIET)
    assert metrics.total_variation(student.predict(x).probs, sure.predict(x).probs) < 0.05  # 0.09 by densities


def test_dirichlet_measures_against_draws():
    outputs = torch.tensor([[0.5, -0.3, 1.2]])
    likelihood = Dirichlet()
    p = torch.distributions.Dirichlet(outputs.exp()[0]).sample((200_000,))
    torch.testing.assert_close(likelihood.mean(outputs)[0], p.mean(0), atol=3e-3, rtol=0)
    torch.testing.assert_close(likelihood.spread(outputs)[0], p.var(0), atol=2e-3, rtol=0)
    entropy = -(p * p.clamp_min(1e-30).log()).sum(-1).mean()
    assert float(likelihood.expected_entropy(outputs)) == pytest.approx(float(entropy), abs=3e-3)


@pytest.mark.parametrize("largest", [20.0, 40.0, 200.0, 1e4])
def test_concentrations_too_large_for_a_number_have_the_entropy_of_their_mean(largest):
    outputs = torch.tensor([[largest, largest - 1, -3.0]])
    likelihood = Dirichlet()
    mean = likelihood.mean(outputs)
    entropy = -(mean * mean.clamp_min(1e-30).log()).sum(-1)
    torch.testing.assert_close(likelihood.expected_entropy(outputs), entropy, atol=1e-4, rtol=0)
    assert float(likelihood.spread(outputs).abs().max()) < 1e-6


def test_a_dirichlet_student_keeps_the_disagreement(classifier, tmp_path):
    teacher, x, _ = classifier
    settings = DarkKnowledge(student=net(), head="dirichlet", learning_rate=0.02, draws=16, noise=0.05)
    student = dark_knowledge(teacher, x, settings, steps=400, **QUIET)
    said, taught = student.predict(x), teacher.predict(x)
    assert said.n_draws == 1 and (said.bald >= 0).all() and said.std.shape == (60, 2)
    assert metrics.total_variation(said.probs, taught.probs) < 0.06
    order = torch.corrcoef(torch.stack([said.bald, taught.bald]))[0, 1]
    assert float(order) > 0.7
    assert float(said.bald.mean()) == pytest.approx(float(taught.bald.mean()), rel=0.5)
    assert (said.expected_entropy <= said.entropy + 1e-6).all() and float(said.entropy.max()) <= math.log(2) + 1e-6
    student.save(tmp_path / "s")
    again = dubito.load(tmp_path / "s", net(), device="cpu")
    assert torch.equal(again.predict(x).bald, said.bald)


def test_a_plain_student_of_a_dirichlet_student_tells_no_disagreement(classifier):
    teacher, x, _ = classifier
    taught = dark_knowledge(teacher, x, DarkKnowledge(head="dirichlet"), steps=20, **QUIET)
    student = dark_knowledge(taught, x, DarkKnowledge(learning_rate=0.02), steps=200, **QUIET)
    assert metrics.total_variation(student.predict(x).probs, taught.predict(x).probs) < 0.02
    with pytest.raises(dubito.Undefined, match="no longer disagree"):
        _ = student.predict(x).bald


@pytest.mark.parametrize("wrong", [{"head": "beta"}, {"noise": -1.0}, {"draws": 0}, {"batch_size": 0}])
def test_wrong_settings_say_so(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DarkKnowledge(**wrong)
