import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor
from torch.func import functional_call, grad, vmap

from dubito.config import from_dict, to_dict
from dubito.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    LearnedGaussian,
    Likelihood,
    Poisson,
    default_for,
)
from dubito.priors import Normal

SETTINGS = {
    "labels": (Categorical(), (4,), (), 4),
    "tokens": (Categorical(), (3, 4), (3,), 4),
    "pixels": (Categorical(class_axis=1), (4, 2, 3), (2, 3), 4),
    "one logit": (Bernoulli(), (), (), 2),
    "one logit column": (Bernoulli(), (1,), (), 2),
    "multi-label": (Bernoulli(), (3,), (3,), 2),
    "known noise": (Gaussian(0.3), (2,), (2,), None),
    "learned noise": (Gaussian.learned(0.7), (1,), (), None),
    "flat outputs": (Gaussian.learned(0.7), (), (), None),
    "heteroscedastic": (Gaussian.heteroscedastic(), (4,), (2,), None),
    "counts": (Poisson(), (2,), (2,), 5),
}


def make(name: str, batch: int = 5, networks: int = 3) -> tuple[Likelihood, Tensor, Tensor]:
    likelihood, event, y_event, values = SETTINGS[name]
    rng = torch.Generator().manual_seed(0)
    outputs = torch.randn(networks, batch, *event, generator=rng, dtype=torch.float64)
    shape = (batch, *y_event)
    real = torch.randn(shape, generator=rng, dtype=torch.float64)
    return likelihood, outputs, real if values is None else torch.randint(values, shape, generator=rng)


@pytest.mark.parametrize("name", SETTINGS)
def test_log_prob_is_one_number_per_example_and_resolve_accepts_good_data(name):
    likelihood, outputs, y = make(name)
    assert likelihood.resolve(outputs[0], y) == likelihood
    assert likelihood.log_prob(outputs[0], y).shape == (5,)
    assert torch.isfinite(likelihood.log_prob(outputs[0], y)).all()


@pytest.mark.parametrize("name", SETTINGS)
def test_every_method_is_the_same_under_vmap(name):
    likelihood, outputs, y = make(name)
    methods = ["log_prob", "mean"] + (["variance", "cdf"] if likelihood.kind == "regression" else [])
    for method in methods:
        arguments = (y,) if method in ("log_prob", "cdf") else ()

        def call(z: Tensor, method: str = method, arguments: tuple[Tensor, ...] = arguments) -> Tensor:
            return getattr(likelihood, method)(z, *arguments)

        torch.testing.assert_close(vmap(call)(outputs), torch.stack([call(z) for z in outputs]))


@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_by_finite_differences(name):
    likelihood, outputs, y = make(name, batch=2)
    assert torch.autograd.gradcheck(lambda z: likelihood.log_prob(z, y), outputs[0].requires_grad_())


@pytest.mark.parametrize("name", SETTINGS)
def test_one_expanded_row_of_outputs_checks_all_of_y(name):
    likelihood, outputs, y = make(name)
    assert likelihood.resolve(outputs[0, :1].expand(outputs.shape[1:]), y) == likelihood


@pytest.mark.parametrize("name", SETTINGS)
def test_equality_repr_and_plain_settings(name):
    likelihood = make(name)[0]
    classes = (Categorical, Bernoulli, Gaussian, LearnedGaussian, HeteroscedasticGaussian, Poisson)
    names = {"Categorical": Categorical, "Bernoulli": Bernoulli, "Gaussian": Gaussian, "Poisson": Poisson}
    assert eval(repr(likelihood), names) == likelihood
    assert from_dict(to_dict(likelihood), {c.__name__: c for c in classes}) == likelihood


# Against other implementations


def test_categorical_is_cross_entropy():
    for name in ("labels", "tokens", "pixels"):
        likelihood, (outputs, *_), y = make(name)
        channels_first = outputs if name == "pixels" else outputs.movedim(-1, 1)
        expected = torch.nn.functional.cross_entropy(channels_first, y, reduction="none").reshape(5, -1).sum(1)
        torch.testing.assert_close(likelihood.log_prob(outputs, y), -expected)


