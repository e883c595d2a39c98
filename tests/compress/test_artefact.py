"""Small networks on disk: dead units go, the outputs stay, and the file is as small as it says."""

import copy
import json
import math

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn

import dubito
from dubito import compress
from dubito.compress import chains, sparse
from dubito.posteriors.storage import Damaged

G = torch.Generator().manual_seed(0)
X = torch.randn(300, 12, generator=G)
IMAGES = torch.randn(5, 1, 12, 12, generator=G)


def sparsified(network: nn.Module, share: float, seed: int = 0) -> nn.Module:
    """With zeros at random, whole rows and columns of them too, and statistics that have seen something."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.masked_fill_(torch.rand(parameter.shape, generator=g) < share, 0.0)
                parameter[torch.rand(len(parameter), generator=g) < 0.3] = 0.0
                parameter[:, torch.rand(parameter.shape[1], generator=g) < 0.3] = 0.0
        for name, buffer in network.named_buffers():
            if "running" in name:
                buffer.copy_(torch.rand(buffer.shape, generator=g) + 0.5)
    return network.eval()


def dense(*sizes: int) -> nn.Module:
    torch.manual_seed(1)
    return dubito.nn.mlp(sizes, "silu")


NETS = {
    "dense": (lambda: dense(12, 30, 20, 3), X),
    "norm": (lambda: nn.Sequential(nn.Linear(12, 30), nn.BatchNorm1d(30), nn.Tanh(), nn.Linear(30, 3)), X),
    "norm without bias": (
        lambda: nn.Sequential(nn.Linear(12, 30), nn.BatchNorm1d(30, bias=False), nn.Tanh(), nn.Linear(30, 3)), X
    ),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 6, 3, padding=1),
            nn.Sigmoid(), nn.AvgPool2d(2), nn.Conv2d(6, 5, 2, bias=False), nn.GELU(), nn.Flatten(), nn.Linear(5, 3),
        ),
        IMAGES,
    ),
    "flattened": (
        lambda: nn.Sequential(nn.Conv2d(1, 8, 5), nn.ELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10),
                              nn.LeakyReLU(), nn.Dropout(0.5), nn.Linear(10, 2)),
        IMAGES,
    ),
    "grouped": (lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4)), IMAGES),
    "empty": (lambda: dense(12, 30, 20, 3), X),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_dead_units_go_and_the_outputs_stay(name, tmp_path):
    build, x = NETS[name]
    network = sparsified(build(), 1.0 if name == "empty" else 0.5)
    small = compress.small_network(network)
    torch.testing.assert_close(small(x), network(x), rtol=1e-5, atol=1e-6)
    before, after = (sum(p.numel() for p in net.parameters()) for net in (network, small))
    assert after < before or name == "grouped"
    path = compress.save_network(small, tmp_path / "net.safetensors")
    again = dubito.load_network(path)
    assert type(again) is nn.Sequential and not again.training
    torch.testing.assert_close(again(x), network(x), rtol=1e-5, atol=1e-6)
    assert torch.equal(again(x), small(x))


@pytest.mark.parametrize("name", NETS)
def test_networks_in_double_precision_keep_every_digit(name, tmp_path):
    build, x = NETS[name]
    network = build().double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.div_(3)  # more digits than float32 has
    network = sparsified(network, 0.5)
    again = dubito.load_network(compress.save_network(compress.small_network(network), tmp_path / "net.safetensors"))
    torch.testing.assert_close(again(x.double()), network(x.double()), rtol=1e-13, atol=1e-13)


SERIES = torch.randn(6, 5, 4, generator=G)
PICTURES = torch.randn(6, 3, 10, 10, generator=G)
MIXED = {
    "places after units": (nn.Linear(4, 8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 3)),
    "a norm of places": (nn.Linear(4, 8), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(8, 3)),
    "a norm of as many places as units": (nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)),
    "a pool over units": (nn.Linear(4, 8), nn.MaxPool1d(2), nn.Linear(4, 3)),
    "a linear map over places": (nn.Conv1d(5, 4, 3, padding=1), nn.ReLU(), nn.Linear(4, 3)),
    "a convolution over units": (nn.Linear(4, 5), nn.ReLU(), nn.Conv1d(5, 3, 2)),
    "a norm after flattening": (
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(256), nn.Linear(256, 3),
    ),
    "flattened in part": (nn.Conv2d(3, 4, 3), nn.Flatten(2), nn.Linear(64, 8), nn.BatchNorm1d(4), nn.Linear(8, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_units_stay_where_the_next_layer_does_not_read_them_one_by_one(name):
    x = PICTURES if isinstance(MIXED[name][0], nn.Conv2d) else SERIES
    for seed in range(4):
        network = sparsified(copy.deepcopy(nn.Sequential(*MIXED[name])), 0.5, seed)
        torch.testing.assert_close(compress.small_network(network, x)(x), network(x), rtol=1e-5, atol=1e-6)


def test_units_of_rows_in_series_go():
    network = sparsified(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), 0.5)
    small = compress.small_network(network, SERIES)
    assert len(small[0].weight) < 8
    torch.testing.assert_close(small(SERIES), network(SERIES), rtol=1e-5, atol=1e-6)


def test_a_chain_with_transposed_convolutions_opens_by_itself(tmp_path):
    network = nn.Sequential(
        nn.Unflatten(1, (3, 4)), nn.ConvTranspose1d(3, 6, 3, stride=2, output_padding=1), nn.ReLU(),
        nn.Conv1d(6, 5, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(5, 2),
    )  # fmt: skip
    network = sparsified(network, 0.5)
    small = compress.small_network(network, X)
    assert len(small[3].weight) < 5 and small[1].weight.shape == (3, 6, 3)
    again = dubito.load_network(compress.save_network(small, tmp_path / "net.safetensors"))
    torch.testing.assert_close(again(X), network(X), rtol=1e-5, atol=1e-6)


def test_units_are_removed_by_hand():
    """Unit 0 has no way out, unit 1 none in: its tanh(bias) moves to the next bias; unit 2 stays."""
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 0.0]]))
        network[0].bias.copy_(torch.tensor([0.1, 0.2, 0.3]))
        network[2].weight.copy_(torch.tensor([[0.0, 5.0, 7.0]]))
        network[2].bias.fill_(1.0)
    small = compress.small_network(network)
    assert small[0].weight.tolist() == [[3.0, 0.0]] and small[2].weight.tolist() == [[7.0]]
    assert small[2].bias.item() == pytest.approx(1 + 5 * math.tanh(0.2))


def test_constants_do_not_cross_padding():
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 2, 3, padding=1))
    with torch.no_grad():
        network[0].weight[:2] = 0.0
    small = compress.small_network(network)
    assert len(small[0].weight) == 4
    torch.testing.assert_close(small(IMAGES), network(IMAGES))


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(12, 8), nn.Linear(12, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.left(x) * self.right(x).sigmoid())


def test_what_is_no_chain_keeps_its_shape_and_needs_its_module(tmp_path):
    network = sparsified(Own(), 0.9)
    assert compress.small_network(network) is network and chains.chain(network) is None
    path = compress.save_network(network, tmp_path / "own.safetensors")
    assert path.stat().st_size < compress.dense_bytes(network)
    with pytest.raises(ValueError, match=r"load it with dubito.load_network\(path, net\)"):
        dubito.load_network(path)
    assert torch.equal(dubito.load_network(path, Own())(X), network(X))
    with pytest.raises(ValueError, match="belongs to another network"):
        dubito.load_network(path, nn.Linear(3, 3))


def test_a_module_used_twice_is_no_chain():
    layer = nn.Linear(4, 4)
    assert chains.chain(nn.Sequential(layer, nn.ReLU(), layer)) is None


class Called(nn.Module):
    """Functions in place of layers, and a layer without weights called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.pool = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 8, 2), nn.MaxPool2d(2)
        self.dense, self.head = nn.Linear(8 * 4, 10), nn.Linear(10, 3)

    def forward(self, x):
        x = self.pool(F.relu(self.first(x)))
        x = torch.flatten(self.pool(F.max_pool2d(torch.tanh(self.second(x)), 1, 1, 0, 1, False)), 1)
        return self.head(F.dropout(F.leaky_relu(self.dense(x), 0.2), 0.5, self.training))


