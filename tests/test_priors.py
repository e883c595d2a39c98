import json
import math
from itertools import pairwise

import pytest
import torch
from scipy import integrate, stats
from torch import Tensor, nn
from torch.func import vmap

import dubito
from dubito.priors import (
    Centred,
    FanIn,
    Fixed,
    Given,
    Laplace,
    Normal,
    Normals,
    Point,
    Prior,
    ScaleMixture,
    StudentT,
    assign,
    describe,
)

PRIORS = [
    Normal(),
    Normal(0.3, mean=-1.2),
    ScaleMixture(0.25, 1.0, 0.1),
    ScaleMixture(0.75, math.exp(-1), math.exp(-8)),
    Laplace(0.7),
    StudentT(3.0, 0.5),
    StudentT(1.0, 2.0),
]
GAIN = FanIn().gain


def density(prior: Prior, w: float) -> float:
    return math.exp(prior.log_prob(torch.tensor(w, dtype=torch.float64)))


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_densities_integrate_to_one(prior):
    edges = [-math.inf, -10, -1.2, -0.1, -0.001, 0, 0.001, 0.1, 1, 10, math.inf]
    pieces = [integrate.quad(lambda w: density(prior, w), a, b)[0] for a, b in pairwise(edges)]
    assert sum(pieces) == pytest.approx(1, abs=1e-6)


def test_log_densities_against_scipy():
    w = torch.linspace(-4, 4, 41, dtype=torch.float64)
    exact = {
        Normal(0.3, mean=-1.2): stats.norm(-1.2, 0.3),
        Laplace(0.7): stats.laplace(scale=0.7),
        StudentT(3.0, 0.5): stats.t(3, scale=0.5),
    }
    for prior, reference in exact.items():
        torch.testing.assert_close(prior.log_prob(w), torch.from_numpy(reference.logpdf(w.numpy())))


def test_scale_mixture_against_torch_distributions():
    w = torch.linspace(-2, 2, 41, dtype=torch.float64)
    weights = torch.distributions.Categorical(torch.tensor([0.25, 0.75], dtype=torch.float64))
    parts = torch.distributions.Normal(torch.zeros(2).double(), torch.tensor([1.0, math.exp(-3)], dtype=torch.float64))
    reference = torch.distributions.MixtureSameFamily(weights, parts)
    torch.testing.assert_close(ScaleMixture(0.25, 1.0, math.exp(-3)).log_prob(w), reference.log_prob(w))


def test_scale_mixture_with_a_very_narrow_part_is_stable_in_single_precision():
    prior = ScaleMixture(0.5, 1.0, math.exp(-8))
    w = torch.tensor([0.0, 1e-4, 0.1, 1.0, 30.0, 1e4], requires_grad=True)
    log_prob = prior.log_prob(w)
    (slope,) = torch.autograd.grad(log_prob.sum(), w)
    assert torch.isfinite(log_prob).all() and torch.isfinite(slope).all()
    torch.testing.assert_close(slope[3:], -w[3:].detach())


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_elementwise_under_vmap_and_differentiable(prior):
    w = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(vmap(prior.log_prob)(w), prior.log_prob(w))
    assert prior.log_prob(w).shape == w.shape
    assert torch.autograd.gradcheck(prior.log_prob, (0.5 + w.abs()).requires_grad_())


BAD_SETTINGS = [
    (Normal, (0.0,)),
    (Normal, (math.nan,)),
    (Normal, (1.0, math.inf)),
    (Normal, ("1",)),
    (ScaleMixture, (0.0, 1.0, 0.1)),
    (ScaleMixture, (math.nan, 1.0, 0.1)),
    (ScaleMixture, (0.5, 1.0, -0.1)),
    (Laplace, (-1.0,)),
    (StudentT, (0.0, 1.0)),
    (StudentT, (3.0, math.inf)),
    (FanIn, (0.0,)),
]


@pytest.mark.parametrize(("cls", "arguments"), BAD_SETTINGS)
def test_bad_settings_are_refused_at_construction(cls, arguments):
    with pytest.raises(ValueError, match=f"^{cls.__name__}: .* must "):
        cls(*arguments)


# The default


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(4, 3, 2))
        self.scale = nn.Parameter(torch.ones(3))


