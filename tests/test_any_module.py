"""Every kind of module through fit, predict, save and load, with the user's own module and generator untouched."""

import copy
import dataclasses
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dubito
from dubito import runtime
from dubito.net import Net

N = 12


class TiedDecoder(nn.Module):
    """A language model whose decoder is its embedding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.decode = nn.Linear(4, 7, bias=False)
        self.decode.weight = self.embed.weight

    def forward(self, tokens):
        return self.decode(torch.tanh(self.embed(tokens)))


class TwoNames(nn.Module):
    """One submodule under two names, used twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


class Attention(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, dropout=dropout, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.attend(x, x, x, need_weights=False)[0].mean(1))


class Transformer(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=dropout, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.layer(x)[:, 0])


class Recurrent(nn.Module):
    def __init__(self, cell, dropout=0.0):
        super().__init__()
        self.cell = cell(4, 5, num_layers=2, dropout=dropout, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, a, b):
        return self.left(a) + self.right(b)


class FunctionalDropout(nn.Module):
    def __init__(self, always=False):
        super().__init__()
        self.body, self.head, self.always = nn.Linear(4, 8), nn.Linear(8, 3), always

    def forward(self, x):
        return self.head(F.dropout(torch.relu(self.body(x)), 0.3, training=True if self.always else self.training))


class FusedDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        p = 0.5 if self.training else 0.0
        return self.head(F.scaled_dot_product_attention(x, x, x, None, p).mean(1))


class WithBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.register_buffer("shift", torch.ones(4), persistent=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x * self.scale + self.shift)


def frozen_first() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    net[0].requires_grad_(False)
    return net


def warmed(net: nn.Module) -> nn.Module:
    """Running statistics that have seen data, so that samplers accept them."""
    net.train()(torch.randn(32, 4))
    return net


def features(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(N, *shape)


def labels(*shape: int, classes: int = 3) -> Callable[[], Tensor]:
    return lambda: torch.randint(classes, (N, *shape))


ROWS, CLASSES = features(4), labels()
SEQUENCES = features(3, 4)

ZOO: dict[str, tuple[Callable[[], nn.Module], Callable[[], object], Callable[[], Tensor]]] = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), ROWS, CLASSES),
    "tied weights": (TiedDecoder, labels(3, classes=7), labels(3, classes=7)),
    "two names": (TwoNames, ROWS, CLASSES),
    "attention": (Attention, SEQUENCES, CLASSES),
    "attention with dropout": (lambda: Attention(0.2), SEQUENCES, CLASSES),
    "transformer": (Transformer, SEQUENCES, CLASSES),
    "transformer with dropout": (lambda: Transformer(0.2), SEQUENCES, CLASSES),
    "lstm": (lambda: Recurrent(nn.LSTM), SEQUENCES, CLASSES),
    "gru with dropout": (lambda: Recurrent(nn.GRU, 0.2), SEQUENCES, CLASSES),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 3)),
        labels(3, classes=7),
        CLASSES,
    ),
    "batch norm": (
        lambda: warmed(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))),
        ROWS,
        CLASSES,
    ),
    "two inputs": (TwoInputs, lambda: (torch.randn(N, 4), torch.randn(N, 2)), CLASSES),
    "dict inputs": (TwoInputs, lambda: {"b": torch.randn(N, 2), "a": torch.randn(N, 4)}, CLASSES),
    "token outputs": (lambda: nn.Linear(4, 3), SEQUENCES, labels(3)),
    "pixel outputs": (lambda: nn.Conv2d(1, 3, 3, padding=1), features(1, 5, 6), labels(5, 6)),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)),
        features(1, 6, 6),
        CLASSES,
    ),
    "functional dropout": (FunctionalDropout, ROWS, CLASSES),
    "dropout left on": (lambda: FunctionalDropout(always=True), ROWS, CLASSES),
    "dropout of planes": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.Dropout2d(0.3), nn.Flatten(), nn.Linear(27, 3)),
        features(1, 5, 5),
        CLASSES,
    ),
    "alpha dropout": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.SELU(), nn.AlphaDropout(0.2), nn.Linear(8, 3)),
        ROWS,
        CLASSES,
    ),
    "fused dropout": (FusedDropout, SEQUENCES, CLASSES),
    "double precision": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double(), ROWS, CLASSES),
    "frozen parameters": (frozen_first, ROWS, CLASSES),
    "buffers": (WithBuffer, ROWS, CLASSES),
    "layer norm": (lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)), ROWS, CLASSES),
}  # fmt: skip


FUSED = ["attention with dropout", "gru with dropout", "transformer with dropout", "fused dropout"]


def open_zoo(name: str) -> tuple[nn.Module, object, Tensor]:
    torch.manual_seed(0)
    make, x, y = ZOO[name]
    return make(), x(), y()


METHODS = {
    "one network": (dubito.MAP(), 1),
    "three networks": (dubito.MAP(), 3),
    "two chains": (dubito.SGLD(burn_in=2, thin=2), 2),
}


@dataclasses.dataclass
class Fingerprint:
    """All that must not change on the user's side."""

    state: dict
    flags: list
    requires: list
    grads: list
    generator: Tensor

    @classmethod
    def of(cls, net: nn.Module) -> "Fingerprint":
        return cls(
            copy.deepcopy(net.state_dict()),
            [m.training for m in net.modules()],
            [(p.requires_grad, isinstance(p, nn.Parameter), id(p)) for p in net.parameters()],
            [None if p.grad is None else p.grad.clone() for p in net.parameters()],
            torch.get_rng_state(),
        )

    def check(self, net: nn.Module) -> None:
        now = Fingerprint.of(net)
        assert self.state.keys() == now.state.keys()
        assert all(torch.equal(self.state[n], now.state[n]) for n in self.state)
        assert (self.flags, self.requires) == (now.flags, now.requires)
        pairs = zip(self.grads, now.grads, strict=True)
        assert all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)
        assert torch.equal(self.generator, now.generator)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ZOO)
