"""Gaussian weights by interception: which parameter takes which path, and that the numbers are right."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dubito import runtime
from dubito.layout import whole
from dubito.likelihoods import Categorical
from dubito.net import Net
from dubito.priors import Normal, Point
from dubito.rng import Rng
from dubito.target import Batch, Target

B = 6


class Attention(nn.Module):
    """Self-attention from linear maps, which act on every position."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)).mean(1))


class Twice(nn.Module):
    """One layer used twice, so that the difference is zero if and only if both uses see one draw."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.body(x) - self.body(x.clone())) - self.head.bias


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.decode = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.decode.weight = self.embed.weight

    def forward(self, x):
        return self.decode(torch.tanh(self.embed(x)))


class Folded(nn.Module):
    """Examples and positions in one axis."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(x.flatten(0, 1))).view(*x.shape[:2], 5).mean(1))


class Misuse(nn.Module):
    """Weights by other ways than as the weight of a layer; looking at shapes is no use."""

    def __init__(self):
        super().__init__()
        self.matrix, self.gain = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 3)
        self.idle = nn.Parameter(torch.zeros(2))
        self.query = nn.Linear(4, 4)

    def forward(self, x):
        half = self.head.weight.shape[1] + self.head.weight.size(0) + self.head.weight.dim()
        constant = self.query(torch.ones(1, 4)) / half
        return F.linear(input=(x @ self.matrix) * self.gain + constant, weight=self.head.weight, bias=self.head.bias)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.norm, self.head = nn.LSTM(4, 5, batch_first=True), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.norm(self.cell(x)[0][:, -1]))