def test_functions_count_as_the_layers_they_stand_for(tmp_path):
    torch.manual_seed(0)
    network = sparsified(Called(), 0.5)
    small = compress.small_network(network)
    assert [type(layer).__name__ for layer in small if list(layer.parameters())] == ["Conv2d"] * 2 + ["Linear"] * 2
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in network.parameters())
    path = compress.save_network(small, tmp_path / "called.safetensors")
    for again in (dubito.load_network(path), dubito.load_network(path, Called())):
        torch.testing.assert_close(again(IMAGES), network(IMAGES), rtol=1e-5, atol=1e-6)


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(12, 12), nn.Linear(12, 2)

    def forward(self, x):
        return self.head(F.relu(self.body(x)) + x)


class Folding(Around):
    def forward(self, x):
        return self.head(self.body(x).view(-1, 12))


class Dropping(Around):
    def forward(self, x):
        return self.head(F.dropout(self.body(x)))


@pytest.mark.parametrize(
    "network",
    [Around(), Folding(), Dropping(), nn.Sequential(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2, divisor_override=3)),
     nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False))],
)  # fmt: skip
def test_what_cannot_be_written_down_is_no_chain(network):
    assert chains.chain(network.eval()) is None


def test_a_layer_whose_hook_changes_its_outputs_stays_as_it_is(tmp_path):
    network = sparsified(dense(12, 20, 2), 0.9)
    network[0].register_forward_hook(lambda layer, inputs, outputs: outputs + 1)
    assert chains.chain(network) is None and compress.small_network(network) is network
    path = compress.save_network(network, tmp_path / "hooked.safetensors")
    assert torch.equal(dubito.load_network(path, network)(X), network(X))


def test_the_file_holds_compressed_rows_in_small_integers(tmp_path):
    network = nn.Sequential(nn.Linear(300, 200), nn.Softmax(1))
    with torch.no_grad():
        network[0].weight.mul_(torch.rand(200, 300, generator=G) < 0.01)
    path = compress.save_network(network[0], tmp_path / "one.safetensors")
    with safe_open(path, "pt") as file:
        made = json.loads(file.metadata()[sparse.MARK])
        parts = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    assert made["layers"][0]["layer"] == "Linear"
    kept = int(network[0].weight.count_nonzero())
    assert parts["0.weight.columns"].dtype == torch.uint16 and len(parts["0.weight.values"]) == kept
    assert parts["0.weight.begins"].tolist()[-1] == kept
    assert torch.equal(dubito.load_network(path)[0].weight, network[0].weight)


def test_damaged_files_say_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no network at .*; give a file that"):
        dubito.load_network(tmp_path / "none.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no network")
    with pytest.raises(Damaged, match="write it again"):
        dubito.load_network(broken)
