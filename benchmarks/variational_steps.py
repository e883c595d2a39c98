"""A step of variational inference on 784-800-800-10, batch 128, against the plain net, a hand-written loop and peers.

All candidates take the same batch and the same fused Adam. Peers that cannot be imported are left out and named;
`--peers FOLDER` says where unpacked wheels of bayesian-torch and torchbnn lie. What ten local draws can gain on drawing
weights one after another depends on how fast a machine multiplies matrices: their products are timed alone too.
"""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dubito
from benchmarks import peers
from benchmarks.common import Claim, Where, images, median_ratio, report, seeded, take_turns
from benchmarks.floors import variational as floor
from benchmarks.peers import Step, descending
from dubito.noisy import Estimator
from dubito.priors import assign
from dubito.target import Batch

SIZES, ROWS, N, STD = [784, 800, 800, 10], 128, 60_000, 0.1
DRAWS = (1, 2, 5, 10)


def run(where: Where) -> bool:
    """Local draws cost little more than the plain step, and less than drawing weights one after another."""
    device, steps, rounds = where.device, where.pick(4, 1), where.pick(15, 1)
    x, y = images(ROWS, device)
    missing: dict[str, str] = {}
    candidates = {
        "plain": _plain(x, y),
        **{f"local, {k}": _ours("local", k, x, y) for k in DRAWS},
        "weights, 10": _ours("weights", 10, x, y),
        "one after another, 10": _one_after_another(10, x, y),
        "local by hand, 10": _by_hand(10, x, y),
        "products of local alone, 10": _products(10, device),
        **_peers(x, y, missing),
    }
    turns = {name: lambda step=step: [step() for _ in range(steps)] for name, step in candidates.items()}
    seconds = take_turns(turns, rounds, device)
    values = {name: [s / steps * 1e3 for s in each] for name, each in seconds.items()}
    loop, products = "one after another, 10", "products of local alone, 10"
    claims = [
        Claim("one local draw: plain step over ours", median_ratio(values, "plain", "local, 1"), 1 / 3),
        Claim("ten local draws: plain step over ours", median_ratio(values, "plain", "local, 10"), 1 / 12),
        Claim("ten local draws against one after another", median_ratio(values, loop, "local, 10"), 2.8),
        Claim("ten local draws by hand against one after another", median_ratio(values, loop, "local by hand, 10")),
        Claim("the products of ten local draws alone against one after another", median_ratio(values, loop, products)),
        Claim("ten whole draws against one after another", median_ratio(values, loop, "weights, 10")),
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
    return report(where, "variational-steps", title, "ms", values, claims, notes={"left out": missing})


def _least(peer: str, draws: int) -> float | None:
    """One draw of torchbnn is only shown: it has no KL in its pass and shares one weight draw among all examples."""
    return None if (peer, draws) == ("torchbnn", 1) else 1.0


def _net(device: torch.device) -> nn.Module:
    return seeded(SIZES).to(device)


def _plain(x: Tensor, y: Tensor) -> Step:
    net = _net(x.device)
    return descending(net, lambda: F.cross_entropy(net(x), y))


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

    return descending(module, loss)


def _by_hand(draws: int, x: Tensor, y: Tensor) -> Step:
    """Local reparameterisation written out for this network, with autograd's own gradients."""
    take = floor.steps(SIZES, x, y, ROWS, draws, STD)
    return lambda: take(1)


def _products(draws: int, device: torch.device) -> Step:
    """The matrix products of local draws and of their gradients, for means and for variances, and nothing else."""
    factors = []
    for layer, (before, after) in enumerate(pairwise(SIZES)):
        rows = ROWS if layer == 0 else ROWS * draws  # the first layer's moments serve all draws
        factors.append([torch.randn(*size, device=device) for size in ((rows, before), (after, before), (rows, after))])

    def step() -> None:
        for layer, (x, weight, slope) in enumerate(factors):
            for _ in ("mean", "variance"):
                F.linear(x, weight), slope.t() @ x
                if layer:
                    slope @ weight

    return step


def _peers(x: Tensor, y: Tensor, missing: dict[str, str]) -> dict[str, Step]:
    makers = {
        "bayesian-torch": lambda k: peers.bayesian_torch(SIZES, k, x, y, N, STD, each=False),
        "torchbnn": lambda k: peers.torchbnn(SIZES, k, x, y, N, STD),
    }
    found: dict[str, Step] = {}
    for name, make in makers.items():
        try:
            found |= {f"{name}, {k}": make(k) for k in DRAWS}
        except ImportError as error:
            missing[name] = str(error)
    return found