FAN_IN = [
    (nn.Linear(7, 3), {"weight": 7}),
    (nn.Conv2d(4, 6, (3, 5), groups=2), {"weight": 2 * 15}),
    (nn.Conv1d(4, 4, 3, groups=4), {"weight": 3}),
    (nn.Conv3d(2, 3, 2), {"weight": 16}),
    (nn.ConvTranspose2d(4, 6, 4, stride=2, groups=2), {"weight": 2 * 4}),
    (nn.ConvTranspose1d(5, 2, 3), {"weight": 15}),
    (nn.RNN(3, 5), {"weight_ih_l0": 3, "weight_hh_l0": 5}),
    (nn.LSTM(3, 5, num_layers=2, proj_size=2), {"weight_ih_l0": 3, "weight_hh_l0": 2, "weight_hr_l0": 5}),
    (nn.GRU(3, 5, bidirectional=True), {"weight_ih_l0_reverse": 3, "weight_hh_l0_reverse": 5}),
    (nn.GRUCell(3, 5), {"weight_ih": 3, "weight_hh": 5}),
    (nn.MultiheadAttention(8, 2), {"in_proj_weight": 8, "out_proj.weight": 8}),
    (nn.MultiheadAttention(8, 2, kdim=3, vdim=5), {"q_proj_weight": 8, "k_proj_weight": 3, "v_proj_weight": 5}),
    (nn.Bilinear(3, 4, 2), {"weight": 12}),
    (Odd(), {"kernel": 6}),
]


@pytest.mark.parametrize(("module", "fans"), FAN_IN, ids=lambda value: type(value).__name__)
def test_fan_in_by_module_type(module, fans):
    assigned = assign(None, module)
    for name, fan_in in fans.items():
        assert assigned[name].std == pytest.approx(GAIN / math.sqrt(fan_in)), name
        assert assigned[name].mean == 0


