"""What an attacker differentiates: log p(y | x) of one draw, or of the average over several, by the inputs."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dubito.functions import Functions, plan_chunks, widest
from dubito.inputs import move
from dubito.posteriors.base import Posterior
from dubito.rng import derive
from dubito.sums import over_draws


@dataclass(frozen=True)
class Victim:
    """A posterior as an attacker knows it.

    With several draws it is the posterior predictive, log 1/S sum_s p_s(y | x), whose gradient averages those of the
    draws (expectation over transformation, Athalye et al., 2018). Fresh draws are new ones at every step.
    """

    posterior: Posterior
    draws: int = 1
    fresh: bool = False
    seed: int = 0

    def functions(self, step: int) -> Functions:
        """The networks that the attacker sees at a step: not those that a prediction with the same seed draws."""
        return self.posterior.draw(self.draws, derive(self.seed, "attack", step if self.fresh else 0))

    def check(self, x: Tensor, y: Tensor) -> None:
        """Refuse inputs that do not fit the networks, and labels that do not fit the inputs or the classes."""
        widest(self.posterior.net, x[:1])
        with torch.no_grad():
            outputs = next(self.functions(0).chunks(1))(x[:1])[0]
        self.posterior.likelihood.resolve(outputs.expand(len(x), *outputs.shape[1:]), y.to(outputs.device))

    def gradient(self, x: Tensor, y: Tensor, step: int = 0) -> Tensor:
        """d log p(y | x) / dx, in the shape of x."""
        functions = self.functions(step)
        parts = [self._slope(functions, x[at], y[at], draws)[1] for at, draws in self._cuts(functions, x)]
        return torch.cat(parts)

    def log_prob(self, x: Tensor, y: Tensor, step: int = 0) -> Tensor:
        """log p(y | x) of the same networks, (B,)."""
        functions = self.functions(step)
        with torch.no_grad():
            return torch.cat([self._value(functions, x[at], y[at], draws) for at, draws in self._cuts(functions, x)])

    def labels(self, x: Tensor) -> Tensor:
        """The class that these networks put first, (B,)."""
        functions, likelihood = self.functions(0), self.posterior.likelihood
        found = []
        with torch.no_grad():
            for at, draws in self._cuts(functions, x):
                total = torch.zeros((), device=x.device)
                for chunk in functions.chunks(draws):
                    means = over_draws(likelihood, chunk(x[at]), chunk.noise(), lambda lik, o: lik.mean(o))
                    total = total + means.sum(0)
                found.append(total.argmax(-1))
        return torch.cat(found)

    def prepared(self, x: Tensor) -> Tensor:
        """Inputs where the networks are, in their type."""
        net = self.posterior.net
        moved: Tensor = move(x, net.device, net.dtype)
        return moved

    def _cuts(self, functions: Functions, x: Tensor) -> Iterator[tuple[slice, int]]:
        """Rows and draws at a time that fit the memory of a prediction."""
        plan = plan_chunks(functions, x[:1], None)
        for start in range(0, len(x), plan.rows):
            yield slice(start, start + plan.rows), plan.draws

    def _value(self, functions: Functions, x: Tensor, y: Tensor, draws: int) -> Tensor:
        """Up to the constant -log S."""
        return torch.stack([self._summed(chunk, x, y) for chunk in functions.chunks(draws)]).logsumexp(0)

    def _slope(self, functions: Functions, x: Tensor, y: Tensor, draws: int) -> tuple[Tensor, Tensor]:
        """log sum_s p_s and its gradient: chunks of draws count by their share of the sum."""
        shape = (len(x), *(1,) * (x.dim() - 1))
        value = x.new_full((len(x),), -torch.inf)
        slope = torch.zeros_like(x)
        for chunk in functions.chunks(draws):
            given = x.detach().requires_grad_()
            with torch.enable_grad():
                here = self._summed(chunk, given, y)
                (change,) = torch.autograd.grad(here.sum(), given)
            total = torch.logaddexp(value, here.detach())
            slope = slope * (value - total).exp().view(shape) + change * (here.detach() - total).exp().view(shape)
            value = total
        return value, slope

    def _summed(self, chunk: Functions, x: Tensor, y: Tensor) -> Tensor:
        """log sum_s p_s(y | x) over the draws of a chunk, (B,)."""
        each = over_draws(self.posterior.likelihood, chunk(x), chunk.noise(), lambda lik, o: lik.log_prob(o, y))
        return each.logsumexp(0)