def test_bernoulli_is_binary_cross_entropy_and_stays_finite_at_large_logits():
    likelihood, (outputs, *_), y = make("multi-label")
    loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, y.double(), reduction="none")
    torch.testing.assert_close(likelihood.log_prob(outputs, y), -loss.sum(1))
    assert likelihood.log_prob(torch.tensor([1000.0, -1000.0]), torch.tensor([1, 1])).tolist() == [0.0, -1000.0]


def test_gaussian_log_prob_and_cdf_against_scipy():
    likelihood, (outputs, *_), y = make("known noise")
    exact = stats.norm(outputs.numpy(), 0.3)
    torch.testing.assert_close(likelihood.log_prob(outputs, y), torch.from_numpy(exact.logpdf(y.numpy()).sum(1)))
    torch.testing.assert_close(likelihood.cdf(outputs, y), torch.from_numpy(exact.cdf(y.numpy())))
    torch.testing.assert_close(likelihood.variance(outputs), torch.full_like(outputs, 0.09))


def test_poisson_against_scipy():
    likelihood, (outputs, *_), y = make("counts")
    exact = stats.poisson(outputs.exp().numpy())
    torch.testing.assert_close(likelihood.log_prob(outputs, y), torch.from_numpy(exact.logpmf(y.numpy()).sum(1)))
    for shift in (0.0, 0.7, -10.0):
        torch.testing.assert_close(likelihood.cdf(outputs, y + shift), torch.from_numpy(exact.cdf(y.numpy() + shift)))
    torch.testing.assert_close(likelihood.mean(outputs), torch.from_numpy(exact.mean()))
    torch.testing.assert_close(likelihood.variance(outputs), torch.from_numpy(exact.var()))


def test_heteroscedastic_outputs_are_means_then_raws():
    outputs = torch.tensor([[1.0, 2.0, 0.0, -3.0]], dtype=torch.float64)
    y = torch.tensor([[0.5, 2.5]], dtype=torch.float64)
    std = torch.nn.functional.softplus(outputs[:, 2:])
    likelihood = Gaussian.heteroscedastic()
    expected = stats.norm(outputs[:, :2].numpy(), std.numpy()).logpdf(y.numpy()).sum(1)
    torch.testing.assert_close(likelihood.log_prob(outputs, y), torch.from_numpy(expected), rtol=1e-4, atol=0)
    assert likelihood.mean(outputs).tolist() == [[1.0, 2.0]]
    torch.testing.assert_close(likelihood.variance(outputs), std.square(), rtol=1e-4, atol=0)


def test_heteroscedastic_noise_that_underflows_stays_finite_and_has_a_gradient():
    y = torch.zeros(1, 1)
    slope = grad(lambda z: Gaussian.heteroscedastic().log_prob(z, y).sum())(torch.tensor([[0.1, -15.0]]))
    assert torch.isfinite(slope).all() and slope[0, 1] > 0
    assert torch.isfinite(Gaussian.heteroscedastic().log_prob(torch.tensor([[0.1, -1e4]]), y)).all()


@pytest.mark.parametrize("likelihood", [Gaussian(0.4), Gaussian.learned(0.4), Gaussian.heteroscedastic()])
def test_real_densities_integrate_to_one_and_have_the_stated_moments(likelihood):
    outputs = torch.tensor([[0.6, -0.5]] if likelihood == Gaussian.heteroscedastic() else [[0.6]], dtype=torch.float64)

    def moment(power: int) -> float:
        def integrand(y: float) -> float:
            return y**power * math.exp(likelihood.log_prob(outputs, torch.tensor([[y]], dtype=torch.float64)))

        return integrate.quad(integrand, -6, 7)[0]

    assert moment(0) == pytest.approx(1)
    assert moment(1) == pytest.approx(likelihood.mean(outputs).item())
    assert moment(2) - moment(1) ** 2 == pytest.approx(likelihood.variance(outputs).item())


