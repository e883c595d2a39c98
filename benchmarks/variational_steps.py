"""A step of variational inference on 784-800-800-10, batch 128, against the plain net, a hand-written loop and peers.

All candidates take the same batch and the same fused Adam. Peers that cannot be imported are left out and named;
`--peers FOLDER` says where unpacked wheels of bayesian-torch and torchbnn lie.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dubito
from benchmarks.common import Claim, images, median_ratio, report, take_turns
from dubito.nn import mlp
from dubito.noisy import Estimator
from dubito.priors import assign
from dubito.target import Batch

SIZES, ROWS, N, STD = [784, 800, 800, 10], 128, 60_000, 0.1
DRAWS = (1, 2, 5, 10)
Step = Callable[[], object]
Loss = Callable[[], Tensor]


def run(device: str, folder: Path, steps: int = 4, rounds: int = 7) -> bool:
    """Local draws cost little more than the plain step, and less than drawing weights one after another."""
    x, y = images(ROWS, device)
    missing: dict[str, str] = {}
    candidates = {
        "plain": _plain(x, y),
        **{f"local, {k}": _ours("local", k, x, y) for k in DRAWS},
        "weights, 10": _ours("weights", 10, x, y),
        "one after another, 10": _one_after_another(10, x, y),
        **_peers(x, y, missing),
    }
    turns = {name: lambda step=step: [step() for _ in range(steps)] for name, step in candidates.items()}
    seconds = take_turns(turns, rounds, device)
    values = {name: [s / steps * 1e3 for s in each] for name, each in seconds.items()}
    loop = "one after another, 10"
    claims = [
        Claim("one local draw: plain step over ours", median_ratio(values, "plain", "local, 1"), 1 / 3),
        Claim("ten local draws: plain step over ours", median_ratio(values, "plain", "local, 10"), 1 / 12),
        Claim("ten local draws against one after another", median_ratio(values, loop, "local, 10"), 2.8),
        Claim("ten whole draws against one after another", median_ratio(values, loop, "weights, 10"), None),
    ]
    claims += [
        Claim(f"{peer}, {k} draw(s)", median_ratio(values, f"{peer}, {k}", f"local, {k}"), _least(peer, k))
        for peer in ("bayesian-torch", "torchbnn")
        for k in DRAWS
        if f"{peer}, {k}" in values
    ]
    title = "A step of variational inference, 784-800-800-10, batch 128"
    for peer, why in missing.items():
        print(f"\n{peer} is left out: {why}")
    return report("variational-steps", title, "ms", values, claims, folder, {"left out": missing})


def _least(peer: str, draws: int) -> float | None:
    """One draw of torchbnn is only shown: it has no KL in its pass and shares one weight draw among all examples."""
    return None if (peer, draws) == ("torchbnn", 1) else 1.0


def _net(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return mlp(SIZES).to(device)


def _descending(module: nn.Module, loss: Loss) -> Step:
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()

    return step


def _plain(x: Tensor, y: Tensor) -> Step:
    net = _net(x.device)
    return _descending(net, lambda: F.cross_entropy(net(x), y))


def _ours(estimator: Estimator, draws: int, x: Tensor, y: Tensor) -> Step:
    module = _net(x.device)
    net = dubito.Net(module)
    target = dubito.Target(net, dubito.Categorical(), assign(dubito.Normal(std=STD), module), N)
    method = dubito.Variational(estimator=estimator, draws=draws)
    state = method.init(net.theta()[None], target, dubito.Tick.at(0, 1))
    batch, count = Batch(x, y, torch.arange(ROWS)), iter(range(1 << 40))

    @torch.no_grad()
    def step() -> None:
        number = next(count)
        method.step(state, batch, target, dubito.Tick.at(number, number + 1))

    return step


class _Gaussian(nn.Module):
    """What people write: means and rhos, and for every draw of all weights log q(w) - log p(w), as in the paper."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = [module]  # held, not registered: its weights are the means below
        self.names = [name for name, _ in module.named_parameters()]
        self.means = nn.ParameterList(p.detach().clone() for p in module.parameters())
        self.rhos = nn.ParameterList(torch.full_like(p, math.log(math.expm1(0.01))) for p in module.parameters())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, parts = {}, []
        for name, mean, rho in zip(self.names, self.means, self.rhos, strict=True):
            std, eps = F.softplus(rho), torch.randn_like(mean)
            weights[name] = weight = mean + std * eps
            parts.append((weight.square() / (2 * STD**2) - std.log() - eps.square() / 2 + math.log(STD)).sum())
        return torch.func.functional_call(self.module[0], weights, x), torch.stack(parts).sum()


def _one_after_another(draws: int, x: Tensor, y: Tensor) -> Step:
    """Weight draws in a Python loop, their losses added up, one backward pass."""
    module = _Gaussian(_net(x.device))

    def loss() -> Tensor:
        passes = [module(x) for _ in range(draws)]
        return torch.stack([F.cross_entropy(outputs, y) + kl / N for outputs, kl in passes]).mean()

    return _descending(module, loss)


def _peers(x: Tensor, y: Tensor, missing: dict[str, str]) -> dict[str, Step]:
    found: dict[str, Step] = {}
    for name, make in {"bayesian-torch": _bayesian_torch, "torchbnn": _torchbnn}.items():
        try:
            found |= {f"{name}, {k}": make(k, x, y) for k in DRAWS}
        except ImportError as error:
            missing[name] = str(error)
    return found


def _bayesian_torch(draws: int, x: Tensor, y: Tensor) -> Step:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    net = _net(torch.device("cpu"))
    settings = {"prior_mu": 0.0, "prior_sigma": STD, "posterior_mu_init": 0.0, "posterior_rho_init": -4.6}
    dnn_to_bnn(net, {**settings, "type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5})
    net.to(x.device)

    def loss() -> Tensor:
        return torch.stack([F.cross_entropy(net(x), y) for _ in range(draws)]).mean() + get_kl_loss(net) / N

    return _descending(net, loss)


def _torchbnn(draws: int, x: Tensor, y: Tensor) -> Step:
    import torchbnn

    layers: list[nn.Module] = []
    for before, after in pairwise(SIZES):
        layers += [torchbnn.BayesLinear(0, STD, before, after), nn.ReLU()]
    net = nn.Sequential(*layers[:-1]).to(x.device)
    kl = torchbnn.BKLLoss(reduction="sum", last_layer_only=False)

    def loss() -> Tensor:
        return torch.stack([F.cross_entropy(net(x), y) for _ in range(draws)]).mean() + kl(net).sum() / N

    return _descending(net, loss)
