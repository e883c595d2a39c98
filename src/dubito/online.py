"""Learning on from data that keep coming: a method's own steps on a buffer that grows, several runs side by side.

Every run is a member with data of its own, and all take their step at once.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dubito import methods, priors
from dubito.functions import widest
from dubito.initial import starting_points
from dubito.likelihoods import Likelihood
from dubito.methods.base import Method, check_count
from dubito.net import Net
from dubito.priors import PriorSpec
from dubito.rng import Rng, derive, generator
from dubito.runtime import pick_device
from dubito.target import Batch, Target, fixed_names
from dubito.tick import Tick

ENDLESS = 1 << 40  # steps: nobody knows when the data end
Take = Callable[[Tensor], tuple[Tensor, Tensor]]


class Online:
    """A method that learns on: `runs` members on data of their own, `updates` steps of `batch_size` rows at a time.

    n_data: how many data the prior is weighed against, as many as there are where it is left out. A larger number
    counts early data more than once, as replay buffers of a fixed size do.
    """

    def __init__(
        self,
        net: nn.Module,
        method: Method[Any] | str,
        example: Tensor,
        *,
        runs: int,
        likelihood: Likelihood,
        prior: PriorSpec | None = None,
        updates: int = 64,
        batch_size: int = 64,
        draws: int = 2,
        n_data: int | None = None,
        seed: int = 0,
        device: str | torch.device = "auto",
    ) -> None:
        method = methods.find(method)
        check_count(self, "runs", runs, 1)
        if method.depends_on_steps:
            raise ValueError(
                f"{method!r} plans for a number of steps that is not known here; use settings that do not depend on "
                "it, such as schedule='constant', or warm_up=schedules.WarmUp(steps) where it warms up"
            )
        if method.needs_all_rows or method.needs_index:
            raise ValueError(f"{type(method).__name__} needs all rows at hand, which grow here; use another method")
        where, assigned = pick_device(device), priors.assign(prior, net)
        prepared = method.prepare(Net(net, fixed_names(assigned)).to(where), example.to(where))
        method.check(prepared, assigned, likelihood)
        _check_outputs(prepared, example.to(where))
        self.method, self.runs, self.updates, self.batch_size, self.draws = method, runs, updates, batch_size, draws
        self.seed, self.device, self.n_data = seed, where, n_data
        self.target = Target(prepared, likelihood, assigned, n_data=1)
        start = self.target.start(starting_points(prepared, runs, seed, None))
        self.state = method.init(start, self.target, self._tick(0))

    def learn(self, n: int, take: Take, moment: int) -> Tensor:
        """Take the steps of one moment on n rows a run; returns the mean loss of each run in nats per datum, (S,).

        `take` gives the rows at some indices, (S, B) -> (S, B, ...) and (S, B).
        """
        self.target.n_data = self.n_data or n
        source = generator(self.device, self.seed, "rows", moment)
        size = (self.updates, self.runs, self.batch_size)
        index = torch.randint(n, size, generator=source, device=self.device)
        losses = torch.zeros(self.runs, device=self.device)
        for number, rows in enumerate(index):
            x, y = take(rows)
            batch = Batch(x, y, rows, own=True)
            with torch.no_grad():
                tick = self._tick(moment * self.updates + number)
                self.state, info = self.method.step(self.state, batch, self.target, tick)
            losses += info.fit + info.complexity
        return losses / self.updates

    def values(self, x: Tensor, moment: int) -> Tensor:
        """The outputs at x (S, rows, ...) of each run's own draws, averaged over them: (S, rows)."""
        posterior = self.method.posterior(self.state, self.target)
        functions = posterior.draw(self.draws * self.runs, derive(self.seed, "draws", moment))
        outputs = functions(x.flatten(0, 1)).squeeze(-1)
        apart = outputs.view(-1, self.runs, self.runs, x.shape[1])  # draw i belongs to run i modulo runs
        return apart.diagonal(dim1=1, dim2=2).mean(0).T

    def describe(self) -> dict[str, Any]:
        """Settings, for folders and results."""
        from dubito.config import to_dict

        return {
            "method": to_dict(self.method),
            "likelihood": to_dict(self.target.likelihood),
            "runs": self.runs,
            "updates": self.updates,
            "batch_size": self.batch_size,
            "draws": self.draws,
            "n_data": self.n_data,
            "seed": self.seed,
        }

    def _tick(self, step: int) -> Tick:
        return Tick(torch.tensor(step), ENDLESS, Rng(self.seed, step))


def _check_outputs(net: Net, example: Tensor) -> None:
    """Refuse a network that does not give one value for each row."""
    widest(net, example)
    with torch.no_grad():
        shape = tuple(net(net.theta(), example).shape)
    if shape not in ((len(example),), (len(example), 1)):
        raise ValueError(
            f"the network gives {shape} for {len(example)} row(s), not one value each; let it end in 1 output"
        )