@pytest.mark.parametrize("name", ["labels", "pixels", "one logit", "multi-label", "counts"])
def test_discrete_probabilities_sum_to_one(name):
    likelihood, (outputs, *_), y = make(name)
    single = outputs if name in ("labels", "one logit") else outputs[..., :1]
    single = single[..., :1, :] if name == "pixels" else single
    values = range(80 if name == "counts" else single.shape[1] if name in ("labels", "pixels") else 2)
    y_shape = y.shape if name in ("labels", "one logit") else (5, 1, 1) if name == "pixels" else (5, 1)
    total = sum(likelihood.log_prob(single, torch.full(y_shape, value)).exp() for value in values)
    torch.testing.assert_close(total, torch.ones(5, dtype=torch.float64))


# Shapes and meanings


def test_means_have_classes_last():
    shapes = {"labels": (5, 4), "tokens": (5, 3, 4), "pixels": (5, 2, 3, 4)}
    shapes |= {"one logit": (5, 2), "one logit column": (5, 2), "multi-label": (5, 3, 2)}
    for name, shape in shapes.items():
        likelihood, (outputs, *_), _ = make(name)
        assert likelihood.mean(outputs).shape == shape
        torch.testing.assert_close(likelihood.mean(outputs).sum(-1), torch.ones(shape[:-1], dtype=torch.float64))
    assert Bernoulli().mean(torch.tensor([math.log(3)])).tolist() == [pytest.approx([0.25, 0.75])]


def test_regression_means_are_columns():
    shapes = {"known noise": (5, 2), "learned noise": (5, 1), "flat outputs": (5, 1), "heteroscedastic": (5, 2)}
    for name, shape in shapes.items():
        likelihood, (outputs, *_), y = make(name)
        assert likelihood.mean(outputs).shape == shape
        assert likelihood.variance(outputs).shape == shape
        assert likelihood.cdf(outputs, y).shape == shape


def test_resolve_moves_to_the_class_axis_that_fits():
    pixels, y = torch.randn(2, 4, 5, 6), torch.zeros(2, 5, 6, dtype=torch.long)
    resolved = Categorical(ignore_index=255).resolve(pixels, y)
    assert resolved == Categorical(ignore_index=255, class_axis=1)
    assert Categorical().resolve(torch.randn(2, 3, 3), torch.zeros(2, 3, dtype=torch.long)).class_axis == -1


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=4, max_size=4))
@settings(max_examples=25, deadline=None)
def test_ignored_tokens_contribute_nothing(entries):
    outputs = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[label for label, _ in entries]])
    ignored = torch.tensor([[flag for _, flag in entries]])
    y = labels.masked_fill(ignored, -1)
    each = outputs.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    likelihood = Categorical(ignore_index=-1).resolve(outputs, y)
    torch.testing.assert_close(likelihood.log_prob(outputs, y), each.masked_fill(ignored, 0.0).sum(1))


def test_y_of_one_output_with_and_without_its_column():
    column, y = torch.randn(4, 1), torch.randn(4)
    for outputs in (column, column[:, 0]):
        for target in (y, y[:, None]):
            likelihood = Gaussian(0.5).resolve(outputs, target)
            assert torch.equal(likelihood.log_prob(outputs, target), Gaussian(0.5).log_prob(column, y))


def test_integer_y_is_fine_for_a_gaussian_and_small_integers_for_categorical():
    assert torch.isfinite(Gaussian(1.0).log_prob(torch.zeros(3, 1), torch.tensor([0, 1, 2]))).all()
    outputs, y = torch.randn(3, 2), torch.tensor([0, 1, 1])
    for dtype in (torch.uint8, torch.int32, torch.bool):
        likelihood = Categorical().resolve(outputs, y.to(dtype))
        assert torch.equal(likelihood.log_prob(outputs, y.to(dtype)), likelihood.log_prob(outputs, y))


# Learned noise


@pytest.mark.parametrize("start", [1e-3, 1.0, 50.0, 1e4])
def test_learned_noise_starts_where_it_says(start):
    likelihood = Gaussian.learned(start)
    raw = likelihood.parameters()["raw_std"]
    assert raw.shape == ()
    assert torch.nn.functional.softplus(raw).item() == pytest.approx(start, rel=1e-4)
    outputs = torch.zeros(3, 2, dtype=torch.float64)
    torch.testing.assert_close(likelihood.variance(outputs), torch.full_like(outputs, start**2), rtol=1e-3, atol=0)


