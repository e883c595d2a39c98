"""The same work in other libraries, as their users write it; a library that cannot be imported raises ImportError."""

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import seeded

Step = Callable[[], object]
Loss = Callable[[], Tensor]


def descending(module: nn.Module, loss: Loss, fused: bool | None = True) -> Step:
    """Steps of Adam on a loss; fused, or None for whatever torch takes by itself."""
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3, fused=fused)

    def step() -> None:
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()

    return step


def bayesian_torch(
    sizes: list[int], draws: int, x: Tensor, y: Tensor, n: int, std: float, *, each: bool, fused: bool | None = True
) -> Step:
    """bayesian-torch by `dnn_to_bnn`; `each`: the KL anew for every draw, as in its own examples, or once for all."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    net = seeded(sizes)
    settings = {"prior_mu": 0.0, "prior_sigma": std, "posterior_mu_init": 0.0, "posterior_rho_init": -4.6}
    dnn_to_bnn(net, {**settings, "type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5})
    net.to(x.device)

    def loss() -> Tensor:
        fits, kls = [], []
        for _ in range(draws):
            fits.append(F.cross_entropy(net(x), y))
            if each:
                kls.append(get_kl_loss(net))
        kl = torch.stack(kls).mean() if each else get_kl_loss(net)
        return torch.stack(fits).mean() + kl / n

    return descending(net, loss, fused)


def torchbnn(
    sizes: list[int], draws: int, x: Tensor, y: Tensor, n: int, std: float, *, fused: bool | None = True
) -> Step:
    """torchbnn's own layers and its KL."""
    import torchbnn as library

    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [library.BayesLinear(0, std, before, after), nn.ReLU()]
    net = nn.Sequential(*layers[:-1]).to(x.device)
    kl = library.BKLLoss(reduction="sum", last_layer_only=False)

    def loss() -> Tensor:
        return torch.stack([F.cross_entropy(net(x), y) for _ in range(draws)]).mean() + kl(net).sum() / n

    return descending(net, loss, fused)


def posteriors_sgld(
    net: nn.Module, x: Tensor, y: Tensor, batch: int, step_size: float, std: float
) -> Callable[[int], None]:
    """A chain of SGLD in the library posteriors, in place, with its batches gathered from a shuffled order."""
    import posteriors

    def log_posterior(params, batch):  # type: ignore[no-untyped-def]
        outputs = torch.func.functional_call(net, params, batch[0])
        prior = posteriors.diag_normal_log_prob(params, sd_diag=std)
        return -F.cross_entropy(outputs, batch[1]) + prior / len(x), outputs

    transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=step_size, temperature=1 / len(x))
    state = transform.init({name: p.detach().clone() for name, p in net.named_parameters()})
    order = torch.randperm(len(x), device=x.device)

    def take(steps: int) -> None:
        nonlocal state
        for step in range(steps):
            place = step * batch % (len(x) - batch + 1)
            index = order[place : place + batch]
            state, _ = transform.update(state, (x[index], y[index]), inplace=True)

    return take
