"""Predictions against arithmetic by hand: streaming, measures, intervals, and what cannot exist."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor, nn

import dubito
from dubito import prediction as predictions
from dubito.net import Net
from dubito.posteriors.samples import SamplesPosterior
from dubito.posteriors.storage import MemorySamples

X = torch.randn(23, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def posterior(outputs: int, likelihood: dubito.Likelihood, draws: int = 6, scale: float = 1.0) -> SamplesPosterior:
    """Random networks with random noise, all different."""
    torch.manual_seed(0)
    net = Net(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double())
    size = net.layout.size + sum(p.numel() for p in likelihood.parameters().values())
    return SamplesPosterior(net, likelihood, MemorySamples(scale * torch.randn(draws, 1, size, dtype=torch.float64)))


def outputs_of(made: SamplesPosterior) -> Tensor:
    """(draws, N, ...): each network by itself."""
    size = made.net.layout.size
    return torch.stack([made.net.network(t[:size])(X).detach() for t in made.samples.theta[:, 0]])


def noises(made: SamplesPosterior) -> Tensor:
    return nn.functional.softplus(made.samples.theta[:, 0, made.net.layout.size :])


# -- classification --------------------------------------------------------------------------------------------


def test_class_measures_are_what_they_say():
    made = posterior(3, dubito.Categorical())
    probs = outputs_of(made).softmax(-1)
    found = made.predict(X)
    mean = probs.mean(0)
    entropy = -(mean * mean.log()).sum(-1)
    expected = -(probs * probs.log()).sum(-1).mean(0)
    top = mean.argmax(-1)
    votes = torch.stack([(probs.argmax(-1) == c).double().mean(0) for c in range(3)], -1)
    measures = {
        "probs": mean,
        "mean": mean,
        "draws": probs,
        "entropy": entropy,
        "expected_entropy": expected,
        "bald": entropy - expected,
        "variation_ratio": 1 - mean.max(-1).values,
        "votes": votes,
        "vote_ratio": 1 - votes.max(-1).values,
        "std": probs.std(0, correction=0),
        "epistemic": probs.var(0, correction=0),
        "aleatoric": (probs * (1 - probs)).mean(0),
        "top_spread": probs.std(0, correction=0)[torch.arange(23), top],
    }
    for name, value in measures.items():
        torch.testing.assert_close(getattr(found, name), value, msg=lambda m, name=name: f"{name}: {m}")
    y = torch.arange(23) % 3
    torch.testing.assert_close(found.log_prob(y), mean[torch.arange(23), y].log())
    torch.testing.assert_close(found.quantile(0.3), torch.quantile(probs, 0.3, dim=0))


@pytest.mark.parametrize("likelihood", [dubito.Categorical(), dubito.Gaussian(0.3)])
def test_any_cut_of_rows_and_draws_gives_the_same_numbers(likelihood, monkeypatch):
    made = posterior(3, likelihood, draws=11)
    whole = made.predict(X)
    monkeypatch.setattr("dubito.functions.WEIGHT_BYTES", 3 * made.net.layout.size * 8)
    for batch_size in (1, 5, 100):
        cut = made.predict(X, batch_size=batch_size, keep_draws=False)
        assert (cut._plan.draws, cut._plan.rows) == (3, batch_size)
        for name in ("mean", "std", "epistemic", "aleatoric"):
            torch.testing.assert_close(getattr(cut, name), getattr(whole, name))
        torch.testing.assert_close(cut.quantile(0.2), whole.quantile(0.2))
        y = torch.zeros(23, dtype=torch.long) if likelihood.kind == "classification" else torch.zeros(23, 3).double()
        torch.testing.assert_close(cut.log_prob(y), whole.log_prob(y))


def test_tokens_and_pixels_have_measures_of_their_own():
    torch.manual_seed(0)
    net = Net(nn.Conv2d(1, 4, 1).double())
    made = SamplesPosterior(net, dubito.Categorical(class_axis=1), MemorySamples(torch.randn(5, 1, 8).double()))
    found = made.predict(torch.randn(6, 1, 2, 3))
    assert found.probs.shape == (6, 2, 3, 4) and found.bald.shape == (6, 2, 3)
    y = torch.randint(4, (6, 2, 3))
    assert found.log_prob(y).shape == (6, 2, 3)


def test_labels_to_ignore_cost_nothing_and_small_integers_work():
    made = posterior(3, dubito.Categorical(ignore_index=-1))
    found = made.predict(X)
    y = torch.arange(23) % 3
    ignored = y.clone()
    ignored[4] = -1
    assert float(found.log_prob(ignored)[4]) == 0
    torch.testing.assert_close(found.log_prob(y.to(torch.uint8).numpy()), found.log_prob(y))
    torch.testing.assert_close(found.log_prob(y.unsqueeze(1)), found.log_prob(y))


def test_bernoulli_has_two_classes():
    made = posterior(1, dubito.Bernoulli())
    found = made.predict(X)
    p = torch.sigmoid(outputs_of(made)).squeeze(-1)
    torch.testing.assert_close(found.probs, torch.stack([1 - p, p], -1).mean(0))
    y = (torch.arange(23) % 2).double()
    torch.testing.assert_close(found.log_prob(y), (y * p.mean(0) + (1 - y) * (1 - p.mean(0))).log())


# -- regression ------------------------------------------------------------------------------------------------


REGRESSIONS = {
    "known": (
        dubito.Gaussian(0.4),
        2,
        lambda made: (outputs_of(made), torch.full((6, 23, 2), 0.4, dtype=torch.float64)),
    ),
    "learned": (
        dubito.Gaussian.learned(),
        1,
        lambda made: (outputs_of(made), noises(made).view(6, 1, 1).expand(6, 23, 1)),
    ),
    "heteroscedastic": (
        dubito.Gaussian.heteroscedastic(),
        4,
        lambda made: (outputs_of(made)[..., :2], nn.functional.softplus(outputs_of(made)[..., 2:]) + 1e-6),
    ),
}


@pytest.mark.parametrize("keep", [None, False])
@pytest.mark.parametrize("name", REGRESSIONS)
def test_gaussian_mixtures_against_scipy(name, keep):
    likelihood, outputs, components = REGRESSIONS[name]
    made = posterior(outputs, likelihood)
    means, stds = components(made)
    found = made.predict(X, keep_draws=keep)
    torch.testing.assert_close(found.mean, means.mean(0))
    torch.testing.assert_close(found.epistemic, means.var(0, correction=0))
    torch.testing.assert_close(found.aleatoric, stds.square().mean(0))
    torch.testing.assert_close(found.std, (means.var(0, correction=0) + stds.square().mean(0)).sqrt())
    low, high = found.interval(0.9)
    for q, values in ((0.05, low), (0.95, high), (0.5, found.quantile(0.5))):
        for row, column in ((0, 0), (11, means.shape[-1] - 1), (22, 0)):
            m, s = means[:, row, column].numpy(), stds[:, row, column].numpy()
            root = optimize.brentq(lambda y, m=m, s=s, q=q: stats.norm.cdf(y, m, s).mean() - q, -100, 100, xtol=1e-13)
            assert float(values[row, column]) == pytest.approx(root, abs=1e-9)
    y = torch.randn(23, means.shape[-1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    density = stats.norm.logpdf(y.numpy(), means.numpy(), stds.numpy()).sum(-1)
    expected = np.logaddexp.reduce(density, axis=0) - math.log(6)
    assert found.log_prob(y).numpy() == pytest.approx(expected)
    if keep is None:
        torch.testing.assert_close(found.draws, means)
        torch.testing.assert_close(found.components, (means, stds))
    else:
        assert found.components is None


def test_flat_targets_fit_one_output_column():
    found = posterior(1, dubito.Gaussian.learned()).predict(X)
    y = torch.zeros(23)
    torch.testing.assert_close(found.log_prob(y), found.log_prob(y.unsqueeze(1)))
    assert found.log_prob(y).shape == (23,) and found.mean.shape == (23, 1)


def test_counts_have_poisson_quantiles():
    made = posterior(1, dubito.Poisson(), draws=1, scale=0.5)
    rate = outputs_of(made)[0].exp().numpy()
    found = made.predict(X)
    assert found.quantile(0.9).numpy() == pytest.approx(stats.poisson.ppf(0.9, rate), abs=1e-6)
    assert found.mean.numpy() == pytest.approx(rate) and found.aleatoric.numpy() == pytest.approx(rate)
    y = torch.arange(23) % 5
    assert found.log_prob(y).numpy() == pytest.approx(stats.poisson.logpmf(y.numpy(), rate[:, 0]))
    assert found.components is None


# -- one's own likelihood --------------------------------------------------------------------------------------


class Cauchy(dubito.Likelihood):
    def log_prob(self, outputs, y):
        return -math.log(math.pi) - torch.log1p((outputs.squeeze(-1) - y).square())


def test_an_own_likelihood_with_one_method_predicts_its_outputs():
    made = posterior(1, Cauchy())
    found = made.predict(X)
    each = outputs_of(made)
    torch.testing.assert_close(found.mean, each.mean(0))
    torch.testing.assert_close(found.std, each.std(0, correction=0))
    y = torch.zeros(23, dtype=torch.float64)
    density = torch.stack([Cauchy().log_prob(o, y) for o in each])
    torch.testing.assert_close(found.log_prob(y), torch.logsumexp(density, 0) - math.log(6))
    torch.testing.assert_close(found.quantile(0.4), torch.quantile(each, 0.4, dim=0))
    with pytest.raises(dubito.Undefined, match=r"Cauchy has no variance; define variance\(outputs\)"):
        found.aleatoric  # noqa: B018


class Regressing(Cauchy):
    """A regression that tells its density and its means, and no more."""

    kind = "regression"

    def resolve(self, outputs, y):
        return self


def test_a_regression_of_ones_own_without_a_variance_predicts_its_means():
    made = posterior(1, Regressing())
    found = made.predict(X)
    torch.testing.assert_close(found.mean, outputs_of(made).mean(0))
    torch.testing.assert_close(found.epistemic, outputs_of(made).var(0, correction=0))
    assert set(found.numpy()) == {"mean", "epistemic"}
    assert found.log_prob(torch.zeros(23, dtype=torch.float64)).shape == (23,)
    for ask in (lambda: found.std, lambda: found.aleatoric, lambda: found.interval(0.9)):
        with pytest.raises(dubito.Undefined, match=r"Regressing has no variance; define variance\(outputs\)"):
            ask()


# -- what is kept, and what cannot be --------------------------------------------------------------------------


def test_draws_are_kept_while_they_fit(monkeypatch):
    made = posterior(3, dubito.Categorical())
    size = 6 * 23 * 3 * 8
    monkeypatch.setattr(predictions, "BUDGET", size)
    assert made.predict(X).draws.shape == (6, 23, 3)
    monkeypatch.setattr(predictions, "BUDGET", size - 1)
    lean = made.predict(X, batch_size=4)
    with pytest.raises(
        dubito.Undefined, match=r"6 draws do not fit .* were not kept; call predict\(\.\.\., keep_draws=True\)"
    ):
        lean.draws  # noqa: B018
    torch.testing.assert_close(made.predict(X, keep_draws=True).draws.mean(0), lean.probs)
    with pytest.raises(dubito.Undefined, match="6 draws were not kept"):
        made.predict(X, keep_draws=False).draws  # noqa: B018


def test_one_network_has_no_disagreement():
    found = posterior(3, dubito.Categorical(), draws=1).predict(X)
    for name in ("bald", "vote_ratio", "std", "epistemic", "top_spread"):
        with pytest.raises(
            dubito.Undefined, match="needs several networks, and this prediction has one; use an ensemble"
        ):
            getattr(found, name)
    with pytest.raises(dubito.Undefined, match="quantile over draws needs several"):
        found.interval()
    assert {"probs", "entropy", "expected_entropy", "variation_ratio", "votes", "aleatoric"} == set(found.numpy())
    torch.testing.assert_close(found.entropy, found.expected_entropy)


def test_class_measures_do_not_exist_in_regression():
    found = posterior(1, dubito.Gaussian(0.1)).predict(X)
    for name in (
        "probs",
        "entropy",
        "bald",
        "votes",
        "vote_ratio",
        "variation_ratio",
        "expected_entropy",
        "top_spread",
    ):
        with pytest.raises(dubito.Undefined, match=r"class probabilities do not exist under Gaussian; use mean, std"):
            getattr(found, name)


def test_levels_labels_and_rows_out_of_range_are_refused():
    found = posterior(3, dubito.Categorical()).predict(X)
    with pytest.raises(ValueError, match=r"between 0 and 1, got 90; 0.9 means 90 %"):
        found.interval(90)
    with pytest.raises(ValueError, match="strictly between 0 and 1, got 0"):
        found.quantile(0)
    with pytest.raises(ValueError, match="label 3, outside 0 to 2"):
        found.log_prob(torch.full((23,), 3))
    with pytest.raises(ValueError, match="y has 22 rows but the prediction has 23"):
        found.log_prob(torch.zeros(22, dtype=torch.long))
    with pytest.raises(ValueError, match=r"y of shape \(23, 2\) does not fit; expected labels of shape \(23,\)"):
        found.log_prob(torch.zeros(23, 2, dtype=torch.long))


@pytest.mark.parametrize("draws", [0, -1])
def test_there_must_be_a_draw_and_a_row(draws):
    made = posterior(3, dubito.Categorical())
    with pytest.raises(ValueError, match=f"draws must be at least 1, got {draws}"):
        made.predict(X, draws=draws)
    with pytest.raises(ValueError, match="inputs have no rows"):
        made.predict(X[:0])
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        made.predict(X, batch_size=0)


def test_arrays_and_files(tmp_path):
    found = posterior(3, dubito.Categorical()).predict(X)
    found.save(tmp_path / "p.npz")
    held = np.load(tmp_path / "p.npz")
    assert set(held) == set(found.numpy()) and held["probs"] == pytest.approx(found.probs.numpy())
    assert len(found) == 23 and repr(found) == "Prediction(classification, 23 inputs, 6 draws)"
    regression = posterior(1, dubito.Gaussian(0.1)).predict(X).numpy()
    assert set(regression) == {"mean", "std", "aleatoric", "epistemic"}


def test_large_shifts_do_not_cost_precision():
    net = Net(nn.Linear(3, 1))
    theta = torch.zeros(50, 1, 4)
    theta[:, 0, 3] = 1e4 + torch.linspace(-0.5, 0.5, 50)
    made = SamplesPosterior(net, dubito.Gaussian(0.1), MemorySamples(theta))
    spread = theta[:, 0, 3].double().var(correction=0)
    assert float(made.predict(X[:1]).epistemic) == pytest.approx(float(spread), rel=1e-3)


# -- rounding ----------------------------------------------------------------------------------------------------


def test_precision_is_a_recorded_choice_that_leaves_the_cpu_alone():
    made = posterior(3, dubito.Categorical())
    plain, short = made.predict(X), made.predict(X, precision="bf16")
    assert plain.precision == "float32" and short.precision == "bf16"
    assert torch.equal(plain.probs, short.probs) and short.probs.dtype == torch.float64
    with pytest.raises(ValueError, match="unknown precision 'int8'; use 'float32'"):
        made.predict(X, precision="int8")


# -- a GPU that is full ------------------------------------------------------------------------------------------


def test_draws_that_do_not_fit_together_are_taken_apart(monkeypatch):
    made = posterior(3, dubito.Categorical(), draws=7)
    expected, sizes = made.predict(X), []
    original = Net.many

    def many(self, thetas, *args, **settings):
        sizes.append(len(thetas))
        if len(thetas) > 2:
            raise torch.OutOfMemoryError("no room")
        return original(self, thetas, *args, **settings)

    monkeypatch.setattr(Net, "many", many)
    found = made.predict(X)
    assert max(sizes) == 7 and sizes.count(2) >= 2
    torch.testing.assert_close(found.draws, expected.draws)
    torch.testing.assert_close(found.std, expected.std)


def test_one_draw_that_does_not_fit_is_said(monkeypatch):
    def many(self, thetas, *args, **settings):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Net, "many", many)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        posterior(3, dubito.Categorical()).predict(X)


@pytest.mark.parametrize(
    ("value", "words"), [(2.0, "label 2, outside 0 to 1"), (0.5, "holds 0.5"), (math.nan, "holds nan")]
)
def test_what_is_no_label_has_no_probability(value, words):
    found = posterior(1, dubito.Bernoulli()).predict(X)
    labels = torch.ones(len(X))
    assert torch.equal(found.log_prob(labels), found.log_prob(labels.long()))
    labels[3] = value
    with pytest.raises(ValueError, match=words):
        found.log_prob(labels)
