"""A module as a function of theta: equal to the module itself, and what it refuses."""

import copy
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import dubito
from dubito.net import Net


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def normed(norm: type = nn.BatchNorm1d, **settings: object) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), norm(6, **settings), nn.ReLU(), nn.Linear(6, 3))


class Locked(nn.Linear):
    """Holds what cannot be copied."""

    def __init__(self):
        super().__init__(4, 3)
        self.lock = threading.Lock()


X = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randint(3, (10,), generator=torch.Generator().manual_seed(2))


class Counting(nn.Module):
    """Moves one buffer in place and replaces another, in training only."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x):
        out = self.head(x)
        if self.training:
            self.seen += len(x)
            self.largest = torch.maximum(self.largest, out.detach().abs().max())
        return out + 0 * self.largest


class TwoNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def test_theta_is_the_modules_own_and_gives_its_outputs():
    module = perceptron()
    net = Net(module)
    assert net.layout.names == tuple(n for n, _ in module.named_parameters())
    assert torch.equal(net.theta(), torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(net(net.theta(), X), module(X).detach())


def test_many_gives_each_vector_its_own_outputs():
    net = Net(perceptron())
    thetas = torch.stack([net.theta(), 2 * net.theta(), torch.zeros_like(net.theta())])
    outputs = net.many(thetas, X)
    expected = torch.stack([net.network(theta)(X).detach() for theta in thetas])
    torch.testing.assert_close(outputs, expected)
    assert not outputs[2].any()


def test_a_network_made_from_a_vector_is_plain_and_independent():
    net = Net(perceptron().train())
    theta = torch.randn_like(net.theta())
    made = net.network(theta)
    assert not made.training and all(p.requires_grad for p in made.parameters())
    torch.testing.assert_close(made(X).detach(), net(theta, X))
    nn.init.zeros_(made[0].weight)
    assert net.theta().abs().sum() > 0


def test_tied_weights_are_one_stretch_of_theta():
    tied = TwoNames()
    net = Net(tied)
    assert net.layout.names == ("first.weight", "first.bias")
    theta = torch.randn(20)
    made = net.network(theta)
    assert made.first is made.second
    torch.testing.assert_close(net(theta, X), made(X).detach())
    assert all(isinstance(p, nn.Parameter) for p in net.module.parameters())
    assert torch.equal(net.theta(), Net(tied).theta())


def test_parameters_kept_fixed_are_no_part_of_theta():
    module = perceptron()
    net = Net(module, fixed=["0.weight", "0.bias"])
    assert net.layout.names == ("2.weight", "2.bias")
    assert torch.equal(net.constants()["0.weight"], module[0].weight)
    expected = module[2].bias.detach().expand(10, 3)
    zeroed = net.theta().clone()
    zeroed[:24] = 0
    assert torch.equal(net(zeroed, X), expected)


def test_gradients_of_the_user_are_not_carried_along_and_not_lost():
    module = perceptron()
    module(X).sum().backward()
    grads = [p.grad.clone() for p in module.parameters()]
    net = Net(module)
    net(net.theta().requires_grad_(), X).sum().backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(module.parameters(), grads, strict=True))


# -- running statistics ----------------------------------------------------------------------------------------


def test_live_statistics_belong_to_each_member():
    module = normed()
    net = Net(module)
    thetas = torch.stack([net.theta(), net.theta() * 2])
    buffers = net.buffers(2)
    net.many(thetas, X, "train", buffers)
    for i, theta in enumerate(thetas):
        plain = net.network(theta).train()
        plain(X)
        for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
            torch.testing.assert_close(buffers[name][i], plain.state_dict()[name])
    assert not torch.equal(buffers["1.running_mean"][0], buffers["1.running_mean"][1])
    assert torch.equal(net.module[1].running_mean, torch.zeros(6))


def test_training_without_given_statistics_leaves_the_private_copy_alone():
    net = Net(normed())
    before = net(net.theta(), X)
    net(net.theta(), X, "train")
    assert torch.equal(net(net.theta(), X), before)


def test_statistics_stay_frozen_for_samplers_and_live_for_optimisers():
    module = normed().train()
    module(X)
    frozen = {n: b.clone() for n, b in module.named_buffers()}
    chain = dubito.fit(module, (X, Y), dubito.SGLD(burn_in=0, thin=1), steps=3, progress=False)
    made = chain.mean_network()
    assert all(torch.equal(b, frozen[n]) for n, b in made.named_buffers())
    trained = dubito.fit(module, (X, Y), "map", steps=3, progress=False).mean_network()
    assert int(trained[1].num_batches_tracked) == int(frozen["1.num_batches_tracked"]) + 3
    assert all(torch.equal(b, frozen[n]) for n, b in module.named_buffers())


def test_a_sampler_refuses_statistics_that_never_saw_data():
    with pytest.raises(ValueError, match=r"'1' has never seen data .* batch-free norm such as nn\.GroupNorm"):
        dubito.fit(normed(), (X, Y), "sgld", steps=3, progress=False)
    dubito.fit(normed(nn.LayerNorm), (X, Y), dubito.SGLD(burn_in=0, thin=1), steps=3, progress=False)


@pytest.mark.parametrize("method", ["map", "deep_ensemble", "mc_dropout"])
def test_batch_norm_statistics_survive_disk_for_every_member(method, tmp_path):
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 3))
    posterior = dubito.fit(module, (X, Y), method, steps=20, members=3, batch_size=5, progress=False)
    posterior.save(tmp_path / "p")
    again = dubito.load(tmp_path / "p", module)
    assert torch.equal(again.predict(X).draws, posterior.predict(X).draws)
    _, buffers = again.samples.get([0, 1, 2])
    assert buffers["1.running_mean"].shape == (3, 6)
    assert len({tuple(row.tolist()) for row in buffers["1.running_mean"]}) == 3
    assert buffers["1.num_batches_tracked"].tolist() == [20, 20, 20]


def test_instance_norm_with_running_statistics_is_live_too():
    module = nn.Sequential(
        nn.Conv1d(1, 2, 3), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(), nn.Linear(4, 3)
    )
    x = torch.randn(10, 1, 4)
    fitted = dubito.fit(module, (x, Y), "map", steps=3, progress=False)
    assert fitted.mean_network()[1].running_mean.any()
    assert not module[1].running_mean.any()
    with pytest.raises(ValueError, match="never seen data"):
        dubito.fit(module, (x, Y), "sgld", steps=3, progress=False)


def test_cumulative_batch_norm_which_vmap_cannot_do_still_trains_several_members():
    module = normed(momentum=None)
    fitted = dubito.fit(
        module, (X, Y), "map", steps=4, members=2, batch_size=5, validation=(X[:5], Y[:5]), progress=False
    )
    assert fitted.samples.get([0])[1]["1.num_batches_tracked"].tolist() in ([2], [4])  # as validation chose


def test_batch_norm_without_statistics_is_refused():
    with pytest.raises(ValueError, match=r"'1' normalises by the batch even at prediction.*track_running_stats=True"):
        Net(normed(track_running_stats=False))


@pytest.mark.parametrize("members", [1, 2])
def test_any_buffer_that_moves_in_training_moves_for_each_member_alone(members, tmp_path):
    module = Counting()
    posterior = dubito.fit(
        module, (X, Y), "map", steps=6, members=members, batch_size=5, folder=tmp_path / "run", progress=False
    )
    _, buffers = posterior.samples.get(range(members))
    assert buffers["seen"].tolist() == [30.0] * members
    assert len(set(buffers["largest"].tolist())) == members
    assert float(module.seen) == 0 and float(module.largest) == 0


def test_spectral_norm_resumes_bit_for_bit(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 3))
    whole = dubito.fit(module, (X, Y), "map", steps=8, batch_size=5, progress=False)
    dubito.fit(module, (X, Y), "map", steps=4, batch_size=5, folder=tmp_path, progress=False)
    resumed = dubito.fit(module, (X, Y), "map", steps=8, batch_size=5, folder=tmp_path, progress=False)
    assert torch.equal(resumed.predict(X).probs, whole.predict(X).probs)
    dubito.fit(module, (X, Y), dubito.SGLD(burn_in=0, thin=1), steps=3, progress=False)


# -- parametrisations, laziness, types -------------------------------------------------------------------------


def test_parametrised_weights_are_fitted_in_their_own_coordinates(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 3))
    posterior = dubito.fit(module, (X, Y), dubito.SGLD(burn_in=0, thin=1), steps=3, progress=False)
    assert "0.parametrizations.weight.original0" in posterior.sample(1)
    posterior.save(tmp_path / "p")
    assert torch.equal(dubito.load(tmp_path / "p", module).predict(X).probs, posterior.predict(X).probs)


def test_a_module_with_graph_tensors_gets_the_cure():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = nn.utils.weight_norm(nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"cannot be copied .* part of a graph"):
        Net(module)


def test_lazy_layers_want_one_pass_first():
    module = nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"lazy layers .* run one forward pass"):
        dubito.fit(module, (X, Y), "map", steps=2, progress=False)
    module(X)
    assert len(dubito.fit(module, (X, Y), "map", steps=2, progress=False)) == 1


def test_mixed_weight_types_are_refused():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3).double())
    with pytest.raises(ValueError, match=r"mixes weight types .* net\.float\(\)"):
        Net(module)


def test_outputs_that_are_no_tensor_are_refused():
    with pytest.raises(ValueError, match=r"returned tuple, not a tensor; wrap it"):
        dubito.fit(nn.LSTM(4, 3, batch_first=True), (X.unsqueeze(1), Y), "map", steps=2, progress=False)


def test_a_module_with_its_own_copying_and_hooks_keeps_them():
    module = perceptron()
    module.register_forward_hook(lambda m, args, out: out * 2)
    net = Net(module)
    torch.testing.assert_close(net(net.theta(), X), module(X).detach())


def test_the_module_is_the_same_after_a_failed_fit():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            if self.training:
                raise RuntimeError("out of coffee")
            return self.head(x)

    module = Fails()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises((RuntimeError, ValueError), match="out of coffee"):
        dubito.fit(module, (X, Y), "map", steps=2, progress=False)
    assert module.training and all(torch.equal(before[n], v) for n, v in module.state_dict().items())


def test_inputs_of_several_shapes_run_through_one_net():
    net = Net(nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2, 3)))
    thetas = torch.stack([net.theta(), net.theta() + 1])
    for length in (4, 9):
        x = torch.randn(5, 1, length)
        torch.testing.assert_close(net.many(thetas, x)[1], F.linear(*_last_layer(net, thetas[1], x)))


def _last_layer(net: Net, theta: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made = net.network(theta)
    return made[:3](x).detach(), made[3].weight.detach(), made[3].bias.detach()


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_dropout_in_a_fused_call_draws_though_no_global_generator_moves(rate, monkeypatch):
    monkeypatch.setattr("dubito.net.drew", lambda device, f: f() is None)
    net = nn.Sequential(nn.Linear(4, 4), nn.TransformerEncoderLayer(4, 2, 8, dropout=rate))
    assert Net(net).draws(X) == (rate > 0)


def test_a_module_that_cannot_be_copied_is_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"cannot be copied \(cannot pickle '_thread.lock' object\); keep what cannot"):
        Net(Locked())


class Remembers(nn.Module):
    """Keeps what it last saw in plain attributes, as modules that show their attention do."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.last, self.scale = nn.Linear(3, 4), nn.Linear(4, 2), None, torch.ones(4)

    def forward(self, x):
        self.last = torch.tanh(self.body(x)) * self.scale
        self.seen = [self.last.mean()]
        return self.head(self.last)


@pytest.mark.parametrize("method", ["map", "variational", "mc_dropout", "sgld"])
def test_what_a_forward_pass_leaves_in_a_module_is_not_copied(method):
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    chosen = dubito.SGLD(burn_in=0, thin=2) if method == "sgld" else method
    posterior = dubito.fit(
        Remembers(), (x, (x[:, 0] > 0).long()), chosen, members=2, steps=4, progress=False, device="cpu"
    )
    posterior.predict(x, draws=4)
    if method != "sgld":
        network = posterior.member(0).mean_network()
        assert network.last is None and not hasattr(network, "seen") and bool((network.scale == 1).all())
        assert network(x).shape == (12, 2)
    assert posterior.net.with_dropout(0.2)(posterior.net.theta(), x).shape == (12, 2)
