"""Gates: open they change nothing, folded they are gone, and sparse ones take their units along."""

import pytest
import torch
from torch import nn

import dubito
from dubito import compress
from dubito.net import Net
from dubito.posteriors.sparse import SparsePosterior

G = torch.Generator().manual_seed(0)
X = torch.randn(200, 5, generator=G)
IMAGES = torch.randn(4, 2, 6, 6, generator=G)


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 30), nn.Tanh(), nn.Linear(30, 1))


def convolved() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3, bias=False), nn.Flatten(), nn.Linear(12, 2))


@pytest.mark.parametrize(("build", "x"), [(dense, X), (dense, X.view(20, 10, 5)), (convolved, IMAGES)])
def test_open_gates_change_nothing_and_fold_away(build, x):
    net = build()
    made = dubito.nn.gated(net)
    gates = [m for m in made.modules() if isinstance(m, dubito.nn.Gate)]
    assert len(gates) == len([p for p in net.parameters() if p.ndim > 1]) - 1
    torch.testing.assert_close(made(x), net(x))
    with torch.no_grad():
        for gate in gates:
            gate.weight.normal_()
            gate.weight[0] = 0.0
    plain = dubito.nn.folded(made)
    assert [type(m) for m in plain.modules()] == [type(m) for m in net.modules()]
    torch.testing.assert_close(plain(x), made(x), rtol=1e-4, atol=1e-5)
    assert not plain[0].weight[0].any()


def test_a_transformer_that_looks_into_its_layers_finds_gated_weights():
    """Without gradients torch takes the weights out of the layers and calls none of them."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    made, x = dubito.nn.gated(nn.Sequential(layer, nn.Linear(8, 2))).eval(), torch.randn(3, 4, 8, generator=G)
    for gate in (m for m in made.modules() if isinstance(m, dubito.nn.Gate)):
        nn.init.normal_(gate.weight)
    called = made(x)
    with torch.no_grad():
        torch.testing.assert_close(made(x), called, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(dubito.nn.folded(made)(x), called, rtol=1e-4, atol=1e-5)


class Headed(nn.Module):
    """Parts of different depths: the head lies above the layers that come before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 6), nn.Tanh()))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.body(x))


def test_the_last_layer_has_no_gate_wherever_it_lies():
    made = dubito.nn.gated(Headed())
    gated = [path for path, part in made.named_modules() if isinstance(part, dubito.nn.gates.Gated)]
    assert gated == ["body.0", "body.2.0"] and type(made.head) is nn.Linear
    torch.testing.assert_close(made(X), Headed()(X))
    assert [path for path, _ in dubito.nn.folded(made).named_modules()] == [p for p, _ in Headed().named_modules()]


def test_a_shared_layer_has_no_gate():
    shared = nn.Linear(5, 5)
    made = dubito.nn.gated(nn.Sequential(nn.Linear(5, 5), shared, nn.Tanh(), shared, nn.Linear(5, 1)))
    assert [type(part).__name__ for part in made] == ["Gated", "Linear", "Tanh", "Linear", "Linear"]
    assert made[1] is made[3]


def test_a_single_layer_has_nothing_to_gate():
    with pytest.raises(ValueError, match="nothing to gate"):
        dubito.nn.gated(nn.Sequential(nn.Linear(3, 2)))


def test_units_that_are_not_needed_go_and_the_file_is_smaller(tmp_path):
    y = torch.tanh(X[:, 0])
    units = {dubito.nn.Gate: dubito.Normal(), "*": dubito.Point()}
    posterior = dubito.fit(
        dubito.nn.gated(dense()), (X, y), dubito.SparseVD(learning_rate=0.03, schedule="linear", init_std=0.1),
        prior=units, likelihood=dubito.Gaussian(0.3), steps=400, device="cpu", progress=False,
    )  # fmt: skip
    assert list(posterior.sparsity()) == ["0.1.weight"]
    rows = {row.name: (row.role, row.estimator) for row in dubito.plan(
        dubito.nn.gated(dense()), "sparse_vd", prior=units, example=X[:1]).rows}  # fmt: skip
    assert rows["0.1.weight"] == ("random", "local") and rows["0.0.weight"][0] == "point"
    left = round(30 * (1 - posterior.sparsity()["0.1.weight"]))
    assert 1 <= left < 30
    made = compress.write(posterior, tmp_path / "units.safetensors", (X, y), cut=-posterior.threshold)
    assert made.units == (left, 1) and made.smaller > 1
    network = dubito.load_network(made.path)
    torch.testing.assert_close(network(X), posterior.mean_network()(X), rtol=1e-4, atol=1e-5)
    assert (network(X)[:, 0] - y).square().mean().sqrt().item() < 0.3


def test_closed_gates_take_filters_along_into_the_file(tmp_path):
    """Two of four filters and one of three behind them: the next layers lose the inputs that belonged to them."""
    net = Net(dubito.nn.gated(convolved()))
    mean, std = net.theta().unsqueeze(0), torch.zeros(1, net.layout.size)
    for name, closed in (("0.1.weight", [0, 2]), ("2.1.weight", [1])):
        spread = std[:, net.layout.spans[name]]
        spread.fill_(1e-3)
        spread[:, closed] = 100.0
    posterior = SparsePosterior(net, dubito.Categorical(), mean, std)
    assert posterior.sparsity() == {"0.1.weight": pytest.approx(2 / 4), "2.1.weight": pytest.approx(1 / 3)}
    labels = torch.zeros(4, dtype=torch.long)
    made = compress.write(posterior, tmp_path / "filters.safetensors", (IMAGES, labels), cut=-posterior.threshold)
    network = dubito.load_network(made.path)
    shapes = [tuple(p.shape) for p in network.parameters() if p.ndim > 1]
    assert made.units == (2, 2, 2) and shapes == [(2, 2, 3, 3), (2, 2, 3, 3), (2, 8)]
    torch.testing.assert_close(network(IMAGES), posterior.mean_network()(IMAGES), rtol=1e-5, atol=1e-6)
    kept = 2 * 2 * 9 + 2 * 4 * 9 + 2 * 12  # rows of zeros are not counted, columns that met them are
    assert made.ratio == pytest.approx((4 * 2 * 9 + 3 * 4 * 9 + 2 * 12) / kept)


def test_gates_are_put_once():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="has gates already; give the one without them"):
        dubito.nn.gated(dubito.nn.gated(net))
