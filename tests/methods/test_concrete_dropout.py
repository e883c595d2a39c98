"""Learned dropout rates: the relaxation, the bound and its gradients against exact ones, then what rates learn."""

import itertools
import json
import math

import pytest
import torch
from torch import nn

import dubito
from dubito.dropout import Site, make_masks, make_uniforms, relaxed_masks
from dubito.methods.concrete_dropout import expected_log_prior, mask_entropy
from dubito.net import Net
from dubito.posteriors.storage import Damaged
from dubito.priors import assign
from dubito.rng import Rng
from dubito.target import Batch, Target
from dubito.tick import Tick

G = torch.Generator().manual_seed(0)
X = torch.randn(20, 4, generator=G)
Y = X[:, 0] - 0.5 * X[:, 1] + 0.1 * torch.randn(20, generator=G)
LOGITS = torch.tensor([-2.0, -0.5, 0.0, 1.0])


def perceptron(outputs: int = 1) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, outputs))


def double(logit) -> torch.Tensor:
    return torch.as_tensor(logit, dtype=torch.float64)


def prepared(net: nn.Module, prior=None, n_data: int = 50, method=None) -> Target:
    copied = Net(net)
    held = (method or dubito.ConcreteDropout(rate=0.3)).prepare(copied, X.to(copied.dtype))
    return Target(held, dubito.Gaussian(0.5), assign(prior, net), n_data)


# -- the relaxation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("logit", LOGITS.tolist())
def test_relaxed_masks_become_bernoulli_as_the_temperature_falls(logit):
    """Moments by the midpoint rule over uniforms; to first order E k (1 - k) is t times the density at the step."""
    p, uniform = 1 / (1 + math.exp(-logit)), (torch.arange(400_000, dtype=torch.float64) + 0.5) / 400_000
    for temperature in (0.1, 0.01, 0.001):
        (mask,) = relaxed_masks(double([logit]), [uniform.logit()], temperature)
        keep = mask * (1 - p)
        assert float(keep.mean()) == pytest.approx(1 - p, abs=temperature**2)
        assert float((keep * (1 - keep)).mean()) == pytest.approx(temperature * p * (1 - p), rel=0.05)
    assert float(keep.var()) == pytest.approx(p * (1 - p), rel=2e-3)


def test_the_limit_is_the_mask_of_the_same_random_numbers():
    sites = [Site("element", 0.3, (1, 500), 0), Site("element", 0.6, (1, 500), 0)]
    uniforms = list(make_uniforms(sites, 1, 4, Rng(3), torch.empty(0), shared=False))
    logit = torch.tensor([s.rate for s in sites]).logit()
    relaxed = relaxed_masks(logit, [u[0].logit() for u in uniforms], 1e-6)
    binary = make_masks(sites, uniforms)
    for ours, known in zip(relaxed, binary, strict=True):
        torch.testing.assert_close(ours, known[0])


def test_a_uniform_of_zero_has_a_finite_slope():
    logit = torch.zeros(1, requires_grad=True)
    (mask,) = relaxed_masks(logit, [torch.tensor([0.0, 0.5]).logit()], 0.1)
    mask.sum().backward()
    assert bool(torch.isfinite(mask).all()) and bool(torch.isfinite(logit.grad).all())


# -- the bound -------------------------------------------------------------------------------------------------


def test_the_entropy_is_that_of_all_masks():
    """Summed over every pattern of five units of two rates, and differentiated by finite differences."""

    def known(logit: torch.Tensor) -> float:
        rates = logit.sigmoid()[[0, 0, 1, 1, 1]]
        patterns = itertools.product([0, 1], repeat=5)
        chance = [math.prod(float(p if off else 1 - p) for p, off in zip(rates, k, strict=True)) for k in patterns]
        return -sum(c * math.log(c) for c in chance)

    sites = [Site("element", 0.1, (1, 2), 0), Site("element", 0.1, (1, 3), 0)]
    for logit in (double([-1.3, 0.4]), double([2.0, -3.0])):
        value, slope = mask_entropy(logit.unsqueeze(0), sites)
        assert float(value) == pytest.approx(known(logit), rel=1e-12)
        for i, step in enumerate(1e-5 * torch.eye(2, dtype=torch.float64)):
            found = (known(logit + step) - known(logit - step)) / 2e-5
            assert float(slope[0, i]) == pytest.approx(found, rel=1e-6)


