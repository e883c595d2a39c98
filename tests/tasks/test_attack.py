"""Attacks by hand, by a peer, and within their ball and range whatever they are given."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dubito
from dubito.posteriors.samples import SamplesPosterior
from dubito.results import Result
from dubito.tasks import FGSM, OOD, PGD, Robustness, TargetedFGSM, Trajectory
from dubito.tasks.attack import Victim


def plain(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).eval()


def point(net: nn.Module) -> SamplesPosterior:
    wrapped = dubito.Net(net)
    return SamplesPosterior.of(wrapped, dubito.Categorical(), wrapped.theta().unsqueeze(0), {}, "point")


def several(n: int = 4) -> SamplesPosterior:
    wrapped = dubito.Net(plain())
    theta = wrapped.theta() + 0.5 * torch.randn(n, wrapped.layout.size, generator=torch.Generator().manual_seed(2))
    return SamplesPosterior.of(wrapped, dubito.Categorical(), theta, {}, "ensemble")


def rows(n: int = 9, low: float = 0.0, high: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return low + (high - low) * torch.rand(n, 6, generator=generator), torch.arange(n) % 3


def slope(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The gradient of the loss, by autograd on the plain network."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(nn.functional.cross_entropy(net(x), y, reduction="sum"), x)[0]


def test_gradient_of_several_draws_equals_finite_differences():
    posterior, (x, y) = several(), rows(3)
    posterior = SamplesPosterior.of(
        dubito.Net(plain().double()), dubito.Categorical(), posterior.samples.get(range(4))[0].double(), {}, "ensemble"
    )
    victim, x = Victim(posterior, draws=4), x.double()

    def log_prob(x: torch.Tensor) -> torch.Tensor:
        return posterior.predict(x, draws=4).log_prob(y)

    found, step = victim.gradient(x, y), 1e-5
    for i in range(6):
        move = torch.zeros(6).double()
        move[i] = step
        by_difference = (log_prob(x + move) - log_prob(x - move)) / (2 * step)
        torch.testing.assert_close(found[:, i], by_difference, atol=1e-7, rtol=1e-5)


def test_chunks_of_draws_and_rows_change_nothing(monkeypatch):
    from dubito.functions import Plan
    from dubito.tasks.attack import victim as module

    (x, y), posterior = rows(), several()
    whole = Victim(posterior, 4).gradient(x, y), Victim(posterior, 4).log_prob(x, y), Victim(posterior, 4).labels(x)
    monkeypatch.setattr(module, "plan_chunks", lambda *_: Plan(3, 2))
    pieces = Victim(posterior, 4).gradient(x, y), Victim(posterior, 4).log_prob(x, y), Victim(posterior, 4).labels(x)
    for one, other in zip(whole, pieces, strict=True):
        torch.testing.assert_close(one, other)


def test_fgsm_by_hand_on_a_plain_network():
    net, (x, y) = plain(), rows()
    by_hand = (x + 0.1 * slope(net, x, y).sign()).clamp(0, 1)
    torch.testing.assert_close(FGSM(epsilon=0.1).perturb(point(net), x, y), by_hand)


def test_fgsm_against_the_prediction_needs_no_label():
    """Li and Gal (2017) differentiate max_y log p(y | x), whatever the true label is."""
    net, (x, y) = plain(), rows()
    first = net(x).argmax(1)
    assert not torch.equal(first, y)
    by_hand = (x + 0.1 * slope(net, x, first).sign()).clamp(0, 1)
    attack = FGSM(epsilon=0.1, against="prediction")
    torch.testing.assert_close(attack.perturb(point(net), x, y), by_hand)
    torch.testing.assert_close(attack.perturb(point(net), x), by_hand)
    with pytest.raises(ValueError, match="against='truth' is unknown; choose 'label' or 'prediction'"):
        FGSM(against="truth")


def test_pgd_by_hand_on_a_plain_network():
    net, (x, y) = plain(), rows()
    linf = l2 = x
    for _ in range(7):
        linf = (x + (linf + 0.03 * slope(net, linf, y).sign() - x).clamp(-0.1, 0.1)).clamp(0, 1)
        g = slope(net, l2, y)
        delta = l2 + 0.05 * g / g.norm(dim=1, keepdim=True) - x
        l2 = (x + delta * (0.2 / delta.norm(dim=1, keepdim=True)).clamp(max=1)).clamp(0, 1)
    torch.testing.assert_close(PGD(epsilon=0.1, steps=7, step_size=0.03).perturb(point(net), x, y), linf)
    found = PGD(epsilon=0.2, steps=7, step_size=0.05, norm="l2").perturb(point(net), x, y)
    torch.testing.assert_close(found, l2)


def test_targeted_fgsm_by_hand_on_a_plain_network():
    net, (x, _) = plain(), rows()
    now, target = x, torch.full((9,), 2)
    for _ in range(5):
        now = (now - 0.01 * slope(net, now, target).sign()).clamp(0, 1)
    torch.testing.assert_close(TargetedFGSM(target=2, steps=5).perturb(point(net), x), now)


def test_targeted_fgsm_moves_all_pixels_of_a_map():
    x, likelihood = torch.rand(4, 1, 3, 3), dubito.Categorical(class_axis=1)
    net = nn.Conv2d(1, 3, 3, padding=1)
    y = torch.zeros(4, 3, 3, dtype=torch.long)
    maps = dubito.fit(net, (x, y), dubito.MAP(), likelihood=likelihood, steps=1, progress=False)
    found = TargetedFGSM(target=2, steps=1).perturb(maps, x)
    by = maps.mean_network()(x.requires_grad_()).log_softmax(1)[:, 2].sum()
    (slope,) = torch.autograd.grad(by, x)
    assert torch.allclose(found, (x + 0.01 * slope.sign()).clamp(0, 1).detach(), atol=1e-6)


def test_attacks_equal_foolbox():
    foolbox = pytest.importorskip("foolbox")
    net, (x, y) = plain(), rows()
    model = foolbox.PyTorchModel(net, bounds=(0, 1))
    attacks = foolbox.attacks
    pairs = [
        (FGSM(epsilon=0.1), attacks.LinfFastGradientAttack(random_start=False)),
        (
            PGD(epsilon=0.1, steps=9, step_size=0.02),
            attacks.LinfProjectedGradientDescentAttack(abs_stepsize=0.02, steps=9, random_start=False),
        ),
        (
            PGD(epsilon=0.1, steps=9, step_size=0.03, norm="l2"),
            attacks.L2ProjectedGradientDescentAttack(abs_stepsize=0.03, steps=9, random_start=False),
        ),
    ]
    for ours, theirs in pairs:
        expected, _, _ = theirs(model, x, y, epsilons=0.1)
        torch.testing.assert_close(ours.perturb(point(net), x, y), expected)


def test_epsilon_is_in_pixels_of_0_to_1_whatever_the_range():
    net, (x, y) = plain(), rows()
    wide = nn.Sequential(Halved(), *net)
    found = FGSM(epsilon=0.1).perturb(point(wide), 2 * x - 1, y, bounds=(-1.0, 1.0))
    torch.testing.assert_close((found + 1) / 2, FGSM(epsilon=0.1).perturb(point(net), x, y), atol=1e-6, rtol=0)


class Halved(nn.Module):
    """[-1, 1] to [0, 1]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1) / 2