def perceptron():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def convolutional():
    """Stride, padding, dilation, groups, and a transposed convolution with an output padding."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), nn.Tanh(),
        nn.Conv2d(4, 2, 2, dilation=2, padding="same", padding_mode="circular"), nn.Tanh(),
        nn.ConvTranspose2d(2, 2, 2, stride=2, output_padding=1), nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip


def made(kind: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    module, shape = {
        "perceptron": (perceptron, (4,)),
        "convolutional": (convolutional, (2, 5, 5)),
        "attention": (Attention, (3, 3)),
        "twice": (Twice, (4,)),
        "folded": (Folded, (3, 4)),
        "recurrent": (Recurrent, (3, 4)),
    }[kind]
    built, x = module(), torch.randn(B, *shape)
    built(x)
    return built, x


def scheme_of(module: nn.Module, x: Tensor, estimator: str):
    net = Net(module)
    return net, net.scheme(x, net.layout.names, estimator)


def spread(net: Net, scale: float = 0.3) -> Tensor:
    return scale * (0.5 + torch.rand(net.layout.size, generator=torch.Generator().manual_seed(5)))


# -- paths -----------------------------------------------------------------------------------------------------


def test_paths_of_a_perceptron_and_of_convolutions():
    module, x = made("perceptron")
    for estimator in ("local", "flipout"):
        _, scheme = scheme_of(module, x, estimator)
        assert {p.estimator for p in scheme.paths.values()} == {estimator}
        assert [(s.weight, s.bias) for s in scheme.sites] == [("0.weight", "0.bias"), ("2.weight", "2.bias")]
    module, x = made("convolutional")
    _, scheme = scheme_of(module, x, "local")
    assert [s.layer for s in scheme.sites] == ["conv2d", "conv2d", "conv_transpose2d", "linear"]
    assert [s.positions for s in scheme.sites] == [9, 9, 49, 1]
    assert scheme.paths["0.weight"].estimator == "local (approximate)"
    assert scheme.paths["6.bias"].estimator == "local"


def test_everything_else_is_drawn_in_weight_space_and_says_why():
    torch.manual_seed(0)
    _, scheme = scheme_of(Misuse(), torch.randn(B, 4), "local")
    why = {name: path.why for name, path in scheme.paths.items() if path.estimator == "weights"}
    assert scheme.drawn == ("matrix", "gain", "idle", "query.weight", "query.bias")
    assert why["matrix"].startswith("used by matmul") or "matmul" in why["matrix"]
    assert why["idle"] == "no use of it was seen"
    assert "does not grow" in why["query.weight"]
    assert scheme.paths["head.weight"].estimator == "local"
    module, x = made("recurrent")
    _, scheme = scheme_of(module, x, "flipout")
    assert "used by lstm" in scheme.paths["cell.weight_hh_l0"].why
    assert "used by layer_norm" in scheme.paths["norm.weight"].why
    assert scheme.paths["head.weight"].estimator == "flipout"


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_passes_before_the_recorded_one_change_no_path(cell):
    module = Recurrent()
    module.cell = cell(4, 5, batch_first=True)
    net, x = Net(module), torch.randn(B, 3, 4)
    net(net.theta(), x)
    paths = net.scheme(x, net.layout.names, "local").paths
    assert paths["head.weight"].estimator == paths["head.bias"].estimator == "local"
    assert paths["cell.weight_hh_l0"].why.startswith("used by ")


def test_attention_modules_take_whole_weights():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    _, scheme = scheme_of(layer, torch.randn(B, 3, 4), "local")
    assert "multi_head_attention_forward" in scheme.paths["self_attn.in_proj_weight"].why
    assert scheme.paths["linear1.weight"].estimator == "local (approximate)"


def test_folded_examples_keep_local_and_refuse_flipout():
    module, x = made("folded")
    _, local = scheme_of(module, x, "local")
    assert local.paths["inner.weight"].estimator == "local (approximate)"
    assert local.sites[0].shape_for(B) == (3 * B, 5)
    _, flipped = scheme_of(module, x, "flipout")
    assert "share an axis" in flipped.paths["inner.weight"].why
    assert flipped.paths["head.weight"].estimator == "flipout"


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_a_weight_used_twice_is_one_draw(estimator):
    module, x = made("twice")
    net, scheme = scheme_of(module, x, estimator)
    assert scheme.paths["body.weight"].why.startswith("used 2 times")
    noise = net.noise(scheme, x, 1, 1, Rng(0))
    fixed = net.layout.spans["head.bias"]
    std = spread(net)
    std[fixed] = 0
    outputs = net.noisy(net.theta(), std, x, scheme, {n: z[0, 0] for n, z in noise.items()})
    assert torch.equal(outputs, torch.zeros(B, 3))
    tied = Tied()
    _, scheme = scheme_of(tied, torch.randint(7, (B, 2)), estimator)
    assert scheme.drawn == ("embed.weight",)


# -- numbers ---------------------------------------------------------------------------------------------------

LAYERS = {
    "linear": (nn.Linear(4, 3), (4,)),
    "linear over positions": (nn.Linear(4, 3), (2, 4)),
    "conv1d": (nn.Conv1d(2, 4, 3, stride=2, padding=1), (2, 7)),
    "conv2d": (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=1, dilation=(1, 2), groups=2), (4, 6, 5)),
    "conv3d": (nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
    "transposed 1d": (nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), (2, 4)),
    "transposed 2d": (nn.ConvTranspose2d(4, 2, 2, groups=2, dilation=2), (4, 3, 3)),
    "transposed 3d": (nn.ConvTranspose3d(1, 2, 2, stride=2, padding=1), (1, 2, 2, 2)),
    "no bias": (nn.Conv2d(1, 2, 3, bias=False), (1, 4, 4)),
}


@pytest.mark.parametrize("estimator", ["local", "flipout", "weights"])
@pytest.mark.parametrize("kind", LAYERS)
def test_moments_of_every_layers_output(kind, estimator):
    layer, shape = LAYERS[kind]
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    net, scheme = scheme_of(layer, x, estimator)
    assert scheme.drawn == (net.layout.names if estimator == "weights" else ())
    mean, std, draws = net.theta(), spread(net), 6000
    noise = {n: z[0] for n, z in net.noise(scheme, x, 1, draws, Rng(0)).items()}
    outputs = runtime.over_members(lambda z: net.noisy(mean, std, x, scheme, z), (noise,), draws, True).flatten(1)
    jacobian = torch.func.jacrev(lambda theta: net(theta, x).flatten())(mean)
    exact, variance = net(mean, x).flatten(), jacobian.square() @ std.square()
    assert float(((outputs.mean(0) - exact) / (variance / draws).sqrt()).abs().max()) < 5
    # the variance estimate of a mixture over signs has a kurtosis of 3, as that of a normal has
    assert float(((outputs.var(0) / variance - 1) / math.sqrt(2 / draws)).abs().max()) < 6


@pytest.mark.parametrize("estimator", ["local", "flipout"])
@pytest.mark.parametrize("kind", ["perceptron", "convolutional", "attention", "folded", "recurrent"])
def test_without_spread_it_is_the_plain_net_and_gradients_are_finite(kind, estimator):
    module, x = made(kind)
    net, scheme = scheme_of(module, x, estimator)
    noise = {n: z[0, 0] for n, z in net.noise(scheme, x, 1, 1, Rng(0)).items()}
    mean, std = net.theta().requires_grad_(), torch.zeros(net.layout.size, requires_grad=True)
    outputs = net.noisy(mean, std, x, scheme, noise)
    torch.testing.assert_close(outputs, net(net.theta(), x), rtol=1e-6, atol=1e-7)
    for grad in torch.autograd.grad(outputs.square().sum(), (mean, std)):
        assert bool(torch.isfinite(grad).all())
    outputs = net.noisy(mean, std + 0.1, 0 * x, scheme, noise)  # an input of zeros has no variance either
    for grad in torch.autograd.grad(outputs.square().sum(), (mean, std)):
        assert bool(torch.isfinite(grad).all())


def test_examples_have_their_own_draw_a_pairwise_one_or_a_shared_one():
    net = Net(nn.Linear(4, 1))
    std = spread(net)
    row = torch.randn(1, 4, generator=torch.Generator().manual_seed(1))
    x, draws, found = row.expand(2, 4), 8000, {}
    for estimator in ("local", "flipout"):
        scheme = net.scheme(x, net.layout.names, estimator)
        noise = {n: z[0] for n, z in net.noise(scheme, x, 1, draws, Rng(2)).items()}
        outputs = runtime.over_members(lambda z, s=scheme: net.noisy(net.theta(), std, x, s, z), (noise,), draws, True)
        found[estimator] = (outputs - outputs.mean(0)).squeeze(-1) / outputs.std()
    for estimator, scaled in found.items():
        assert abs(float((scaled[:, 0] * scaled[:, 1]).mean())) < 5 / math.sqrt(draws), estimator
    squares = {n: z.square() - 1 for n, z in found.items()}  # independent draws have independent squares, too
    assert abs(float((squares["local"][:, 0] * squares["local"][:, 1]).mean())) < 10 / math.sqrt(draws)
    assert float((squares["flipout"][:, 0] * squares["flipout"][:, 1]).mean()) > 0.2
    thetas = net.theta() + std * torch.randn(5, net.layout.size)
    assert torch.equal(net.many(thetas, x)[:, 0], net.many(thetas, x)[:, 1])


# -- gradients -------------------------------------------------------------------------------------------------


def target_of(module: nn.Module, points: tuple[str, ...] = ()) -> Target:
    net = Net(module)
    prior = {n: Point() if n in points else Normal(std=1.0) for n in net.layout.names}
    return Target(net, Categorical(), prior, n_data=B)


def gradients(target: Target, batch: Batch, estimator: str, seeds: int, scale: float = 0.3) -> Tensor:
    """(seeds, 2 D): one-draw gradients by mean and by std."""
    size = target.net.layout.size
    mean, std = target.net.theta().expand(seeds, -1), spread(target.net, scale).expand(seeds, -1)
    rng = Rng(7).child(estimator)
    if estimator == "weights":
        eps = rng.normal_(torch.empty(seeds, size), "weights")
        _, grad = target.lik_value_and_grad(mean + std * eps, batch, "live", {})
        return torch.cat([grad, grad * eps], dim=1)
    scheme = target.net.scheme(batch.x, target.random, estimator)
    noise = target.net.noise(scheme, batch.x, seeds, 1, rng)
    _, by_mean, by_std = target.noisy_value_and_grad(mean, std, batch, scheme, noise, "live", {})
    return torch.cat([*by_mean, *by_std], dim=1)


def z_scores(a: Tensor, b: Tensor) -> Tensor:
    error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
    return ((a.mean(0) - b.mean(0)) / error)[error > 1e-9]


@pytest.mark.parametrize(
    "kind, estimator",
    [("perceptron", "local"), *((k, "flipout") for k in ("perceptron", "convolutional", "attention", "folded"))],
)
def test_gradients_agree_with_weight_space_in_expectation(kind, estimator):
    module, x = made(kind)
    batch = Batch(x, torch.arange(B) % 3, torch.arange(B))
    target = target_of(module)
    z = z_scores(gradients(target, batch, estimator, 3000), gradients(target, batch, "weights", 3000))
    assert float(z.abs().max()) < 5
    assert 0.6 < float(z.square().mean()) < 1.6


def test_local_gradients_of_a_convolution_differ_from_weight_space():
    """The approximation is real: noise that is independent over positions averages out where shared noise does not."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(1, 2, 1), nn.Flatten(), nn.Linear(16, 3))
    batch = Batch(torch.randn(B, 1, 8), torch.arange(B) % 3, torch.arange(B))
    target = target_of(module, points=("2.weight", "2.bias"))
    z = z_scores(gradients(target, batch, "local", 3000, 1.5), gradients(target, batch, "weights", 3000, 1.5))
    assert float(z.abs().max()) > 8