def test_fan_in_of_a_transposed_convolution_is_what_its_outputs_sum_over_on_average():
    module = nn.ConvTranspose2d(4, 6, (4, 3), stride=(2, 3), groups=2, bias=False)
    nn.init.ones_(module.weight)
    counted = module(torch.ones(1, 4, 12, 12)).detach()[..., 6:-6, 6:-6].mean().item()
    assert assign(None, module)["weight"].std == pytest.approx(GAIN / math.sqrt(counted))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(7, 3), {"bias": Normal(1.0)}),
        (nn.Embedding(5, 3), {"weight": Normal(1.0)}),
        (nn.EmbeddingBag(5, 3), {"weight": Normal(1.0)}),
        (nn.MultiheadAttention(8, 2, add_bias_kv=True), {"bias_k": Normal(1.0), "in_proj_bias": Normal(1.0)}),
        (nn.BatchNorm2d(3), {"weight": Normal(1.0, mean=1.0), "bias": Normal(1.0)}),
        (nn.InstanceNorm2d(3, affine=True), {"weight": Normal(1.0, mean=1.0), "bias": Normal(1.0)}),
        (nn.LayerNorm((3, 4)), {"weight": Normal(1.0, mean=1.0), "bias": Normal(1.0)}),
        (nn.GroupNorm(1, 3), {"weight": Normal(1.0, mean=1.0), "bias": Normal(1.0)}),
        (nn.RMSNorm(3), {"weight": Normal(1.0, mean=1.0)}),
        (Odd(), {"scale": Normal(1.0)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_vectors_embeddings_and_norm_scales(module, expected):
    assigned = assign(None, module)
    assert {name: assigned[name] for name in expected} == expected


@pytest.mark.parametrize("width", [16, 256])
def test_a_gain_of_sqrt_2_keeps_the_scale_of_the_inputs_at_any_width(width):
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(64, width, generator=rng)
    before = hidden.square().mean()
    for _ in range(3):
        std = assign(FanIn(math.sqrt(2)), nn.Linear(width, width, bias=False))["weight"].std
        hidden = torch.relu(hidden @ (std * torch.randn(width, width, generator=rng)))
    ratio = (hidden.square().mean() / before).item()
    assert 0.4 < ratio < 2.5


# Assignment


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.MultiheadAttention(3, 1), nn.Linear(3, 2))


def test_one_prior_for_all_in_the_order_of_the_parameters():
    module = net()
    assert list(assign(Laplace(2.0), module).items()) == [(name, Laplace(2.0)) for name, _ in module.named_parameters()]


def test_first_match_wins_and_the_rest_gets_the_default():
    assigned = assign({"0.weight": Laplace(2.0), "*.weight": Normal(3.0), nn.BatchNorm1d: Point()}, net())
    assert assigned["0.weight"] == Laplace(2.0)
    assert assigned["1.weight"] == assigned["3.weight"] == Normal(3.0)
    assert assigned["1.bias"] == Point()
    assert assigned["2.in_proj_weight"] == Normal(GAIN / math.sqrt(3))


def test_a_type_covers_every_parameter_inside_such_a_module():
    assigned = assign({nn.MultiheadAttention: Fixed(), nn.Linear: FanIn(gain=1.0)}, net())
    assert assigned["2.out_proj.weight"] == Fixed()
    assert assigned["3.weight"] == Normal(1 / math.sqrt(3))


def test_frozen_parameters_are_fixed_whatever_the_prior():
    module = net()
    module[0].weight.requires_grad_(False)
    assert assign(Normal(1.0), module)["0.weight"] == Fixed()
    assert assign({"0.weight": Laplace()}, module)["0.weight"] == Fixed()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.body = nn.Linear(4, 4)
        self.again = self.body
        self.decode = nn.Linear(4, 5)
        self.decode.weight = self.embed.weight


def test_tied_parameters_appear_once_and_answer_to_all_their_names():
    assert list(assign(None, Tied())) == ["embed.weight", "body.weight", "body.bias", "decode.bias"]
    assert assign(None, Tied())["embed.weight"] == Normal(1.0)
    assert assign({"decode.weight": Laplace(3.0)}, Tied())["embed.weight"] == Laplace(3.0)
    assert assign({"again.*": Laplace(3.0)}, Tied())["body.bias"] == Laplace(3.0)
    assert assign({nn.Linear: Laplace(3.0)}, Tied())["embed.weight"] == Laplace(3.0)


class Own(Prior):
    def log_prob(self, value: Tensor) -> Tensor:
        return -value.abs() - math.log(2)


def test_a_users_own_prior():
    own = Own()
    assert assign(own, nn.Linear(2, 1)) == {"weight": own, "bias": own}
    assert describe({"bias": own}) == {"bias": {"name": "Own", "repr": describe({"": own})[""]["repr"]}}
    assert "0x" not in describe({"bias": own})["bias"]["repr"]


def test_describe_is_json():
    described = describe(assign({"0.weight": Fixed(), "0.bias": StudentT(3.0)}, net()))
    assert json.loads(json.dumps(described)) == described
    assert described["0.weight"] == {"name": "Fixed"}
    assert described["0.bias"] == {"name": "StudentT", "df": 3.0, "scale": 1.0}
    assert described["1.weight"] == {"name": "Normal", "std": 1.0, "mean": 1.0}


@pytest.mark.parametrize(
    ("prior", "sentence"),
    [
        ({"head.weight": Normal()}, r"'head.weight' matches no parameter; the parameters are 0.weight, 0.bias"),
        ({nn.Conv2d: Normal()}, r"'Conv2d' matches no parameter"),
        ({"*": Normal}, r"Normal'> is no prior; use e.g. Normal\(std=1.0\)"),
        ("normal", r"'normal' is no prior"),
        (Normal, r"is no prior"),
        ({3: Normal()}, r"key 3 is neither a name pattern nor a module type"),
        ({int: Normal()}, r"is neither a name pattern nor a module type"),
    ],
)
def test_bad_priors_get_one_sentence(prior, sentence):
    with pytest.raises(ValueError, match=sentence):
        assign(prior, net())


def test_a_normal_for_every_weight():
    mean, std = torch.randn(2, 3), 0.1 + torch.rand(2, 3)
    prior, value = Normals(mean, std), torch.randn(5, 2, 3)
    torch.testing.assert_close(prior.log_prob(value), torch.distributions.Normal(mean, std).log_prob(value))
    assert repr(prior) == repr(Normals(mean.clone(), std.clone())) != repr(Normals(mean, std * 1.001))
    assert Normals(mean, 0.5).std.shape == (2, 3)
    mean.zero_()
    assert bool(prior.mean.any()), "the prior holds its own copy"
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="not finite or not positive"):
            Normals(mean, bad)


def test_centred_priors_lie_on_the_modules_weights():
    net = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    found = assign(Centred(), net)
    assert torch.equal(found["0.weight"].mean, net[0].weight) and torch.equal(found["1.weight"].mean, torch.ones(3))
    assert found["0.weight"].std.unique().tolist() == pytest.approx([GAIN / 2])
    mixed = assign({nn.LayerNorm: Point(), "*": Centred(std=0.2)}, net)
    assert mixed["0.bias"].std.unique().tolist() == pytest.approx([0.2]) and mixed["1.bias"] == Point()
    with pytest.raises(ValueError, match="std is -1"):
        Centred(std=-1)