@settings(max_examples=25, deadline=None)
@given(
    epsilon=st.floats(0, 0.6),
    low=st.floats(-3, 0),
    width=st.floats(0.5, 4),
    step=st.floats(0.001, 0.5),
    kind=st.sampled_from(["fgsm", "targeted", "linf", "l2"]),
    fresh=st.booleans(),
)
def test_no_attack_leaves_its_ball_or_its_range(epsilon, low, width, step, kind, fresh):
    bounds = (low, low + width)
    x, y = rows(4, *bounds)
    shared = {"epsilon": epsilon, "draws": 2, "fresh": fresh}
    attack = {
        "fgsm": FGSM(**shared),
        "targeted": TargetedFGSM(**shared, step_size=step, steps=3, target=1),
        "linf": PGD(**shared, steps=3, step_size=step, restarts=2),
        "l2": PGD(**shared, steps=3, step_size=step, restarts=2, norm="l2"),
    }[kind]
    for moved in attack.path(several(), x, y, bounds=bounds):
        delta = (moved - x).double()
        size = delta.norm(dim=1).max() if kind == "l2" else delta.abs().max()
        assert float(size) <= epsilon * width + 1e-5
        assert float(moved.min()) >= low - 1e-6 and float(moved.max()) <= low + width + 1e-6


