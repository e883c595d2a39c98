"""Draws as functions: the same at every call, on any batching, in any chunks, under a memory budget."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import dubito
from dubito import functions
from dubito.functions import aligned, plan_chunks, weights_at_a_time, widest, widths
from dubito.net import Net
from dubito.posteriors.storage import MemorySamples

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (12,), generator=torch.Generator().manual_seed(1))


def net(width: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))


POSTERIORS = {
    "point": dubito.MAP(),
    "ensemble": dubito.DeepEnsemble(),
    "chains": dubito.SGLD(burn_in=0, thin=1),
    "dropout": dubito.MCDropout(rate=0.3),
}


@pytest.mark.parametrize("name", POSTERIORS)
def test_draws_are_the_same_functions_however_they_are_called(name):
    posterior = dubito.fit(net(), (X, Y), POSTERIORS[name], steps=9, progress=False)
    drawn = posterior.draw(5, seed=3)
    whole = drawn(X)
    assert whole.shape == (drawn.n, 12, 3)
    assert torch.equal(whole, posterior.draw(5, seed=3)(X))
    torch.testing.assert_close(torch.cat([drawn(x) for x in X.split(5)], 1), whole)
    torch.testing.assert_close(torch.cat([part(X) for part in drawn.chunks(2)]), whole)
    again = torch.cat([small(X) for part in drawn.chunks(3) for small in part.chunks(2)])
    torch.testing.assert_close(again, whole)
    torch.testing.assert_close(drawn(X.flip(0)).flip(1), whole)


def test_noise_goes_with_its_draw():
    posterior = dubito.fit(net(), (X, X[:, :3]), dubito.SGLD(burn_in=0, thin=1), steps=9, progress=False)
    drawn = posterior.draw(4, seed=1)
    parts = [part.noise()["raw_std"] for part in drawn.chunks(3)]
    assert torch.equal(torch.cat(parts), drawn.noise()["raw_std"])
    assert len(set(drawn.noise()["raw_std"].tolist())) == 4


def test_chunks_keep_to_their_budgets(monkeypatch):
    held = Net(net(width=64))
    wide = widest(held, X[:1])
    assert wide == (64 + 64) * 4
    monkeypatch.setattr(functions, "ACTIVATION_BYTES", 1 << 20)
    monkeypatch.setattr(functions, "WEIGHT_BYTES", 10 * held.layout.size * 4)
    posterior = dubito.fit(net(64), (X, Y), dubito.SGLD(burn_in=0, thin=1), steps=40, progress=False)
    for batch_size in (None, 7, 100):
        plan = plan_chunks(posterior.draw(40), X[:1], batch_size)
        assert plan.draws <= weights_at_a_time(posterior.net) == 10
        assert plan.draws * plan.rows * wide <= 1 << 20
        assert batch_size in (None, plan.rows)


def test_dropout_draws_share_one_network_instead_of_copying_it(monkeypatch):
    posterior = dubito.fit(net(), (X, Y), dubito.MCDropout(rate=0.3), steps=2, progress=False)
    monkeypatch.setattr(functions, "WEIGHT_BYTES", 2 * posterior.net.layout.size * 4)
    sizes = []
    original = posterior.samples.get

    def get(index):
        sizes.append(len(index))
        return original(index)

    monkeypatch.setattr(posterior.samples, "get", get)
    assert posterior.predict(X, draws=50).n_draws == 50
    assert max(sizes) <= 2


def test_known_rows_leave_room_for_draws(monkeypatch):
    monkeypatch.setattr(functions, "ACTIVATION_BYTES", 1 << 20)
    posterior = dubito.fit(net(64), (X, Y), dubito.SGLD(burn_in=0, thin=1), steps=400, progress=False)
    wide = widest(posterior.net, X[:1])
    unknown, known = (plan_chunks(posterior.draw(400), X[:1], None, total) for total in (None, 12))
    assert unknown == ((1 << 20) // (wide * 2048), 2048) and known == ((1 << 20) // (wide * 12), 12)


def test_inputs_the_network_cannot_take_are_refused():
    with pytest.raises(ValueError, match=r"does not accept rows of \(5,\) float32"):
        widest(Net(net()), torch.randn(1, 5))
    held = Net(net())
    assert not any(m._forward_hooks for m in held.module.modules())


def test_vectors_begin_at_multiples_of_sixteen_bytes():
    theta = torch.randn(3, 10)
    padded = aligned(theta)
    assert torch.equal(padded, theta) and padded.stride() == (12, 1)
    assert aligned(padded) is padded and aligned(torch.randn(2, 8)).stride() == (8, 1)
    assert aligned(torch.randn(2, 5, dtype=torch.float64)).stride() == (6, 1)


def dropped(y):
    """One network with statistics and dropout of its own."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    return dubito.fit(module, (X, y), dubito.MCDropout(), steps=3, batch_size=6, progress=False)


