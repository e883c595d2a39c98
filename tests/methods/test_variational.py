"""Variational inference: the known answer first, then what each setting means."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal

import dubito
from dubito import schedules
from dubito.config import from_dict, to_dict
from dubito.net import Net
from dubito.priors import Point
from dubito.schedules import Cosine, WarmUp
from dubito.target import Batch, FlatPrior, Target
from dubito.tick import Tick

ESTIMATORS = ["local", "weights", "flipout"]
NOISE, PRIOR = 0.5, 0.7


def conjugate(bias: bool = True):
    """y = x w + b + noise, with inputs that are correlated and of different scales."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(40, 3, generator=g) @ torch.tensor([[1.0, 0.6, 0.0], [0.0, 0.8, 0.3], [0.0, 0.0, 0.5]])
    y = x @ torch.tensor([0.7, -0.4, 0.2]) + 0.3 * bias + NOISE * torch.randn(40, generator=g)
    net = nn.Linear(3, 1, bias=bias)
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    design = torch.cat([x, torch.ones(40, 1)], 1).double() if bias else x.double()
    precision = design.T @ design / NOISE**2 + torch.eye(design.shape[1], dtype=torch.float64) / PRIOR**2
    mean = torch.linalg.solve(precision, design.T @ y.double() / NOISE**2)
    return net, x, y, mean, precision


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_known_answer(estimator):
    net, x, y, mean, precision = conjugate()
    posterior = dubito.fit(
        net, (x, y), dubito.Variational(
            estimator=estimator, draws=512, init_std=0.1, learning_rate=0.01, schedule="cosine"
        ),
        likelihood=dubito.Gaussian(std=NOISE), prior=dubito.Normal(std=PRIOR), steps=1000, batch_size=40,
        device="cpu", progress=False,
    )  # fmt: skip
    sd = torch.linalg.inv(precision).diagonal().sqrt()
    assert float(((posterior.mean[0] - mean) / sd).abs().max()) < 0.05
    assert float((posterior.std[0].double().square() * precision.diagonal() - 1).abs().max()) < 0.02


X = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randint(3, (30,), generator=torch.Generator().manual_seed(2))


def perceptron() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def fit(method=None, net=None, data=(X, Y), **options):
    method = method or dubito.Variational(learning_rate=0.01)
    settings = {"steps": 20, "batch_size": 10, "device": "cpu", "progress": False, **options}
    return dubito.fit(net or perceptron(), data, method, **settings)


def same(a, b) -> bool:
    return torch.equal(a.mean, b.mean) and torch.equal(a.std, b.std)


# -- one step by hand ------------------------------------------------------------------------------------------

CASES = {
    "uniform": {},
    "three draws": {"draws": 3},
    "tempered": {"temperature": 0.5},
    "warming up": {"kl": WarmUp(4)},
    "blundell": {"kl": "blundell"},
    "mixture": {"draws": 2, "prior": dubito.ScaleMixture(0.5, 1.0, 0.1)},
}


