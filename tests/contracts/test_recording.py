"""What a GPU asks of a step that it records: everything happens on the device, and nothing is read back from it.

The device here is torch's "meta", whose tensors have no numbers: whoever reads one fails.
"""

import contextlib
import copy
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import dubito
from dubito import methods
from dubito.initial import starting_points
from dubito.loop import Watch
from dubito.priors import assign
from dubito.rng import Rng, Stream
from dubito.target import Batch, Target
from dubito.tick import Tick

METHODS = methods.registry()
STEPS, WARM = 24, 3
SMALL = {"burn_in": 4, "thin": 2, "cycles": 2, "leapfrog": 3, "exploration": 0.5}
LABELS = torch.arange(12) % 2


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent, self.attention = nn.LSTM(4, 4, batch_first=True), nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm, self.drop, self.head = nn.LayerNorm(4), nn.Dropout(0.2), nn.Linear(4, 2)

    def forward(self, x):
        states = self.recurrent(x)[0]
        looked, _ = self.attention(states, states, states, need_weights=False)
        return self.head(self.drop(self.norm(states + looked))[:, -1])


def images() -> nn.Module:
    first = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Dropout2d(0.2)]
    second = [nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2)]
    net = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(18, 2))
    net(torch.randn(8, 1, 6, 6))  # samplers want statistics that have seen data
    return net


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Dropout(0.1), nn.Linear(6, 2))


NETS = {
    "dense": (dense, (3,)),
    "images": (images, (1, 6, 6)),
    "sequence": (Sequence, (5, 4)),
    "zeros kept": (lambda: dubito.nn.ZerosKept(images()), (1, 6, 6)),
    "gated": (lambda: dubito.nn.gated(dense()), (3,)),
}


class Numberless(Stream):
    """Random numbers of a device that has none."""

    def __init__(self):
        self.asked = []

    def draw(self, kind, out):
        return out.normal_()


class OnDevice(TorchDispatchMode):
    """Notes the calls that take or make a tensor on the CPU."""

    def __init__(self):
        super().__init__()
        self.strays = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, made)) if isinstance(leaf, Tensor)]
        if any(tensor.device.type == "cpu" for tensor in tensors):
            self.strays.add(str(func))
        return made


@contextlib.contextmanager
def copies_without_numbers(monkeypatch):
    """Copies of whatever holds tensors have them on the other device."""

    def moved(tensor, memo):
        if id(tensor) not in memo:
            memo[id(tensor)] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return memo[id(tensor)]

    def parameter(tensor, memo):
        memo[id(tensor)] = nn.Parameter(moved(tensor, memo), tensor.requires_grad)
        return memo[id(tensor)]

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "__deepcopy__", moved)
        patch.setattr(nn.Parameter, "__deepcopy__", parameter)
        yield


def warm(method, net, shape, prior=None):
    """A target, a state after a few steps, a batch, and what the steps told."""
    torch.manual_seed(0)
    module, x = net(), torch.randn(len(LABELS), *shape)
    prepared = method.prepare(dubito.Net(module), x)
    target = Target(prepared, dubito.Categorical(), assign(prior, module), len(x))
    theta = target.start(starting_points(prepared, 2, 0, None))
    state, watch = method.init(theta, target, Tick(torch.tensor(0), STEPS, Rng(0))), Watch()
    batch = Batch(x, LABELS, torch.arange(len(x)))
    with torch.no_grad():
        for step in range(WARM):
            state, told = method.step(state, batch, target, Tick.at(step, STEPS))
            watch.add(told, torch.tensor(step))
    return target, state, batch, watch.held


def record(method, warmed, monkeypatch) -> OnDevice:
    """A step on the other device."""
    with copies_without_numbers(monkeypatch):
        method, (target, state, batch, held) = copy.deepcopy((method, warmed))
    row = iter(torch.empty(99, device="meta").unbind())
    clock, noise = torch.empty((), dtype=torch.long, device="meta"), Rng(0, WARM, stream=Numberless())
    with torch.no_grad(), OnDevice() as calls:
        tick = Tick(clock, STEPS, noise, lambda rule: next(row), method.kind(state, WARM, STEPS))
        after, told = method.step(state, batch, target, tick)
        Watch.note_(held, told, clock)
    assert all(old is new for old, new in zip(tree_leaves(state), tree_leaves(after), strict=True))
    return calls


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_step_stays_on_its_device_and_reads_nothing_back(name, net, monkeypatch):
    method = METHODS[name]()
    method = replace(method, **{f.name: SMALL[f.name] for f in fields(method) if f.init and f.name in SMALL})
    assert not record(method, warm(method, *NETS[net]), monkeypatch).strays


@pytest.mark.parametrize("prior", [torch.distributions.Cauchy(0.0, 0.1), torch.distributions.Uniform(-9.0, 9.0)])
@pytest.mark.parametrize("method", [dubito.MAP(), dubito.Variational(draws=2, alpha=0.5)])
def test_so_does_one_under_a_prior_of_torch(method, prior, monkeypatch):
    assert not record(method, warm(method, *NETS["dense"], prior), monkeypatch).strays
