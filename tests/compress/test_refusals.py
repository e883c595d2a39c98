"""What cannot be compressed or drawn is refused in one sentence that names the cure."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import dubito
from dubito import compress
from dubito.compress import figures, sparse
from dubito.posteriors.storage import Damaged

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
NOT_FINITE = torch.cat([X[:3], X.new_full((17, 4), torch.nan)])


@pytest.fixture(scope="module")
def posterior() -> dubito.Posterior:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    return dubito.fit(net, (X, Y), dubito.SparseVD(), steps=3, progress=False)


@pytest.mark.parametrize(
    ("validation", "sentence"),
    [
        ((X[:0], Y[:0]), "the data are empty; give at least one row"),
        ((NOT_FINITE, Y), "x holds NaN or infinity, first in row 3"),
        ((X, Y + 10), "y holds the label 10, outside 0 to 1"),
        ((X, Y + 0.5), "wants integer labels"),
        ((X, Y[:4]), "x has 20 rows and y has 4"),
        ((X[:, :2], Y), "does not accept rows of"),
    ],
)
def test_validation_rows_that_choose_nothing_are_refused(posterior, tmp_path, validation, sentence):
    with pytest.raises(ValueError, match=sentence):
        compress.write(posterior, tmp_path / "small.safetensors", validation)
    with pytest.raises(ValueError, match=sentence):
        compress.curve({"a": posterior}, validation)
    assert not list(tmp_path.iterdir())


def test_a_module_is_no_posterior(posterior, tmp_path):
    with pytest.raises(ValueError, match=r"of type Linear, not a posterior; give what dubito\.fit"):
        compress.write(nn.Linear(4, 2), tmp_path / "small.safetensors", (X, Y))
    for task in (compress.curve, compress.pruning):
        with pytest.raises(ValueError, match="shares is empty; give at least one"):
            task({"a": posterior}, (X, Y), shares=())
        for wrong in (0.5, "0.5", None):
            with pytest.raises(ValueError, match=r"shares is .*; give several shares of the weights to remove"):
                task({"a": posterior}, (X, Y), shares=wrong)
        with pytest.raises(ValueError, match=r"share is 'half', but a share of the weights lies between 0 and 1"):
            task({"a": posterior}, (X, Y), shares=("half",))
        for shares in (np.linspace(0, 0.5, 3), torch.linspace(0, 0.5, 3)):
            assert task({"a": posterior}, (X, Y), shares=shares).settings["shares"] == [0.0, 0.25, 0.5]
        with pytest.raises(ValueError, match=r"posteriors come by name, and <SparseVD.* has none; give {name"):
            task(posterior, (X, Y))
        with pytest.raises(ValueError, match="there is no posterior to look at; give at least one"):
            task({}, (X, Y))
        with pytest.raises(ValueError, match=r"validation rows are a pair \(x, y\), got tuple of 3; give the inputs"):
            task({"a": posterior}, (X, Y, Y))


def test_places_that_hold_no_file_are_refused(posterior, tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder; give the path of a file in it"):
        compress.write(posterior, tmp_path, (X, Y))
    with pytest.raises(IsADirectoryError, match="is a folder; give the path of a file in it"):
        dubito.load_network(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write to .*file .*; choose a folder you may write to"):
        compress.write(posterior, tmp_path / "file" / "small.safetensors", (X, Y))


def test_a_class_is_no_module(posterior, tmp_path):
    path = compress.write(posterior, tmp_path / "small.safetensors", (X, Y)).path
    with pytest.raises(ValueError, match=r"net is <class .*Linear'>, which is no module; give one like that the file"):
        dubito.load_network(path, nn.Linear)


def test_figures_of_another_posterior_or_network_are_refused(posterior):
    plain = dubito.fit(posterior.mean_network(), (X, Y), dubito.MAP(), steps=2, progress=False)
    with pytest.raises(ValueError, match="no log alpha of each weight; give a posterior of SparseVD"):
        figures.log_alphas(plain)
    with pytest.raises(ValueError, match="no log alpha of each weight; give a posterior of SparseVD"):
        figures.standard(plain, plain.mean_network(), [], per_epoch=1)
    with pytest.raises(ValueError, match="per_epoch is 0; give the updates of an epoch"):
        figures.sparsity_over_epochs([{"step": 1, "sparsity/0.weight": 0.5}], per_epoch=0)
    with pytest.raises(ValueError, match=r"Linear has no weight '0.weight'; give networks of one architecture"):
        figures.matrices(nn.Linear(4, 2), posterior.mean_network(), "0.weight")


def test_a_network_comes_back_in_its_own_precision(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    again = dubito.load_network(compress.save_network(net, tmp_path / "net.safetensors"))
    assert torch.equal(again(X.double()), net(X.double()))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.hidden, self.head = nn.GRU(2, 5, batch_first=True), nn.Linear(5, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.hidden(self.body(x.unflatten(1, (2, 2)))[0][:, -1]).relu())


def test_a_gated_module_opens_what_was_made_from_it(tmp_path):
    gated = dubito.nn.gated(Recurrent())
    path = compress.save_network(dubito.nn.folded(gated), tmp_path / "net.safetensors")
    for net in (gated, Recurrent()):
        torch.testing.assert_close(dubito.load_network(path, net)(X), gated(X))


@pytest.mark.parametrize(
    ("mark", "sentence"),
    [
        ("[]", "does not say in which format it is; write it again"),
        ("{}", "does not say in which format it is; write it again"),
        ('{"format": 9}', "has format 9 but this dubito reads up to 1"),
        ('{"format": 1}', "does not say which layers it holds .*; write it again"),
        ('{"format": 1, "kind": "chain", "layers": [{"layer": "Lynear"}]}', "does not say which layers it holds"),
        ('{"format": 1, "kind": "chain", "layers": [{"layer": "Linear", "in": 2}]}', "does not say which layers"),
    ],
)
def test_a_file_whose_description_is_damaged(tmp_path, mark, sentence):
    save_file({"a": torch.ones(2)}, tmp_path / "net.safetensors", {sparse.MARK: mark})
    with pytest.raises(Damaged, match=sentence):
        dubito.load_network(tmp_path / "net.safetensors")


def small_file(folder: Path) -> Path:
    """A sparse network in half precision, with statistics."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(40, 6, bias=False), nn.BatchNorm1d(6), nn.LeakyReLU(0.2), nn.Linear(6, 2)).eval()
    with torch.no_grad():
        net[0].weight[:, 3:] = 0.0
    return compress.save_network(net.bfloat16(), folder / "net.safetensors")


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path):
    path = small_file(tmp_path)
    whole = path.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    said = [whole.index(b"0.2"), whole.index(b"0.weight.values") + 2]  # the slope and a name
    for place in [*said, *range(begin, len(whole))]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(Damaged, match=r"is damaged: its checksum is not that .*; write it again"):
            dubito.load_network(path)
    path.write_bytes(whole)
    assert dubito.load_network(path)[2].negative_slope == 0.2


def test_a_file_without_a_checksum_opens(tmp_path):
    path = small_file(tmp_path)
    with safe_open(path, "pt") as file:
        made, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert len(made.pop(sparse.CHECKSUM)) == 64
    save_file(tensors, tmp_path / "old.safetensors", made)
    new, old = (dubito.load_network(tmp_path / name).state_dict() for name in ("net.safetensors", "old.safetensors"))
    assert all(torch.equal(new[name], old[name]) for name in new | old)