@pytest.mark.parametrize("kind", ["perceptron", "convolutional", "attention", "recurrent"])
@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_draws_and_members_side_by_side_or_one_by_one_give_the_same_numbers(kind, estimator, monkeypatch):
    module, x = made(kind)
    batch = Batch(x, torch.arange(B) % 3, torch.arange(B))
    state, seen = torch.get_rng_state(), {}
    for vectorise in (True, False):
        target = target_of(module)
        if not vectorise:
            monkeypatch.setattr(runtime, "supports_vmap", lambda *a: False)
        mean, std = target.net.theta().expand(2, -1), spread(target.net).expand(2, -1)
        scheme = target.net.scheme(x, target.random, estimator)
        noise = target.net.noise(scheme, x, 2, 3, Rng(1))
        seen[vectorise] = target.noisy_value_and_grad(mean, std, batch, scheme, noise, "live", {})
        first = {n: z[:1] for n, z in noise.items()}
        seen["alone"] = target.noisy_value_and_grad(mean[:1], std[:1], batch, scheme, first, "live", {})
        assert all(torch.equal(z, first[n]) for n, z in target.net.noise(scheme, x, 1, 3, Rng(1)).items())
    joined = ([value, whole(by_mean), whole(by_std)] for value, by_mean, by_std in seen.values())
    for a, c, b in zip(*joined, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(b[:1], c, rtol=1e-4, atol=1e-5)
    assert torch.equal(state, torch.get_rng_state())


def test_point_parameters_have_no_noise():
    module, x = made("perceptron")
    target = target_of(module, points=("0.weight", "2.bias"))
    scheme = target.net.scheme(x, target.random, "local")
    assert [(s.weight, s.bias) for s in scheme.sites] == [(None, "0.bias"), ("2.weight", None)]
    assert target.random == ("0.bias", "2.weight")
    assert target.points == [target.layout.spans["0.weight"], target.layout.spans["2.bias"]]


def test_a_pass_that_changes_its_shapes_is_refused():
    class Fickle(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(1, 5), nn.Linear(5, 3)

        def forward(self, x):
            h = self.body(x.unsqueeze(-1) if len(x) < 3 else x.repeat(1, 2).unsqueeze(-1))
            return self.head(h.mean(1))

    net = Net(Fickle())
    x = torch.randn(B, 4)
    scheme = net.scheme(x, net.layout.names, "local")
    noise = {n: z[0, 0] for n, z in net.noise(scheme, x, 1, 1, Rng(0)).items()}
    with pytest.raises(ValueError, match=r"'body.weight' now gives .* use estimator='weights'"):
        net.noisy(net.theta(), spread(net), x, scheme, noise)
