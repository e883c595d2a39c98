"""Dropout under our own masks: where it is, what it keeps, and that a draw is a function."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dubito
from dubito.dropout import Site, make_masks, make_uniforms
from dubito.net import Net
from dubito.rng import Rng

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randint(3, (30,), generator=torch.Generator().manual_seed(2))


def dropped(p: float = 0.5) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(p), nn.Linear(16, 3))


class Folded(nn.Module):
    """Dropout where batch and positions share an axis, and where the batch is not first."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        h = F.dropout(torch.relu(self.inner(x.flatten(0, 1))), 0.5, self.training)
        h = F.dropout(h.view(*x.shape[:2], 6).transpose(0, 1), 0.25, self.training)
        return self.head(h.mean(0))


def test_sites_know_their_kind_rate_shape_and_batch_axis():
    net = Net(
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.Dropout2d(0.3), nn.Flatten(), nn.AlphaDropout(0.2), nn.Linear(27, 3))
    )
    assert net.sites(torch.randn(5, 1, 5, 5)) == [
        Site("feature", 0.3, (1, 3, 1, 1), 0),
        Site("alpha", 0.2, (1, 27), 0, "4.weight", 27),
    ]
    folded = Net(Folded())
    assert folded.sites(torch.randn(5, 7, 4)) == [
        Site("element", 0.5, (7, 6), 0),
        Site("element", 0.25, (7, 1, 6), 1, "head.weight", 6),
    ]
    assert Net(dropped(0.0)).sites(X) == []


def test_masks_keep_the_right_share_and_the_right_scale():
    site = Site("element", 0.25, (1, 1000), 0)
    like = torch.empty(0)
    (mask,) = make_masks([site], make_uniforms([site], 2, 20, Rng(0), like, shared=False))
    assert mask.shape == (2, 20, 1000)
    assert mask.unique().tolist() == pytest.approx([0, 4 / 3])
    share = float((mask > 0).float().mean())
    assert abs(share - 0.75) < 5 * math.sqrt(0.75 * 0.25 / mask.numel())
    (shared,) = make_masks([site], make_uniforms([site], 2, 20, Rng(0), like, shared=True), 20)
    assert shared.shape == (2, 1, 1000)


def test_training_masks_differ_between_rows_members_and_sites():
    sites = [Site("element", 0.5, (1, 64), 0)] * 2
    first, second = make_masks(sites, make_uniforms(sites, 2, 3, Rng(0), torch.empty(0), shared=False))
    rows = [tuple(r.tolist()) for m in (first, second) for member in m for r in member]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("module", [nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3)])
def test_alpha_dropout_keeps_mean_and_variance(module):
    net = Net(nn.Sequential(module, nn.Identity()))
    x = torch.randn(40, 500, 4, generator=torch.Generator().manual_seed(0))
    masks = net.masks(x, 1, Rng(0), shared=False)
    out = net(net.theta(), x, "dropout", masks=[m[0] for m in masks])
    kept = out.numel() if isinstance(module, nn.AlphaDropout) else out.numel() / 4
    assert abs(float(out.mean())) < 8 / math.sqrt(kept)
    assert abs(float(out.var()) - 1) < 16 / math.sqrt(kept)


def test_plane_dropout_takes_whole_planes():
    net = Net(nn.Sequential(nn.Dropout2d(0.5), nn.Identity()))
    x = torch.ones(8, 6, 3, 3)
    (mask,) = net.masks(x, 1, Rng(0), shared=False)
    out = net(net.theta(), x, "dropout", masks=[mask[0]])
    assert set(out.flatten(2).mean(2).unique().tolist()) == {0.0, 2.0}


def test_dropout_is_off_in_evaluation_and_its_average_is_right():
    module = dropped()
    net = Net(module)
    assert torch.equal(net(net.theta(), X), module.eval()(X).detach())
    linear = Net(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)))
    masks = linear.masks(X, 4000, Rng(0), shared=True)
    outputs = linear.many(linear.theta().expand(4000, -1), X, "dropout", masks=masks)
    spread = outputs.std(0) / math.sqrt(4000)
    assert bool(((outputs.mean(0) - linear(linear.theta(), X)).abs() < 5 * spread + 1e-6).all())


@pytest.mark.parametrize("module", [dropped(), Folded(), nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))])
def test_a_draw_is_the_same_function_on_any_batching(module):
    x = X if not isinstance(module, Folded) else torch.randn(30, 5, 4)
    posterior = dubito.fit(module, (x, Y), "mc_dropout", steps=5, progress=False)
    whole = posterior.predict(x, draws=6, batch_size=30).draws
    for batch_size in (1, 7):
        torch.testing.assert_close(posterior.predict(x, draws=6, batch_size=batch_size).draws, whole)
    turned = posterior.predict(x.flip(0), draws=6).draws.flip(1)
    torch.testing.assert_close(turned, whole)
    assert float(whole.std(0).max()) > 1e-3