def test_binding_learned_noise_per_network_under_vmap():
    outputs, y = torch.randn(3, 4, 2), torch.randn(4, 2)
    raw = torch.tensor([-1.0, 0.0, 2.0])
    found = vmap(lambda z, r: Gaussian.learned().bind({"raw_std": r}).log_prob(z, y))(outputs, raw)
    std = torch.nn.functional.softplus(raw)
    expected = torch.stack([Gaussian(s.item()).log_prob(z, y) for z, s in zip(outputs, std, strict=True)])
    torch.testing.assert_close(found, expected)


def test_bound_noise_has_a_gradient_and_remembers_its_value():
    outputs, y = torch.zeros(4, 1), torch.ones(4)
    slope = grad(lambda r: Gaussian.learned().bind({"raw_std": r}).log_prob(outputs, y).sum())(torch.tensor(-2.0))
    assert slope > 0
    bound = Gaussian.learned().bind({"raw_std": torch.tensor(-2.0)})
    assert bound.parameters()["raw_std"].item() == -2.0
    assert bound == Gaussian.learned()


def test_learned_values_have_a_standard_normal_prior():
    assert Gaussian.learned().parameter_priors() == {"raw_std": Normal(std=1.0)}
    assert Gaussian(0.1).parameters() == {} and Gaussian(0.1).parameter_priors() == {}


def test_default_follows_the_type_of_y():
    assert default_for(torch.tensor([0, 1])) == Categorical()
    assert default_for(torch.tensor([True])) == Categorical()
    assert default_for(torch.tensor([0.5])) == Gaussian.learned()
    with pytest.raises(ValueError, match="complex"):
        default_for(torch.tensor([1j]))


# A user's own likelihood


class Absolute(Likelihood):
    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        return -(outputs[:, 0] - y).abs() - math.log(2)


class Forgetful(Likelihood):
    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        return -(outputs - y).abs()


def test_a_likelihood_with_log_prob_alone():
    likelihood, outputs, y = Absolute(), torch.randn(4, 1), torch.randn(4)
    assert likelihood.resolve(outputs, y) is likelihood
    assert likelihood.bind({}) is likelihood
    assert likelihood.kind == "outputs" and likelihood.parameters() == {}
    assert torch.equal(likelihood.mean(outputs), outputs)
    with pytest.raises(NotImplementedError, match="Absolute has no variance"):
        likelihood.variance(outputs)
    with pytest.raises(NotImplementedError, match="Absolute has no cdf"):
        likelihood.cdf(outputs, y)


def test_a_likelihood_that_forgets_to_sum_is_told():
    with pytest.raises(ValueError, match=r"returned shape \(4, 4\) for a batch of 4; sum over"):
        Forgetful().resolve(torch.randn(4, 1), torch.randn(4))


# Bad input