PRIORS = [dubito.Normal(0.7), dubito.Normal(0.7, 0.3), dubito.Laplace(0.5), dubito.ScaleMixture(0.5, 1.0, 0.1), None]


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_the_expected_log_prior_is_the_average_over_all_masks(prior):
    """E log p(m z / (1 - p)) by summing over the eight masks of three units, and its gradients by autograd."""
    net = perceptron().double()
    target = prepared(net, prior)
    assigned = assign(prior, net)

    def known(theta: torch.Tensor, logit: torch.Tensor) -> torch.Tensor:
        values, p = target.layout.split(theta), logit.sigmoid()[0]
        total = theta.new_zeros(())
        for keep in itertools.product([0.0, 1.0], repeat=3):
            chance = math.prod([1 - p if one else p for one in keep])
            held = {**values, "2.weight": values["2.weight"] * double(keep) / (1 - p)}
            total = total + chance * sum(assigned[n].log_prob(v).sum() for n, v in held.items())
        return total

    theta, logit = target.net.theta(), double([-0.7])
    found = expected_log_prior(theta.unsqueeze(0), logit.unsqueeze(0), target.net.known_sites, target)
    torch.testing.assert_close(found.value[0], known(theta, logit))
    by_theta, by_logit = torch.func.grad(known, (0, 1))(theta, logit)
    torch.testing.assert_close(found.by_theta[0], by_theta)
    torch.testing.assert_close(found.by_logit[0], by_logit)


def test_weights_without_a_prior_bring_no_prior():
    net = perceptron()
    target = prepared(net, {"2.weight": dubito.Point(), "*": dubito.Normal()})
    theta = target.net.theta().unsqueeze(0)
    found = expected_log_prior(theta, torch.zeros(1, 1), target.net.known_sites, target)
    torch.testing.assert_close(found.value, target.log_prior(theta))
    assert float(found.by_logit) == 0