# -- densities from elsewhere ----------------------------------------------------------------------------------


def test_a_distribution_of_torch_is_a_prior_over_each_weight():
    """Cauchy's is Student's t with one degree of freedom, in density and in what a fit makes of it."""
    net = nn.Linear(3, 2)
    cauchy = torch.distributions.Cauchy(0.0, 0.5)
    given = assign({"weight": cauchy, "bias": Point()}, net)
    value = torch.linspace(-3, 3, 7).view(7, 1)
    torch.testing.assert_close(given["weight"].log_prob(value), StudentT(1.0, 0.5).log_prob(value))
    assert given["bias"] == Point() and describe(given)["weight"]["repr"] == "Cauchy(loc: 0.0, scale: 0.5)"
    x, y = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    options = {"steps": 5, "device": "cpu", "progress": False}
    one, two = (
        dubito.fit(net, (x, y), dubito.Variational(draws=2), prior=prior, **options)
        for prior in (cauchy, StudentT(1.0, 0.5))
    )
    torch.testing.assert_close(one.mean, two.mean)
    torch.testing.assert_close(one.std, two.std)


@pytest.mark.parametrize(
    "density",
    [
        torch.distributions.Uniform(-2.0, 2.0),
        torch.distributions.LogNormal(0.0, 1.0),
        torch.distributions.MixtureSameFamily(
            torch.distributions.Categorical(torch.tensor([0.25, 0.75])),
            torch.distributions.Normal(torch.zeros(2), torch.tensor([1.0, 0.1])),
        ),
    ],
    ids=lambda density: type(density).__name__,
)
def test_a_distribution_of_torch_goes_where_the_weights_are_and_reads_nothing_back(density):
    given, value = Given(density), torch.linspace(0.1, 1.9, 6).view(2, 3)
    assert given.log_prob(value.to("meta")).device.type == "meta"  # from where nothing can be read
    torch.testing.assert_close(given.log_prob(value), density.log_prob(value))


def test_there_is_no_density_outside_the_support():
    found = Given(torch.distributions.Exponential(2.0)).log_prob(torch.tensor([-1.0, 0.0]))
    assert found.tolist() == pytest.approx([-math.inf, math.log(2)])


class Elsewhere(Prior):
    def __init__(self):
        self.scale = torch.ones(1, device="meta")

    def log_prob(self, value):
        assert value.device == self.scale.device
        return -(value / self.scale).abs()


def test_a_prior_with_numbers_of_its_own_is_looked_at_on_their_device():
    prior = Elsewhere()
    assert assign(prior, nn.Linear(3, 2)) == {"weight": prior, "bias": prior}


class Written(Prior):
    def __init__(self, density):
        self.density = density

    def log_prob(self, value):
        return self.density(value)


@pytest.mark.parametrize("method", [dubito.Variational(draws=2), dubito.MAP(), dubito.SGLD(burn_in=0, thin=1)])
def test_a_flat_density_has_no_slope(method):
    """As under a normal prior too wide to matter."""
    x, y = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    net, options = nn.Linear(3, 2), {"steps": 5, "device": "cpu", "progress": False}
    flat, wide = (
        dubito.fit(net, (x, y), method, prior=prior, **options) for prior in (Written(torch.zeros_like), Normal(1e6))
    )
    torch.testing.assert_close(flat.predict(x).probs, wide.predict(x).probs)


def test_what_is_no_density_over_a_number_is_refused():
    net = nn.Linear(3, 2)
    joint = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    with pytest.raises(
        ValueError, match=r"log_prob of shape \(3,\) for weights of shape \(3, 2\); give a density over one"
    ):
        assign(joint, net)
    with pytest.raises(ValueError, match=r"Gamma.* has no density at some of the network's own weights; give one"):
        assign(torch.distributions.Gamma(1.0, 1.0), net)
    with pytest.raises(ValueError, match=r"has a log_prob of shape \(1,\) for weights of shape \(1, 6\); give a"):
        assign(Written(lambda value: -value.abs().sum(1)), net)
    with pytest.raises(ValueError, match=r"is no prior; use e\.g\."):
        assign(Normal, net)
    posterior = dubito.nn.to_posterior(dubito.nn.BayesLinear(3, 2), dubito.Categorical())
    with pytest.raises(ValueError, match=r"is a posterior; give prior=posterior\.as_prior\(\) to learn on"):
        assign(posterior, net)