class Stacked(nn.Module):
    """Halves of the inputs one below the other: all first ones, then all second ones, or with `turns` in between."""

    def __init__(self, turns: int = 1):
        super().__init__()
        self.body, self.head, self.turns = nn.Linear(2, 6), nn.Linear(12 * turns, 3), turns

    def forward(self, x):
        halves = torch.cat([x[:, :2], x[:, 2:]]).repeat_interleave(self.turns, 0)
        h = torch.tanh(self.body(halves) * torch.arange(1.0, self.turns + 1).repeat(2 * len(x)).unsqueeze(1))
        h = F.dropout(h, 0.5, self.training).unflatten(0, (2, -1, self.turns))
        return self.head(h.transpose(0, 1).flatten(1))


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("members", [1, 2])
def test_examples_whose_places_do_not_lie_together_have_the_same_masks(members, turns):
    posterior = dubito.fit(Stacked(turns), (X, Y), "mc_dropout", steps=5, members=members, progress=False)
    assert [(site.batch_axis, site.run) for site in posterior.net.known_sites] == [(0, turns)]
    whole = posterior.predict(X, draws=6).draws
    for batch_size in (1, 7):
        torch.testing.assert_close(posterior.predict(X, draws=6, batch_size=batch_size).draws, whole)
    torch.testing.assert_close(posterior.predict(X.flip(0), draws=6).draws.flip(1), whole)


class Running(nn.Module):
    """Inputs less a running mean of its own, which moves in training; optionally it drops in the same forward."""

    def __init__(self, drops: bool):
        super().__init__()
        self.body, self.head, self.drops = nn.Linear(4, 8), nn.Linear(8, 3), drops
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        h = torch.relu(self.body(x - self.mean))
        return self.head(F.dropout(h, 0.3, self.training) if self.drops else h)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("made", ["running", "both", "spectral"])
def test_buffers_that_move_in_training_rest_when_masks_are_drawn(made, members, tmp_path):
    spectral = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 3))
    module = spectral if made == "spectral" else Running(drops=made == "both")
    settings = {"init": lambda seed: copy.deepcopy(module)} if members > 1 else {}
    posterior = dubito.fit(module, (X, Y), "mc_dropout", members=members, steps=5, progress=False, **settings)
    posterior.save(tmp_path / "p")
    first = posterior.predict(X, draws=6).draws
    assert float(first.std(0).max()) > 1e-3
    assert torch.equal(posterior.predict(X, draws=6).draws, first)
    assert torch.equal(dubito.load(tmp_path / "p", module).predict(X, draws=6).draws, first)
    if made != "both":  # a forward that drops is in training as a whole
        torch.testing.assert_close(posterior.predict(X, draws=6, batch_size=7).draws, first)


def test_fewer_draws_are_the_first_of_more_and_seeds_differ():
    posterior = dubito.fit(dropped(), (X, Y), "mc_dropout", steps=5, progress=False)
    torch.testing.assert_close(posterior.predict(X, draws=3).draws, posterior.predict(X, draws=8).draws[:3])
    assert not torch.equal(posterior.predict(X, draws=3, seed=1).draws, posterior.predict(X, draws=3).draws)


def test_rate_replaces_the_nets_own_and_fills_nets_without():
    own = Net(dropped(0.5)).with_dropout(0.1)
    assert [s.rate for s in own.sites(X)] == [0.1]
    bare = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8, 5), nn.Linear(5, 3))
    filled = Net(bare).with_dropout(0.2)
    assert [(s.shape, s.rate) for s in filled.sites(X.unsqueeze(1))] == [((1, 8), 0.2), ((1, 5), 0.2)]


def test_mc_dropout_puts_its_default_where_the_net_has_none_and_stores_it(tmp_path):
    bare = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    posterior = dubito.fit(bare, (X, Y), "mc_dropout", steps=5, progress=False)
    assert [s.rate for s in posterior.net.sites(X)] == [0.1]
    posterior.save(tmp_path / "p")
    again = dubito.load(tmp_path / "p", bare)
    assert torch.equal(again.predict(X).draws, posterior.predict(X).draws)
    scaled = posterior.mean_network()
    torch.testing.assert_close(
        scaled(X).softmax(-1).detach(),
        _eval_probs(posterior),
        msg="the weight-scaling rule is the net with dropout off",
    )


def _eval_probs(posterior) -> torch.Tensor:
    theta, _ = posterior.samples.get([0])
    return posterior.net(theta[0], X).softmax(-1)


def test_one_layer_without_dropout_has_nowhere_to_drop():
    with pytest.raises(ValueError, match=r"found nowhere to drop: .* add nn\.Dropout"):
        dubito.fit(nn.Linear(4, 3), (X, Y), "mc_dropout", steps=2, progress=False)


def test_calls_that_change_with_the_batch_are_refused():
    class Fickle(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            for _ in range(len(x)):
                x = F.dropout(x, 0.5, self.training)
            return self.head(x)

    with pytest.raises(ValueError, match="different number of dropout calls"):
        dubito.fit(Fickle(), (X, Y), "mc_dropout", steps=2, progress=False)


def test_dropout_by_keyword_arguments_is_met_too():
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x):
            h = F.dropout(input=self.first(x), p=0.5, training=self.training)
            return F.linear(input=torch.dropout(h, p=0.5, train=self.training), weight=self.head.weight)

    net = Net(Keywords())
    assert [s.shape for s in net.sites(X)] == [(1, 8), (1, 8)]
    bare = nn.Sequential(nn.Linear(4, 8), Keywords().head)
    assert len(Net(bare).with_dropout(0.5).sites(X)) == 1


def test_several_dropout_networks_take_turns(tmp_path):
    posterior = dubito.fit(dropped(), (X, Y), "mc_dropout", steps=5, members=2, progress=False)
    draws = posterior.predict(X, draws=4).draws
    alone = [posterior.net.network(posterior.samples.get([m])[0][0]) for m in (0, 1)]
    assert not torch.equal(alone[0](X), alone[1](X))
    assert len({tuple(d.flatten().tolist()) for d in draws}) == 4
    with pytest.raises(dubito.Undefined, match="several dropout networks"):
        posterior.mean_network()