@pytest.mark.parametrize("case", CASES)
def test_one_step_in_weight_space_by_hand(case):
    """A bound written out with torch's own distributions, and differentiated by torch, gives the same update."""
    options = {"draws": 1, "kl": "uniform", "temperature": 1.0, "prior": dubito.Normal(0.8), **CASES[case]}
    module, step, rate = nn.Linear(4, 1), 1, 0.1
    prior = {"weight": options["prior"], "bias": Point()}
    target = Target(Net(module), dubito.Gaussian.learned(), prior, 30, options["temperature"])
    method = dubito.Variational(
        estimator="weights", optimiser="sgd", momentum=0.0, learning_rate=rate, init_std=0.3,
        draws=options["draws"], kl=options["kl"],
    )  # fmt: skip
    start = target.start(target.net.theta().unsqueeze(0))
    state = method.init(start, target, Tick.at(0, 9))
    q = state.q.clone().squeeze(0)
    tick, batch = Tick.at(step, 9, seed=5), Batch(X[:10], X[:10].sum(1), torch.arange(10))
    moved, info = method.step(state, batch, target, tick)

    mean, log_std = (half.clone().requires_grad_() for half in q.chunk(2))
    std = log_std.exp()
    eps = tick.rng.child("variational").normal_(torch.empty(1, options["draws"], 6), "weights")[0]
    theta = mean + std * eps
    assert theta.shape == (options["draws"], 6) and not std[4:].any()
    outputs = batch.x @ theta[:, :4].T + theta[:, 4]
    name = next(iter(target.likelihood.parameters()))
    noise = target.likelihood.bind({name: mean[5:].view(target.noise_layout.shapes[0])})
    fit = -torch.stack([noise.log_prob(o.unsqueeze(1), batch.y) for o in outputs.T]).mean()
    if isinstance(options["prior"], dubito.Normal):
        energy = -Normal(0.0, 0.8).log_prob(mean[:4]).sum() + (std[:4].square() / (2 * 0.8**2)).sum()
    else:
        energy = -options["prior"].log_prob(theta[:, :4]).sum(1).mean()
    energy = energy - Normal(0.0, 1.0).log_prob(mean[5:]).sum()
    entropy = Normal(mean[:4], std[:4]).entropy().sum()
    share = {"warming up": 2 / 4, "blundell": 3 * 2 / 7}.get(case, 1.0)
    loss = fit / options["temperature"] + share * (energy / options["temperature"] - entropy) / 30
    by_mean, by_log_std = torch.autograd.grad(loss, (mean, log_std))
    by_log_std[4:] = 0
    torch.testing.assert_close(moved.q[0], q - rate * torch.cat([by_mean, by_log_std]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(info.fit, fit.detach().view(1))
    torch.testing.assert_close(info.complexity, ((energy - entropy) / 30).detach().view(1))


# -- settings --------------------------------------------------------------------------------------------------


def test_what_is_no_setting_is_refused():
    for wrong, match in [
        ({"estimator": "loco"}, "unknown estimator 'loco'; use 'local', 'weights' or 'flipout'"),
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"init_std": 0.0}, "init_std must be positive"),
        ({"init_std": "small"}, "init_std must be positive, got 'small'"),
        ({"kl": "half"}, "kl is 'half'; use 'uniform'"),
        ({"kl": WarmUp(5, Cosine())}, "which end at 1"),
        ({"empirical_bayes": "all"}, "empirical_bayes is 'all'; use 'global', 'layer' or None"),
    ]:
        with pytest.raises(ValueError, match=match):
            dubito.Variational(**wrong)
    with pytest.raises(ValueError, match="nothing is random; give one a prior, or use MAP"):
        fit(prior={"*": dubito.Point()})
    with pytest.raises(ValueError, match=r"learns the scales of normal priors, and there is none"):
        fit(dubito.Variational(empirical_bayes="global"), prior=dubito.Laplace(1.0))


def test_settings_survive_a_dictionary_and_back():
    method = dubito.Variational(estimator="flipout", draws=3, kl=WarmUp(7), empirical_bayes="layer", schedule="cosine")
    known = {"Variational": dubito.Variational, "WarmUp": WarmUp, "Constant": schedules.Constant}
    assert from_dict(to_dict(method), known) == method
    assert method.depends_on_steps and not dubito.Variational(kl=WarmUp(7)).depends_on_steps


# -- a fit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_several_members_and_draws_resume_and_leave_the_generator_alone(estimator, tmp_path):
    method = dubito.Variational(estimator=estimator, draws=2, learning_rate=0.01)
    before = torch.get_rng_state()
    straight = fit(method, members=2, folder=tmp_path / "a")
    fit(method, members=2, steps=9, folder=tmp_path / "b")
    assert same(fit(method, members=2, folder=tmp_path / "b"), straight)
    assert same(fit(method, members=2, folder=tmp_path / "a"), straight)
    assert torch.equal(before, torch.get_rng_state())
    alone = fit(method)
    torch.testing.assert_close(alone.mean[0], straight.mean[0], rtol=1e-4, atol=1e-5)
    assert not torch.equal(straight.mean[0], straight.mean[1])
    assert dubito.load(tmp_path / "a", perceptron(), device="cpu").predict(X).probs.shape == (30, 3)


def test_it_starts_at_the_modules_own_weights():
    net = perceptron()
    posterior = fit(dubito.Variational(learning_rate=1e-9, init_std=0.02), net, steps=1)
    torch.testing.assert_close(posterior.mean[0], torch.cat([p.detach().flatten() for p in net.parameters()]))
    torch.testing.assert_close(posterior.std, torch.full_like(posterior.std, 0.02))


def test_validation_chooses_and_stops():
    records = []
    posterior = fit(
        dubito.Variational(learning_rate=0.3), steps=300, validation=(X, Y), patience=3, callback=records.append
    )
    assert records[-1]["step"] < 300
    assert len(fit(members=2, steps=40, validation=(X, Y))) == 2
    outputs = posterior.mean_network()(X).detach()
    best = min(r["validation"] for r in records if "validation" in r)
    assert float(nn.functional.cross_entropy(outputs, Y)) == pytest.approx(best, rel=1e-5)


