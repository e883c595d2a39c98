"""A likelihood of one's own, with one method: noise with heavy tails, so that outliers do not bend the curve."""

from dataclasses import dataclass

import torch
from torch import Tensor

import dubito


@dataclass(frozen=True)
class LaplaceNoise(dubito.Likelihood):
    """log p(y | f) = -|y - f| / scale - log(2 scale): far less surprised by an outlier than a Gaussian."""

    scale: float

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        error = (y - outputs.squeeze(-1)).abs()
        return -error / self.scale - torch.log(torch.tensor(2 * self.scale))


generator = torch.Generator().manual_seed(0)
x = torch.linspace(-2, 2, 60)[:, None]
truth = torch.sin(2 * x[:, 0])
y = truth + 0.1 * torch.randn(60, generator=generator)
y[::10] += 3.0  # every tenth measurement went wrong

net = dubito.nn.mlp([1, 30, 1], activation="tanh")
for likelihood in (dubito.Gaussian(std=0.2), LaplaceNoise(scale=0.2)):
    method = dubito.DeepEnsemble(learning_rate=1e-2)
    posterior = dubito.fit(net, (x, y), method, likelihood=likelihood, steps=400, batch_size=60, progress=False)
    mean = posterior.predict(x).mean[:, 0]  # without more methods: the outputs, averaged over the networks
    error = (mean - truth).square().mean().sqrt()
    print(f"{type(likelihood).__name__:13} distance to the true curve {error:.3f}")