def test_one_network_under_many_masks_equals_copies_of_it_under_them():
    made = dropped(X[:, :3])
    theta, buffers = made.samples.get([0] * 7)
    copies = MemorySamples(theta.unsqueeze(0), {name: buffer.unsqueeze(0) for name, buffer in buffers.items()})
    shared, apart = made.draw(7, seed=3), replace(made, samples=copies).draw(7, seed=3)
    assert shared.shares and not apart.shares
    torch.testing.assert_close(shared(X), apart(X))
    torch.testing.assert_close(torch.cat([part(X) for part in shared.chunks(3)]), apart(X))
    assert torch.equal(shared.noise()["raw_std"], apart.noise()["raw_std"])


def test_draws_of_one_network_go_together_and_rows_give_way(monkeypatch):
    made = dropped(Y)
    before, after = widths(made.net, X[:1])
    assert (before, after) == (16 * 4, 16 * 4)  # batch norm, and dropout
    monkeypatch.setattr(functions, "ACTIVATION_BYTES", 4 * (before + 10 * after))
    assert plan_chunks(made.draw(10), X[:1], None) == (10, 4)
    assert plan_chunks(made.draw(100), X[:1], None) == (43, 1)
    assert plan_chunks(made.draw(10), X[:1], 2) == (10, 2)
    assert plan_chunks(made.draw(10), X[:1], 5) == (7, 5)  # 5 (1 + 7) of 4 (1 + 10)
    assert plan_chunks(made.draw(10), X[:1], 500) == (1, 500)


def test_what_comes_before_the_first_mask_is_held_once(monkeypatch):
    module = nn.Sequential(nn.Conv1d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3), nn.Dropout(), nn.ReLU())
    made = dubito.fit(module, (X.unsqueeze(1), Y), dubito.MCDropout(), steps=1, progress=False)
    before, after = widths(made.net, X[:1].unsqueeze(1))
    assert (before, after) == (2 * 64 * 4, (4 + 3) * 4)  # the activation, and the network as a whole
    monkeypatch.setattr(functions, "ACTIVATION_BYTES", 5 * (before + 20 * after))
    assert plan_chunks(made.draw(20), X[:1].unsqueeze(1), None) == (20, 5)


@pytest.mark.parametrize(
    "after",
    [
        [nn.Dropout2d(0.3), nn.Conv2d(4, 2, 3)],
        [nn.Dropout(0.3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 2, 1)],
        [nn.FeatureAlphaDropout(0.3), nn.Flatten(), nn.BatchNorm1d(64)],
    ],
)
def test_layers_behind_dropout_that_count_axes(after):
    module = nn.Sequential(nn.Conv2d(1, 4, 3), *after, nn.Flatten(), nn.LazyLinear(3))
    x = torch.randn(12, 1, 6, 6)
    module(x)
    for members, rate in ((1, None), (2, 0.2)):
        made = dubito.fit(module, (x, Y), dubito.MCDropout(rate=rate), steps=2, members=members, progress=False)
        whole = made.predict(x, draws=5).draws
        torch.testing.assert_close(made.predict(x, draws=5, batch_size=5).draws, whole)


@pytest.mark.parametrize("rate", [None, 0.3])
def test_measuring_a_network_leaves_it_and_the_global_generator_as_they_were(rate):
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.RReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    held, state = Net(module, dropout=rate), torch.get_rng_state()
    before = {name: buffer.clone() for name, buffer in held.module.named_buffers()}
    assert min(widths(held, X[:1])) > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(buffer, before[name]) for name, buffer in held.module.named_buffers())


@pytest.mark.parametrize("dropout", [nn.Dropout, nn.Dropout2d, nn.FeatureAlphaDropout])
@pytest.mark.parametrize("rate", [None, 0.3])
def test_dropout_before_layers_that_mind_the_number_of_axes(dropout, rate):
    maps = nn.Sequential(nn.Conv2d(1, 4, 3), dropout(0.5), nn.Conv2d(4, 2, 2), nn.Flatten(), nn.Linear(18, 3))
    assert min(widths(Net(maps, dropout=rate), torch.rand(1, 1, 6, 6))) > 0


def test_dropout_before_a_recurrent_layer():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout, self.lstm = nn.Dropout(0.5), nn.LSTM(4, 3, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(self.dropout(x))[0][:, -1]

    assert min(widths(Net(Recurrent()), torch.rand(1, 5, 4))) > 0


def test_masks_are_made_once_for_batches_of_one_shape(monkeypatch):
    drawn, asked = dropped(Y).draw(6, seed=2), []
    original = Net.masks
    monkeypatch.setattr(Net, "masks", lambda *args, **kwargs: asked.append(1) or original(*args, **kwargs))
    parts = [drawn(x) for x in X.split(5)]  # 5, 5 and 2 rows
    assert len(asked) == 2
    torch.testing.assert_close(torch.cat(parts, 1), drawn(X))


def test_draws_have_gradients_after_a_call_in_inference_mode():
    drawn, x = dropped(Y).draw(6, seed=2), X.clone().requires_grad_()
    with torch.inference_mode():
        held = drawn(x)
    again = drawn(x)
    again.sum().backward()
    torch.testing.assert_close(again, held.clone())
    assert x.grad is not None and bool(x.grad.any())
