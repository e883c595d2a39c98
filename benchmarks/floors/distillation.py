"""WGAN-GP on weight vectors, the gradient penalty by differentiating twice."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common import Stepping
from benchmarks.floors.recording import fused, stepping

CRITIC_STEPS, PENALTY, RATE, BETAS = 5, 10.0, 1e-4, (0.5, 0.9)


def iterations(bank: Tensor, widths: list[int], noise: int, batch: int) -> Stepping:
    """Five steps of the critic and one of the generator, on rows of the bank (n, D)."""
    device, size = bank.device, bank.shape[1]
    generator, critic = _mlp([noise, *widths, size], device), _mlp([size, *widths[::-1], 1], device)
    makes, judges = (
        torch.optim.Adam(p, lr=RATE, betas=BETAS, fused=True, capturable=device.type == "cuda")
        for p in (generator, critic)
    )
    by_critic, by_generator = fused(_critic_loss, device), fused(_generator_loss, device)

    def iteration() -> None:
        for _ in range(CRITIC_STEPS):
            real = bank[torch.randint(len(bank), (batch,), device=device)]
            with torch.no_grad():
                fake = _forward(generator, torch.randn(batch, noise, device=device))
            share = torch.rand(batch, 1, device=device)
            mixed = torch.lerp(real, fake, share).requires_grad_()
            slope = torch.autograd.grad(_forward(critic, mixed).sum(), mixed, create_graph=True)[0]
            _descend(judges, by_critic(critic, real, fake) + PENALTY * (slope.norm(dim=1) - 1).square().mean())
        _descend(makes, by_generator(generator, critic, torch.randn(batch, noise, device=device)), generator)

    return stepping(iteration, None, device)


def _critic_loss(critic: list[Tensor], real: Tensor, fake: Tensor) -> Tensor:
    return _forward(critic, fake).mean() - _forward(critic, real).mean()


def _generator_loss(generator: list[Tensor], critic: list[Tensor], z: Tensor) -> Tensor:
    return -_forward(critic, _forward(generator, z)).mean()


def _descend(optimiser: torch.optim.Optimizer, loss: Tensor, only: list[Tensor] | None = None) -> None:
    optimiser.zero_grad(set_to_none=True)
    loss.backward(inputs=only)
    optimiser.step()


def _mlp(sizes: list[int], device: torch.device) -> list[Tensor]:
    found = []
    for before, after in pairwise(sizes):
        found += [torch.randn(after, before, device=device) * (2 / before) ** 0.5, torch.zeros(after, device=device)]
    return [p.requires_grad_() for p in found]


def _forward(parameters: list[Tensor], x: Tensor) -> Tensor:
    for layer in range(0, len(parameters), 2):
        x = F.linear(F.relu(x) if layer else x, parameters[layer], parameters[layer + 1])
    return x
