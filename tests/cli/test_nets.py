import pytest
import torch
from torch import nn

from dubito.cli import nets
from dubito.cli.settings import NetSettings


class Faulty(nn.Module):
    def forward(self, x):
        return {}["none"]


def build(name, seed=0, **arguments):
    return nets.build(NetSettings(name=name, arguments=arguments), seed)


@pytest.fixture
def own_module(in_folder, request):
    """A module in the current folder, under a name that no other test uses."""
    name = f"own_{abs(hash(request.node.name))}"
    text = "from torch import nn\ndef make(width=3): return nn.Linear(2, width)\nnet = nn.Linear(1, 1)\n"
    text += "class Own(nn.Linear):\n    def __init__(self): super().__init__(4, 5)\ndef number(): return 3\n"
    (in_folder / f"{name}.py").write_text(text)
    return name


def test_a_named_net_starts_from_the_seed_and_leaves_the_generator_alone():
    before = torch.get_rng_state()
    first, same, other = (build("mlp", seed, sizes=[2, 3]) for seed in (1, 1, 2))
    assert torch.equal(first[0].weight, same[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_factory_of_ones_own(own_module):
    assert build(f"{own_module}:make").out_features == 3
    assert build(f"{own_module}:make", width=7).out_features == 7
    assert build(f"{own_module}:Own").in_features == 4
    same = [build(f"{own_module}:make", seed=5).weight for _ in range(2)]
    assert torch.equal(*same)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mpl", "no network 'mpl' in dubito.nn .did you mean 'mlp'"),
        ("no_such_module:make", "cannot import 'no_such_module'"),
        ("{own}:mkae", "has no 'mkae'; did you mean 'make'"),
        ("{own}:net", "is a Linear; give a function"),
        ("{own}:number", "returned a int, not a torch.nn.Module"),
    ],
)
def test_a_wrong_name(own_module, name, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(name.format(own=own_module))


def test_wrong_arguments(own_module):
    with pytest.raises(ValueError, match="do not fit"):
        build(f"{own_module}:make", depth=3)
    with pytest.raises(ValueError, match="do not fit mlp"):
        build("mlp", size=[1, 2])
    with pytest.raises(ValueError, match=r"make fails with .* .TypeError: .*correct --net-args"):
        build(f"{own_module}:make", width="x")


def test_a_module_that_cannot_be_imported(in_folder):
    (in_folder / "own_broken.py").write_text("1 / 0\n")
    with pytest.raises(ValueError, match=r"cannot import 'own_broken' .ZeroDivisionError"):
        build("own_broken:make")


def test_outputs_says_which_rows_do_not_fit():
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    assert nets.outputs(net, "mine", torch.randn(5, 3)).shape == (1, 2)
    assert net[0].num_batches_tracked == 0
    with pytest.raises(ValueError, match=r"the network mine cannot take a row of shape \(4,\)"):
        nets.outputs(net, "mine", torch.randn(5, 4))
    with pytest.raises(ValueError, match=r"the network mine cannot take a row .*'none'"):
        nets.outputs(Faulty(), "mine", torch.randn(5, 4))
    with pytest.raises(ValueError, match="returned a tuple"):
        nets.outputs(nn.LSTM(3, 2), "mine", torch.randn(5, 3))