def test_the_slope_by_the_rate_is_near_that_of_the_exact_expected_fit():
    """Finite differences of the sum over both masks of one unit, against relaxed masks of evenly spread uniforms."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        target = prepared(nn.Sequential(nn.Linear(4, 1), nn.Tanh(), nn.Linear(1, 1)).double())
    theta, logit, spread = target.net.theta().mul(2), -1.0, 4000
    x, y = X.double(), Y.double()

    def exact(at: float) -> float:
        p, total = 1 / (1 + math.exp(-at)), 0.0
        for keep, chance in ((0.0, p), (1.0, 1 - p)):
            outputs = target.net(theta, x, "dropout", None, [double(keep / (1 - p)).expand(20, 1)])
            total += chance * float(dubito.Gaussian(0.5).log_prob(outputs, y).mean())
        return total

    known = (exact(logit + 1e-4) - exact(logit - 1e-4)) / 2e-4
    uniform = ((torch.arange(spread) + 0.5) / spread).double().repeat_interleave(20).view(1, -1, 1)
    batch = Batch(x.repeat(spread, 1), y.repeat(spread), torch.arange(20 * spread))
    errors = []
    for relaxation in (0.1, 0.05, 0.01):
        at = (theta.unsqueeze(0), double([[logit]]), batch, [uniform.logit()], relaxation, {})
        errors.append(abs(float(target.relaxed_value_and_grad(*at)[2]) / known - 1))
    assert errors[0] < 0.2 and errors[2] < 0.02, "the bias is small at the default and falls with the temperature"
    assert errors[0] > errors[1] > errors[2]


def test_one_step_is_the_gradient_of_the_bound():
    """All of it by autograd: relaxed fit, expected prior and entropy, at a temperature that is not 1."""
    method = dubito.ConcreteDropout(rate=0.3, optimiser="sgd", momentum=0.0, learning_rate=1.0)
    net = perceptron()
    held = method.prepare(Net(net), X)
    target = Target(held, dubito.Gaussian(0.5), assign(dubito.Normal(0.7), net), 50, temperature=0.5)
    state = method.init(held.theta().expand(2, -1), target, Tick.at(0, 10))
    before, tick = state.theta.clone(), Tick.at(3, 10, seed=7)
    state, told = method.step(state, Batch(X, Y, torch.arange(20)), target, tick)
    uniforms = list(make_uniforms(held.sites(X), 2, 20, tick.rng.child("train"), before, shared=False))
    for member in range(2):
        whole = before[member].clone().requires_grad_()
        theta, logit = whole[:-1], whole[-1:]
        p = logit.sigmoid()[0]
        masks = relaxed_masks(logit, [u[member].logit() for u in uniforms], 0.1)
        fit = -dubito.Gaussian(0.5).log_prob(held(theta, X, "dropout", None, masks), Y).mean()
        values = held.layout.split(theta)
        outer = values.pop("2.weight")
        prior = sum(dubito.Normal(0.7).log_prob(v).sum() for v in values.values())
        prior = prior + (1 - p) * dubito.Normal(0.7).log_prob(outer / (1 - p)).sum()
        prior = prior + p * dubito.Normal(0.7).log_prob(torch.zeros(3)).sum()
        entropy = -3 * (p * p.log() + (1 - p) * (1 - p).log())
        (grad,) = torch.autograd.grad((fit - prior / 50) / 0.5 - entropy / 50, whole)
        torch.testing.assert_close(state.theta[member], before[member] - grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(told.fit[member], fit.detach())
        torch.testing.assert_close(told.complexity[member], ((-prior - entropy) / 50).detach())


# -- which weights a rate belongs to ---------------------------------------------------------------------------


def test_a_rate_belongs_to_the_layer_that_comes_next_and_counts_its_inputs():
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Dropout(0.1), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.Dropout2d(0.2), nn.Flatten(),
        nn.Linear(16, 5), nn.Dropout(0.3), nn.Dropout(0.4), nn.Linear(5, 2), nn.Dropout(0.5),
    )  # fmt: skip
    sites = Net(net).sites(torch.randn(2, 1, 6, 6))
    assert [(s.weight, s.units) for s in sites] == [
        ("3.weight", 3), ("6.weight", 4), (None, 5), ("9.weight", 5), (None, 2),
    ]  # fmt: skip


def test_a_weight_that_is_used_twice_has_its_prior_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(self.inner(self.inner(x)).tanh()).sum(1, keepdim=True)

    target = prepared(Twice(), dubito.Normal(1.0))
    assert [s.weight for s in target.net.known_sites] == ["inner.weight"] * 2
    theta = target.net.theta().unsqueeze(0)
    still = expected_log_prior(theta, torch.full((1, 2), -30.0), target.net.known_sites, target)
    torch.testing.assert_close(still.value, target.log_prior(theta))


# -- what rates learn ------------------------------------------------------------------------------------------


def learned(x, y, noise: float, seed: int = 0, **options):
    net = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 1))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    settings = {"steps": 400, "members": 2, "seed": seed, "device": "cpu", "progress": False, **options}
    method = dubito.ConcreteDropout(learning_rate=0.02)
    return dubito.fit(net, (x, y), method, likelihood=dubito.Gaussian(noise), **settings)


def test_rates_rise_on_pure_noise_and_fall_on_many_clean_data():
    """A rate is doubt about weights, which data remove (section 4 of the paper); 0.1 is where both start."""
    source = torch.Generator().manual_seed(3)
    few = torch.randn(30, 4, generator=source)
    doubtful = learned(few, torch.randn(30, generator=source), noise=1.0)
    many = torch.randn(3000, 4, generator=source)
    certain = learned(many, many[:, 0] - many[:, 1] * many[:, 2], noise=0.1)
    assert float(doubtful.rates.min()) > 0.3
    assert float(certain.rates.max()) < 0.02


def test_members_have_rates_of_their_own_and_draws_have_binary_masks():
    posterior = learned(X, Y, 0.3, steps=60)
    assert posterior.rates.shape == (2, 1) and not torch.equal(*posterior.rates)
    functions = posterior.draw(4000, seed=1)
    masks = posterior.net.masks(X, 4000, functions.masks.rng, shared=True, rates=functions.masks.rates)[0]
    for member, rate in enumerate(posterior.rates[:, 0].tolist()):
        own = masks[member::2]
        assert own.unique().tolist() == pytest.approx([0.0, 1 / (1 - rate)])
        assert float((own == 0).float().mean()) == pytest.approx(rate, abs=5 * math.sqrt(rate / own.numel()))


def test_a_member_on_its_own_predicts_with_its_own_rate():
    posterior = learned(X, Y, 0.3, steps=60)
    theta, _ = posterior.samples.get([1])
    outputs = posterior.draw(4, seed=1)(X)[3]  # draw 3 is member 1
    masks = posterior.net.masks(
        X, 1, posterior.draw(1, seed=1).masks.rng, shared=True, first=3, rates=posterior.rates[1:]
    )
    torch.testing.assert_close(outputs, posterior.net(theta[0], X, "dropout", None, [m[0] for m in masks]))


def test_rates_are_the_same_under_a_seed_stored_and_told(tmp_path):
    first, again = (learned(X, Y, 0.3, steps=60, folder=tmp_path / name) for name in "ab")
    assert torch.equal(first.rates, again.rates)
    assert not torch.equal(first.rates, learned(X, Y, 0.3, seed=1, steps=60).rates)
    stored = dubito.load(tmp_path / "a", nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 1)), device="cpu")
    assert torch.equal(stored.rates, first.rates)
    assert torch.equal(stored.predict(X, draws=9).draws, first.predict(X, draws=9).draws)
    assert repr(stored) == repr(first) and f"learned rates {first.rates.mean():.2g}" in repr(first)


def test_rates_go_with_the_network_they_were_learned_with(tmp_path):
    net = nn.Sequential(*perceptron(), nn.Dropout(0.1), nn.Linear(1, 1))
    dubito.fit(net, (X, Y), dubito.ConcreteDropout(), steps=2, progress=False).save(tmp_path)
    held = dubito.load(tmp_path, nn.Sequential(*perceptron(), nn.Sequential(nn.Dropout(0.1)), nn.Linear(1, 1)))
    assert held.predict(X, draws=3).n_draws == 3
    other = dubito.load(tmp_path, nn.Sequential(*perceptron(), nn.Sequential(nn.Dropout(), nn.Dropout()), net[-1]))
    with pytest.raises(ValueError, match=r"1 rate.* learned but the network drops in 2 .*give the network that"):
        other.predict(X, draws=3)


@pytest.mark.parametrize(
    "change", [{"rates": 0.1}, {"rates": []}, {"rates": [[1.5]]}, {"rates": "x"}, {"dropout": "x"}, {"dropout": 2}]
)
def test_stored_rates_that_are_none_are_damaged(change, tmp_path):
    net = nn.Sequential(*perceptron(), nn.Dropout(0.1), nn.Linear(1, 1))
    dubito.fit(net, (X, Y), dubito.ConcreteDropout(), steps=2, progress=False).save(tmp_path)
    manifest = tmp_path / "posterior.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    with pytest.raises(Damaged, match="restore it or fit again"):
        dubito.load(tmp_path, net)


def test_the_history_tells_the_rates():
    told = []
    posterior = learned(X, Y, 0.3, steps=60, callback=told.append)
    assert told[-1]["rate/2.weight"] == pytest.approx(float(posterior.rates.mean()), rel=1e-5)


def test_rates_start_where_they_are_told_or_at_the_net_s_own():
    net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.4), nn.Linear(6, 5), nn.Dropout(0.2), nn.Linear(5, 2))
    for method, known in ((dubito.ConcreteDropout(), [0.4, 0.2]), (dubito.ConcreteDropout(rate=0.3), [0.3, 0.3])):
        target = prepared(net, method=method)
        state = method.init(target.net.theta().unsqueeze(0), target, Tick.at(0, 10))
        assert method.posterior(state, target).rates[0].tolist() == pytest.approx(known)


def test_convolutions_attention_and_norms_learn_too():
    images = torch.randn(12, 1, 6, 6, generator=torch.Generator().manual_seed(5))
    conv = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(48, 2)
    )
    block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
    block.self_attn.dropout = 0.0
    tokens = nn.Sequential(nn.Unflatten(1, (3, 4)), block, nn.Flatten(), nn.Linear(12, 2))
    for net, x in ((conv, images), (tokens, images.flatten(1)[:, :12])):
        posterior = dubito.fit(
            net, (x, torch.arange(12) % 2), "concrete_dropout", steps=6, members=2, device="cpu", progress=False
        )
        assert bool(torch.isfinite(posterior.predict(x, draws=4).probs).all())
        assert not torch.equal(posterior.rates, torch.full_like(posterior.rates, 0.1))


# -- refusals --------------------------------------------------------------------------------------------------


def test_what_cannot_be_learned_is_refused():
    with pytest.raises(ValueError, match="ConcreteDropout: relaxation must be positive, got 0"):
        dubito.ConcreteDropout(relaxation=0.0)
    with pytest.raises(ValueError, match="ConcreteDropout: rate must lie between 0 and 1"):
        dubito.ConcreteDropout(rate=1.0)
    selu = nn.Sequential(nn.Linear(4, 3), nn.SELU(), nn.AlphaDropout(0.1), nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"alpha dropout; put nn\.Dropout in its place"):
        dubito.ConcreteDropout().prepare(Net(selu), X)
    silent = nn.Sequential(nn.Linear(4, 3), nn.Dropout(1.0), nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"own rate 1\.0; give rate=0\.1"):
        dubito.ConcreteDropout().prepare(Net(silent), X)
    assert dubito.ConcreteDropout(rate=0.1).prepare(Net(silent), X).sites(X)


def test_the_plan_says_which_weights_a_rate_belongs_to():
    notes = dubito.plan(perceptron(), dubito.ConcreteDropout(), example=X[:1]).notes
    assert notes == ("dropout 0.1 on a tensor of shape (1, 3) before 2.weight: on while training",)