LOGITS = torch.zeros(4, 3)
REAL = torch.zeros(4, 2)
BAD = [
    (Categorical(), LOGITS, torch.tensor([0, 1, 2, 3]), r"label 3, outside 0 to 2 for 3 classes"),
    (Categorical(), LOGITS, torch.tensor([0, -1, 2, 1]), r"label -1, outside 0 to 2"),
    (Categorical(), LOGITS, torch.zeros(4), r"y is torch.float32; use y.long\(\)"),
    (Categorical(), LOGITS, torch.eye(3)[[0, 1, 2, 0]], r"one-hot.*argmax"),
    (
        Categorical(),
        LOGITS,
        torch.zeros(5, dtype=torch.long),
        r"\(4, 3\) and y of shape \(5,\).*expected y of shape \(4,\)",
    ),
    (
        Categorical(),
        LOGITS,
        torch.zeros(4, 1, dtype=torch.long),
        r"\(4, 3\) and y of shape \(4, 1\).*expected .*\(4,\)",
    ),
    (Categorical(), torch.zeros(4), torch.zeros(4, dtype=torch.long), r"no class axis"),
    (Categorical(), torch.zeros(4, 1), torch.zeros(4, dtype=torch.long), r"use Bernoulli\(\)"),
    (Bernoulli(), torch.zeros(4, 1), torch.tensor([0, 1, 2, 1]), r"found 2; .*Categorical"),
    (Bernoulli(), torch.zeros(4), torch.tensor([0.0, 0.5, 1.0, 1.0]), r"found 0.5"),
    (Bernoulli(), REAL, torch.zeros(4), r"y of shape \(4,\).*\(4, 2\)"),
    (Bernoulli(), torch.zeros(4), torch.full((4,), math.nan), r"4 values that are NaN or infinite"),
    (Gaussian(1.0), REAL, torch.zeros(4), r"y of shape \(4,\).*expected y of shape \(4, 2\)"),
    (Gaussian(1.0), REAL[:, :1], torch.zeros(4, 4), r"y of shape \(4, 4\).*expected y of shape \(4,\) or \(4, 1\)"),
    (Gaussian(1.0), REAL[:, :1], torch.zeros(1, 4), r"y of shape \(1, 4\)"),
    (Gaussian.learned(), REAL, torch.tensor([[0.0, math.inf]] * 4), r"4 values that are NaN or infinite"),
    (Gaussian.heteroscedastic(), LOGITS, torch.zeros(4), r"\(4, 3\); give the network twice"),
    (Gaussian.heteroscedastic(), torch.zeros(4), torch.zeros(4), r"\(4,\); give the network twice"),
    (Gaussian.heteroscedastic(), REAL, torch.zeros(4, 2), r"y of shape \(4, 2\).*\(4, 1\)"),
    (Poisson(), REAL[:, 0], torch.tensor([0, 1, -2, 1]), r"y holds -2; "),
    (Poisson(), REAL[:, 0], torch.tensor([0, 1, 2.5, 1]), r"y holds 2.5; "),
    (Poisson(), REAL[:, 0], torch.tensor([0, 1, math.nan, 1]), r"1 values that are NaN"),
]


@pytest.mark.parametrize(("likelihood", "outputs", "y", "sentence"), BAD)
def test_bad_data_gets_one_sentence_with_the_cure(likelihood, outputs, y, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        likelihood.resolve(outputs, y)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, "1"])
def test_noise_must_be_a_positive_number(std):
    with pytest.raises(ValueError, match="Gaussian: std is"):
        Gaussian(std)
    with pytest.raises(ValueError, match="start is"):
        Gaussian.learned(std)


def test_the_batch_is_no_class_axis():
    with pytest.raises(ValueError, match="class_axis is 0"):
        Categorical(class_axis=0)


@pytest.mark.parametrize("name", ["class_axis", "ignore_index"])
@pytest.mark.parametrize("value", ["channels", None, 1.5])
def test_axes_and_labels_are_whole_numbers(name, value):
    with pytest.raises(ValueError, match=f"Categorical: {name} must be a whole number, got {value!r}"):
        Categorical(**{name: value})


def test_a_network_and_its_noise_can_be_fitted_by_gradient_ascent():
    x = torch.linspace(-1, 1, 200, dtype=torch.float64)[:, None]
    y = 2 * x[:, 0] + 0.3 * torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    net = torch.nn.Linear(1, 1, dtype=torch.float64)
    params = {
        "weight": torch.zeros(1, 1).double(),
        "bias": torch.zeros(1).double(),
        "raw_std": torch.zeros(()).double(),
    }

    def loss(params: dict[str, Tensor]) -> Tensor:
        outputs = functional_call(net, {"weight": params["weight"], "bias": params["bias"]}, (x,))
        return -Gaussian.learned().bind(params).log_prob(outputs, y).mean()

    for _ in range(400):
        slopes = grad(loss)(params)
        params = {name: value - 0.1 * slopes[name] for name, value in params.items()}
    centred = x[:, 0] - x.mean()
    slope = (centred * y).sum() / centred.square().sum()
    residual = y - y.mean() - slope * centred
    assert params["weight"].item() == pytest.approx(slope.item(), rel=1e-3)
    std = torch.nn.functional.softplus(params["raw_std"])
    assert std.item() == pytest.approx(residual.square().mean().sqrt().item(), rel=1e-3)
