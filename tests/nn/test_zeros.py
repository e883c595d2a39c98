"""Networks trained on after weights went: zeros stay zeros under any method, and the rest makes up for them."""

import pytest
import torch
from torch import nn

import dubito
from dubito import compress
from dubito.nn import ZerosKept, folded

G = torch.Generator().manual_seed(0)
X = torch.randn(200, 6, generator=G)
Y = X[:, :3].tanh().sum(1, keepdim=True)


def half_gone(net: nn.Module) -> nn.Module:
    """Every other entry of every matrix and kernel is 0."""
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim > 1:
                parameter.view(-1)[::2] = 0.0
    return net


def dense() -> nn.Module:
    torch.manual_seed(0)
    return half_gone(nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1)))


def normed() -> nn.Module:
    torch.manual_seed(0)
    return half_gone(
        nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(16, 1))
    )


def gated() -> nn.Module:
    return half_gone(dubito.nn.gated(nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1))))


@pytest.mark.parametrize("build", [dense, normed, gated])
def test_it_computes_the_same_until_it_is_trained(build):
    net = build().eval()
    made = ZerosKept(net).eval()
    torch.testing.assert_close(made(X), net(X))
    torch.testing.assert_close(folded(made)(X), net(X))
    assert not any(isinstance(part, ZerosKept | dubito.nn.Gate) for part in folded(made).modules())


@pytest.mark.parametrize("build", [dense, normed])
@pytest.mark.parametrize("method", [dubito.MAP(), dubito.Variational(), dubito.MCDropout(), dubito.SparseVD()])
def test_a_fit_leaves_zeros_where_they_are(build, method):
    posterior = dubito.fit(ZerosKept(build()), (X, Y), method, steps=20, progress=False)
    network = folded(posterior.mean_network())
    for name, before in build().named_parameters():
        after = network.get_parameter(name)
        assert not after[before == 0].any() or before.ndim == 1
        assert not torch.equal(after, before)
    torch.testing.assert_close(network(X), posterior.mean_network()(X))


def test_samples_do_not_reach_the_zeros():
    posterior = dubito.fit(ZerosKept(dense()), (X, Y), dubito.SGLD(burn_in=5, thin=1), steps=10, progress=False)
    outputs, drawn, net = posterior.draw(3)(X), posterior.sample(3), ZerosKept(dense())
    for index, expected in enumerate(outputs):
        with torch.no_grad():
            for name, values in drawn.items():
                net.get_parameter(name).copy_(values[index])
            plain = net.plain()
            torch.testing.assert_close(plain(X), expected)
        for name, before in dense().named_parameters():
            assert before.ndim == 1 or not plain.get_parameter(name)[before == 0].any()


def test_what_is_left_makes_up_for_what_went(tmp_path):
    net = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1))
    held = compress.scored(dubito.fit(net, (X, Y), dubito.MAP(), steps=1000, progress=False))
    cut = held.masked(held.at_share(0.8))
    again = dubito.fit(ZerosKept(cut), (X, Y), dubito.MAP(), steps=1000, progress=False)
    with torch.no_grad():
        before, after = (float((net(X) - Y).square().mean()) for net in (cut, folded(again.mean_network())))
    assert after < before / 2
    made = compress.write(again, tmp_path / "small.safetensors", (X, Y), cut=1e-30)
    assert made.ratio >= 5 and made.error == pytest.approx(after**0.5, rel=1e-4)