def test_points_and_fixed_parameters_have_no_spread():
    net = perceptron()
    prior = {"0.weight": dubito.Fixed(), "*bias": dubito.Point()}
    posterior = fit(net=net, prior=prior)
    std = posterior.net.layout.split(posterior.std)
    assert not std["0.bias"].any() and not std["2.bias"].any() and bool((std["2.weight"] > 0).all())
    drawn = posterior.sample(5)
    assert bool((drawn["0.weight"] == net[0].weight).all())
    assert bool((drawn["2.bias"] == drawn["2.bias"][0]).all()) and not torch.equal(drawn["2.bias"][0], net[2].bias)
    assert len(drawn["2.weight"].unique()) == 5 * 18


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_learned_noise_is_a_point_and_finds_the_noise(estimator):
    x = torch.linspace(-1, 1, 200).unsqueeze(1)
    y = 0.5 * x.squeeze(1) + 0.2 * torch.randn(200, generator=torch.Generator().manual_seed(0))
    method = dubito.Variational(estimator=estimator, learning_rate=0.03, schedule="cosine")
    posterior = fit(method, nn.Linear(1, 1), (x, y), steps=400, batch_size=100)
    prediction = posterior.predict(x, draws=20)
    assert float(prediction.aleatoric.sqrt().mean()) == pytest.approx(0.2, rel=0.15)
    assert float(posterior.std[0, -1]) == 0


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_batch_norm_moves_with_the_average_over_draws(estimator):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    method = dubito.Variational(estimator=estimator, draws=3, init_std=1e-6, learning_rate=1e-9)
    posterior = fit(method, net, steps=1, batch_size=30, members=1)
    hidden = net[0](X).detach()
    torch.testing.assert_close(posterior.buffers["1.running_mean"][0], 0.1 * hidden.mean(0), rtol=1e-4, atol=1e-5)
    assert posterior.buffers["1.num_batches_tracked"].tolist() == [1]
    assert not net[1].running_mean.any()