def test_any_module_fits_predicts_and_comes_back_from_disk(name, method, tmp_path):
    net, x, y = open_zoo(name)
    chosen, members = METHODS[method]
    net.train()
    for p in net.parameters():
        p.grad = torch.ones_like(p) if p.requires_grad else None
    before = Fingerprint.of(net)
    posterior = dubito.fit(net, (x, y), chosen, steps=8, batch_size=6, members=members, device="cpu", progress=False)
    prediction = posterior.predict(x)
    posterior.save(tmp_path / "p")
    again = dubito.load(tmp_path / "p", net, device="cpu").predict(x)
    before.check(net)
    assert prediction.n_draws == (members if method != "two chains" else 3 * members)
    assert prediction.probs.shape[: y.dim()] == y.shape
    assert torch.isfinite(prediction.probs).all()
    assert torch.equal(prediction.probs, again.probs)
    if members > 1:
        assert float((prediction.draws[0] - prediction.draws[-1]).abs().max()) > 1e-4


@pytest.mark.parametrize("estimator", ["local", "flipout", "weights"])
@pytest.mark.parametrize("name", ZOO)
def test_any_module_takes_gaussian_weights(name, estimator, tmp_path):
    net, x, y = open_zoo(name)
    before = Fingerprint.of(net)
    method = dubito.Variational(estimator=estimator, draws=2, learning_rate=0.01)
    posterior = dubito.fit(net, (x, y), method, steps=4, batch_size=6, members=2, device="cpu", progress=False)
    prediction = posterior.predict(x, draws=4)
    posterior.save(tmp_path / "p")
    again = dubito.load(tmp_path / "p", net, device="cpu").predict(x, draws=4)
    before.check(net)
    assert torch.isfinite(prediction.probs).all()
    assert torch.equal(prediction.probs, again.probs)
    assert bool((posterior.std[:, : posterior.net.layout.size] > 0).all())


@pytest.mark.parametrize("name", ZOO)
def test_members_side_by_side_and_one_after_another_give_the_same_numbers(name, monkeypatch):
    net, x, y = open_zoo(name)
    seen = {}
    for vectorise in (True, False):
        monkeypatch.setattr(runtime, "pays_to_vectorise", lambda *a, vectorise=vectorise: vectorise)
        fitted = dubito.fit(net, (x, y), "map", steps=4, batch_size=6, members=2, device="cpu", progress=False)
        seen[vectorise] = fitted.predict(x).draws
    if name in FUSED:  # torch's own masks there, which differ between the two
        assert seen[True].shape == seen[False].shape
    else:
        torch.testing.assert_close(seen[True], seen[False], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["lstm", "gru with dropout"])
def test_layers_without_a_batching_rule_run_one_after_another(name):
    net, x, _ = open_zoo(name)
    held = Net(net)
    thetas = torch.stack([held.theta(), held.theta() + 0.1])
    outputs = held.many(thetas, x)
    assert not any(held._vectorise.values())
    torch.testing.assert_close(outputs[0], net.eval()(x))


@pytest.mark.parametrize("name", FUSED)
def test_dropout_out_of_reach_is_refused_by_mc_dropout_and_reproducible_under_map(name):
    net, x, y = open_zoo(name)
    with pytest.raises(
        ValueError, match=r"fused call that masks cannot reach; set its dropout to 0 and put nn\.Dropout"
    ):
        dubito.fit(net, (x, y), "mc_dropout", steps=2, progress=False)
    runs = [
        dubito.fit(net, (x, y), "map", steps=4, members=2, seed=s, progress=False).predict(x).draws for s in (1, 1, 2)
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0][0], runs[2][0])


class Drawing(nn.Module):
    """Leaves a layer out now and then, as stochastic depth does, by one of the global generators."""

    def __init__(self, draw: Callable[[], object]):
        super().__init__()
        self.body, self.head, self.draw, self.always = nn.Linear(4, 4), nn.Linear(4, 3), draw, False

    def forward(self, x):
        kept = float(self.draw()) > 0.3 if self.training or self.always else 1.0
        return self.head(x + kept * torch.relu(self.body(x)))


def generators() -> list[object]:
    return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), random.random, lambda: np.random.rand()], ids=range(3))
@pytest.mark.parametrize("method", ["map", "variational", "mc_dropout"])
def test_a_network_that_draws_by_itself_does_so_under_the_seed(draw, method):
    net, x, y = Drawing(draw), torch.randn(N, 4), torch.arange(N) % 3
    settings = {"steps": 8, "members": 2, "batch_size": 6, "device": "cpu", "progress": False}
    before = generators()
    if method == "mc_dropout":
        with pytest.raises(ValueError, match="draws random numbers that masks cannot reach"):
            dubito.fit(net, (x, y), method, **settings)
    else:
        runs = [dubito.fit(net, (x, y), method, **settings).predict(x, draws=2).probs for _ in range(2)]
        assert torch.equal(*runs)
    assert generators() == before
    net.always = True
    with pytest.raises(ValueError, match="draws random numbers in evaluation mode too"):
        dubito.fit(net, (x, y), method, **settings)
    assert generators() == before