def test_fresh_draws_change_at_every_step_and_frozen_ones_do_not():
    posterior = several(30)
    x, y = rows()
    fresh, frozen = Victim(posterior, 3, fresh=True), Victim(posterior, 3)
    assert not torch.equal(fresh.gradient(x, y, 0), fresh.gradient(x, y, 1))
    assert torch.equal(frozen.gradient(x, y, 0), frozen.gradient(x, y, 1))
    assert torch.equal(fresh.gradient(x, y, 1), fresh.gradient(x, y, 1))


def test_restarts_never_leave_more_probability_than_the_plain_run():
    net, (x, y) = point(plain()), rows()
    ends = [PGD(epsilon=0.3, steps=3, restarts=r).perturb(net, x, y) for r in (0, 4)]
    once, often = (Victim(net).log_prob(end, y) for end in ends)
    assert bool((often <= once + 1e-6).all())


def test_without_labels_an_attack_goes_away_from_the_prediction():
    posterior, (x, _) = several(), rows()
    attack = FGSM(epsilon=0.1, draws=4)
    predicted = posterior.predict(x).probs.argmax(-1)
    assert torch.equal(attack.perturb(posterior, x), attack.perturb(posterior, x, predicted))


def test_dropout_and_gaussian_posteriors_are_attacked_too():
    x, y = rows(20)
    for method in ("mc_dropout", "variational"):
        posterior = dubito.fit(plain(), (x, y), method, steps=5, progress=False, device="cpu")
        moved = PGD(epsilon=0.05, steps=3, draws=3, fresh=True).perturb(posterior, x, y)
        assert moved.shape == x.shape and not torch.equal(moved, x)


def test_robustness_says_how_each_fares_and_what_it_notices(pair, tmp_path):
    from dubito.report import write_figures

    x, y = torch.rand(10, 1, 4, 4), torch.arange(10) % 3
    task = Robustness(attack=FGSM(epsilon=0.2), epsilons=(0.0, 0.2), bootstrap=20, shown=2)
    result = task.run(pair, {"test": (x, y)})
    found = result.numbers
    moved = FGSM(epsilon=0.2).perturb(pair["ensemble"], x, y)
    prediction = pair["point"].predict(moved)
    accuracy = float((prediction.probs.argmax(-1) == y).double().mean())
    assert found["transfer"]["ensemble"]["point"][0] == accuracy
    assert found["against epsilon"]["point"]["0.2"] == found["transfer"]["point"]["point"]
    by_ood = OOD(bootstrap=20, shown=0).run({"p": pair["point"]}, {"inside": x, "moved": moved})
    assert found["detection"]["ensemble"]["point"] == by_ood.numbers["detection"]["moved"]["p"]
    assert "several networks" in found["undefined"]["point"]["bald"]
    assert len(write_figures(result, tmp_path)) == 4
    assert Result.load(result.save(tmp_path / "r.json")).numbers == found


def test_a_stand_in_is_attacked_in_place_of_its_posterior(pair):
    x, y = torch.rand(6, 16), torch.arange(6) % 3
    task = Robustness(epsilons=(), bootstrap=0, shown=0, sources={"ensemble": pair["point"]})
    found = task.run(pair, {"test": (x, y)}).numbers["transfer"]
    assert found["ensemble"] == found["point"]


