"""What the demo fits: three small problems, and how long each method is given for them.

The digits' network, prior, dropout rate and SGLD step were chosen by the likelihood of a quarter of the training digits
held out; test digits and non-digits had no say. On the toys HMC, the reference, stands beside the others.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from dubito.data import Split, load, toys
from dubito.likelihoods import Categorical, Gaussian, Likelihood
from dubito.methods.base import Method, Sampler
from dubito.methods.hmc import HMC
from dubito.methods.map import MAP
from dubito.methods.mc_dropout import MCDropout
from dubito.methods.recipes import DeepEnsemble
from dubito.methods.sgld import SGLD
from dubito.nn import mlp
from dubito.nn.nets import Activation
from dubito.posteriors.base import Posterior
from dubito.priors import FanIn, Normal, PriorLike
from dubito.studies.base import Plan, Settings, built

PLAIN, ENSEMBLE, DROPOUT, LANGEVIN, REFERENCE = "plain net", "deep ensemble", "MC dropout", "SGLD", "HMC"
NOISE = 0.15  # of the line's data, and known to its likelihood
_QUICK = 24  # updates of a run that only has to pass through every line


Chosen = Mapping[str, tuple[Method[Any], int, int | None]]  # name: method, updates, members


@dataclass(frozen=True, eq=False)
class Fit:
    """A posterior, and the seconds it took."""

    posterior: Posterior
    seconds: float


@dataclass(frozen=True, eq=False)
class Problem:
    """Data, what is assumed about them, and a plan for each method."""

    name: str
    data: Split
    likelihood: Likelihood
    prior: PriorLike
    plans: Mapping[str, Plan]

    def fit(self, settings: Settings) -> dict[str, Fit]:
        """Carry out every plan, saying which."""
        return {name: self._timed(name, plan, settings) for name, plan in self.plans.items()}

    def _timed(self, name: str, plan: Plan, settings: Settings) -> Fit:
        say = _teller(settings.progress)
        say(f"  {self.name:8} {name:14}")
        start = time.perf_counter()
        quiet = Settings(settings.quick, settings.device, settings.seed, progress=False)
        posterior = plan.fit(self.data, quiet, self.likelihood, self.prior)
        seconds = time.perf_counter() - start
        say(f"{seconds:5.1f} s\n")
        return Fit(posterior, seconds)

    def describe(self) -> dict[str, Any]:
        """As plain values, for the settings of a result."""
        return {name: plan.describe() for name, plan in self.plans.items()}


def digits(settings: Settings) -> tuple[Problem, Callable[[Tensor], Tensor]]:
    """Handwritten digits, and how images become the network's inputs."""
    train = load("digits").part("train")
    centre, spread = train.x.mean(), train.x.std()

    def inputs(images: Tensor) -> Tensor:
        return (images.flatten(1) - centre) / spread

    chosen: Chosen = {
        PLAIN: (MAP(), 800, None),
        ENSEMBLE: (DeepEnsemble(), 800, None),
        DROPOUT: (MCDropout(rate=0.25), 1300, None),
        LANGEVIN: (SGLD(step_size=0.3 / len(train.y), burn_in=1500, thin=20), 3500, 4),
    }
    data = Split(inputs(train.x), train.y)
    return Problem("digits", data, Categorical(), Normal(std=1.0), _plans([64, 100, 100, 10], chosen, settings)), inputs


def plane(settings: Settings) -> Problem:
    """Two classes of ten points each in the plane."""
    chosen: Chosen = {
        PLAIN: (MAP(learning_rate=1e-2), 500, None),
        ENSEMBLE: (DeepEnsemble(learning_rate=1e-2), 500, None),
        DROPOUT: (MCDropout(rate=0.25, learning_rate=1e-2), 1000, None),
        LANGEVIN: (SGLD(step_size=5e-3, burn_in=1000, thin=20), 4000, 8),
        REFERENCE: (HMC(leapfrog=20, burn_in=60), 160, 8),
    }
    return Problem("plane", toys.blobs(), Categorical(), Normal(std=1.0), _plans([2, 10, 10, 2], chosen, settings))


def line(settings: Settings) -> Problem:
    """A curve seen at twenty points, with a gap between them."""
    chosen: Chosen = {
        PLAIN: (MAP(learning_rate=1e-2), 800, None),
        ENSEMBLE: (DeepEnsemble(learning_rate=1e-2), 800, None),
        DROPOUT: (MCDropout(rate=0.1, learning_rate=1e-2), 1000, None),
        LANGEVIN: (SGLD(step_size=1e-4, burn_in=2000, thin=20), 5000, 8),
        REFERENCE: (HMC(leapfrog=50, burn_in=40), 90, 8),
    }
    data = toys.clusters(n=20, noise_std=NOISE)
    plans = _plans([1, 50, 1], chosen, settings, activation="tanh")
    return Problem("line", data, Gaussian(std=NOISE), FanIn(gain=math.sqrt(2)), plans)


def _plans(
    sizes: list[int],
    chosen: Chosen,
    settings: Settings,
    activation: Activation = "relu",
) -> dict[str, Plan]:
    net = built(lambda: mlp(sizes, activation), settings)
    return {name: _plan(net, *each, settings.quick) for name, each in chosen.items()}


def _plan(net: nn.Module, method: Method[Any], steps: int, members: int | None, quick: bool) -> Plan:
    """The plan, or one of the same kind that is over at once."""
    if not quick:
        return Plan(method, net, steps, members)
    if isinstance(method, HMC):
        method = replace(method, leapfrog=2)
    if isinstance(method, Sampler):
        method = replace(method, burn_in=_QUICK // 2, thin=1)
    return Plan(method, net, _QUICK, 2 if members else None)


def _teller(wanted: bool) -> Callable[[str], object]:
    return (lambda text: print(text, end="", file=sys.stderr, flush=True)) if wanted else (lambda text: None)