def test_dropout_in_the_net_is_off():
    class Dropped(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.attend = nn.MultiheadAttention(4, 2, dropout=p, batch_first=True)
            self.drop, self.head = nn.Dropout(p), nn.Linear(4, 3)

        def forward(self, x):
            x = x.unsqueeze(1).repeat(1, 2, 1)
            return self.head(self.drop(self.attend(x, x, x, need_weights=False)[0].mean(1)))

    nets = [Dropped(p) for p in (0.0, 0.7)]
    nets[1].load_state_dict(nets[0].state_dict())
    assert same(*(fit(net=net, steps=5) for net in nets))


# -- priors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [dubito.ScaleMixture(0.25, 1.0, 0.01), dubito.Laplace(0.5), dubito.StudentT(3.0)])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_prior_works_with_every_estimator(prior, estimator):
    posterior = fit(dubito.Variational(estimator=estimator, draws=2), prior=prior, members=2)
    assert bool(torch.isfinite(posterior.mean).all()) and bool((posterior.std > 0).all())


def test_a_prior_centred_on_a_trained_net_costs_nothing_there():
    records = []
    method = dubito.Variational(init_std=0.1, learning_rate=1e-9)
    fit(method, prior=dubito.Centred(std=0.1), steps=1, callback=records.append)
    assert records[0]["complexity"] == pytest.approx(0.0, abs=1e-5)
    fit(method, prior=dubito.Normal(std=0.1), steps=1, callback=records.append)
    assert records[1]["complexity"] > 1


def test_empirical_bayes_finds_the_scale_the_weights_have():
    g = torch.Generator().manual_seed(0)
    x, w = torch.randn(400, 40, generator=g), 0.3 * torch.randn(40, generator=g)
    data = (x, x @ w + 0.1 * torch.randn(400, generator=g))
    method = dubito.Variational(learning_rate=0.02, schedule="cosine", empirical_bayes="global")
    fitted = [
        fit(method, nn.Linear(40, 1, bias=False), data, prior=dubito.Normal(std), likelihood=dubito.Gaussian(0.1),
            steps=600, batch_size=400)
        for std in (0.1, 5.0)
    ]  # fmt: skip
    for posterior, std in zip(fitted, (0.1, 5.0), strict=True):
        ((scale,),) = posterior.about["prior_scales"].values()
        assert scale * std == pytest.approx(float(w.square().mean().sqrt()), rel=0.05)
    torch.testing.assert_close(fitted[0].mean, fitted[1].mean, rtol=1e-3, atol=1e-3)


def test_empirical_bayes_learns_a_scale_for_each_layer():
    """At the optimum it is the root mean square of what the prior's scales have made of weight and bias together."""
    prior = {"0.*": dubito.Normal(0.5), "2.weight": dubito.Normal(2.0), "2.bias": dubito.Laplace(1.0)}
    layered = fit(dubito.Variational(empirical_bayes="layer"), prior=prior, members=2)
    found = layered.about["prior_scales"]
    assert list(found) == ["0", "2"]
    second = layered.net.layout.split(layered.mean.square() + layered.std.square())
    first = torch.cat([second["0.weight"].flatten(1), second["0.bias"]], dim=1).mean(1).sqrt() / 0.5
    torch.testing.assert_close(torch.tensor(found["0"]), first)
    torch.testing.assert_close(torch.tensor(found["2"]), second["2.weight"].flatten(1).mean(1).sqrt() / 2)


def test_posterior_as_prior_is_bayes_rule_in_two_halves():
    """With orthogonal inputs the mean-field posterior is exact, so two halves in turn must give what all data give."""
    g = torch.Generator().manual_seed(4)
    half = torch.linalg.qr(torch.randn(20, 3, generator=g))[0] * 4
    x = torch.cat([half, half])
    y = x @ torch.tensor([0.5, -1.0, 0.2]) + NOISE * torch.randn(40, generator=g)
    net = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(net.weight)
    method = dubito.Variational(draws=64, init_std=0.1, learning_rate=0.01, schedule="cosine")
    options = {"likelihood": dubito.Gaussian(NOISE), "steps": 500, "batch_size": 20}
    first = fit(method, net, (x[:20], y[:20]), prior=dubito.Normal(PRIOR), **options)
    second = fit(method, net, (x[20:], y[20:]), prior=first.as_prior(), **options)
    precision = (x.T @ x).diagonal() / NOISE**2 + PRIOR**-2
    mean = x.T @ y / NOISE**2 / precision
    assert float(((second.mean[0] - mean) * precision.sqrt()).abs().max()) < 0.1
    torch.testing.assert_close(second.std[0].square() * precision, torch.ones(3), rtol=0.05, atol=0.0)


# -- alpha-divergences -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_fit_of_an_alpha_divergence_is_closed_in_a_linear_model(estimator, alpha):
    """1/alpha log E_q[N(y; x w, s^2)^alpha] is a Gaussian integral: the average of log N(y; x m, s^2) at alpha = 0."""
    noise, spread, draws = 0.5, 0.2, 20_000
    module = nn.Linear(4, 1, bias=False)
    nn.init.constant_(module.weight, 0.8)
    target = Target(Net(module), dubito.Gaussian(noise), {"weight": dubito.Normal(1.0)}, 30)
    method = dubito.Variational(
        estimator=estimator, alpha=alpha, draws=draws, init_std=spread, optimiser="sgd", momentum=0.0, learning_rate=1.0
    )
    theta = target.net.theta().unsqueeze(0)
    x, y = X[:5], X[:5].sum(1)
    state = method.init(theta, target, Tick.at(0, 9))
    moved, info = method.step(state, Batch(x, y, torch.arange(5)), target, Tick.at(0, 9, seed=1))

    def loss(mean, std):
        error, variance = (y - x @ mean).square(), x.square() @ std.square()
        base = -0.5 * torch.log(torch.tensor(2 * torch.pi * noise**2))
        if alpha == 0:
            return -(base - 0.5 * (error + variance) / noise**2).mean()
        total = noise**2 / alpha + variance
        joined = (noise**2 / alpha / total).log() / 2 - error / (2 * total)
        return -(base + joined / alpha).mean()

    mean, std = theta[0].clone().requires_grad_(), torch.full((4,), spread, requires_grad=True)
    fit = loss(mean, std)
    assert float(info.fit) == pytest.approx(float(fit.detach()), abs=0.01)
    (by_mean,) = torch.autograd.grad(fit, mean)
    step = theta[0] - moved.mean[0]
    prior = theta[0] / 30
    torch.testing.assert_close(step, by_mean + prior, rtol=0.03, atol=0.02)


def test_alpha_needs_several_draws():
    with pytest.raises(ValueError, match=r"alpha=0.5 joins several draws, and there is draws=1; try draws=10"):
        dubito.Variational(alpha=0.5)
    assert len(fit(dubito.Variational(alpha=0.5, draws=3, estimator="weights"), members=2)) == 2


@pytest.mark.parametrize("noise", [dubito.Gaussian(0.5), dubito.Gaussian.learned()], ids=["given", "learned"])
def test_one_prior_for_all_is_no_other_bound(noise, monkeypatch):
    """The short way for one normal prior takes the steps of the long one, with points in the same prior too."""
    module = nn.Linear(3, 1)
    prior = dubito.Normal(1.0)
    data = (X[:40, :3], X[:40, :3].sum(1))

    def fitted():
        return dubito.fit(module, data, dubito.Variational(), likelihood=noise, prior=prior, steps=20, progress=False)

    short = fitted()
    monkeypatch.setattr(FlatPrior, "isotropic", None)
    long = fitted()
    torch.testing.assert_close(short.mean, long.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(short.std, long.std, rtol=1e-5, atol=1e-6)