def test_a_trajectory_begins_at_the_input_and_leaves_out_the_target(pair, tmp_path):
    from dubito.report import write_figures

    x, y = torch.rand(9, 1, 4, 4), torch.arange(9) % 3
    task = Trajectory(attack=TargetedFGSM(target=1, steps=4, step_size=0.1), every=3, shown=3)
    result = task.run(pair, {"test": (x, y)})
    found = result.numbers["ensemble"]
    assert found["steps"] == [0, 3, 4]
    clean = pair["ensemble"].predict(x[y != 1])
    assert found["fared"][0][0] == float((clean.probs.argmax(-1) == y[y != 1]).double().mean())
    assert found["fared"][0][2] == pytest.approx(float(clean.entropy.mean()), rel=1e-5)
    assert found["target"][-1] >= found["target"][0]
    assert len(write_figures(result, tmp_path)) == 5
    assert np.isfinite(result.tables[0].rows[0][1])
    assert task.run(pair, {"test": (x, y.unsqueeze(1))}).numbers == result.numbers


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FGSM(epsilon=-1.0), "epsilon=-1.0"),
        (lambda: PGD(norm="l1"), "choose 'linf' or 'l2'"),
        (lambda: PGD(steps=0), "steps must be at least 1, got 0"),
        (lambda: FGSM(draws=0), "draws must be at least 1"),
        (lambda: FGSM(epsilon=None), "FGSM needs a ball"),
        (lambda: PGD(restarts=-1), "PGD: restarts must be at least 0, got -1"),
        (lambda: PGD(step_size=0.0), "step_size=0.0 must be positive"),
        (lambda: TargetedFGSM(steps=0), "steps must be at least 1, got 0"),
        (lambda: TargetedFGSM(step_size=-1.0), "step_size=-1.0 must be positive"),
        (lambda: TargetedFGSM(target=3).perturb(several(), rows()[0]), "the label 3, outside 0 to 2"),
        (lambda: FGSM().perturb(several(), rows()[0], rows()[1][:4]), "expected y of shape"),
        (lambda: FGSM().perturb(several(), rows()[0], rows()[1] + 1), "the label 3, outside 0 to 2"),
        (lambda: FGSM().perturb(several(), rows()[0][:0], rows()[1][:0]), "nothing to attack"),
        (lambda: FGSM().perturb(several(), rows()[0] * torch.nan, rows()[1]), "NaN or infinity, first in row 0"),
        (lambda: Trajectory(every=0), "Trajectory: every must be at least 1, got 0"),
        (lambda: Trajectory().run({"p": several()}, {"test": (rows()[0], 0 * rows()[1])}), "of class 0 already"),
        (lambda: Robustness().run({"p": several()}, {"test": rows(), "negative": rows()[0]}), "mean 'negatives'"),
        (lambda: Robustness(sources={"q": several()}).run({"p": several()}, {"test": rows()}), "has 'q'"),
        (lambda: FGSM().perturb(several(), rows()[0] * 3, rows()[1]), "give their true bounds="),
        (lambda: FGSM().perturb(several(), rows()[0], rows()[1], bounds=(1.0, 0.0)), "hold no range"),
        (lambda: FGSM().perturb(several(), rows()[1], rows()[1]), "only inputs in one tensor of real numbers"),
    ],
)
def test_bad_arguments_are_one_sentence(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_inputs_that_are_single_numbers_are_moved(norm):
    net = torch.nn.Sequential(torch.nn.Unflatten(0, (-1, 1)), torch.nn.Linear(1, 2))
    x = torch.tensor([0.2, 0.5, 0.9])
    moved = PGD(epsilon=0.05, norm=norm, steps=2, restarts=1).perturb(point(net), x, torch.tensor([0, 1, 0]))
    torch.testing.assert_close((moved - x).abs(), torch.full((3,), 0.05))


def test_a_ball_without_an_end_is_none():
    x, y = torch.rand(4, 4), torch.arange(4) % 3
    posterior = point(torch.nn.Linear(4, 3))
    free, wide = (TargetedFGSM(epsilon=e, steps=3).perturb(posterior, x, y) for e in (None, torch.inf))
    assert torch.equal(free, wide) and not torch.equal(free, x)
