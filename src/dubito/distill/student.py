"""Dark knowledge: one network learns to predict like a whole posterior.

    classification: minimise  -sum_c p_c log q_c(x')                    p the teacher's probabilities at x'
    regression:     minimise  1/2 log v(x') + (E (m - mu(x'))^2 + E s^2) / (2 v(x'))     m, s^2 its means and variances
    Dirichlet head: minimise  -E log DirichletMultinomial(n p; alpha(x'))    n p labels in a network's own proportions

at perturbed inputs x' = x + noise. Korattikara, Rathod, Murphy and Welling (2015), "Bayesian Dark Knowledge",
https://arxiv.org/abs/1506.04416; the Dirichlet head is the ensemble distribution distillation of Malinin, Mlodozeniec
and Gales (2020), https://arxiv.org/abs/1905.00076, but for the loss: they maximise the density of p, which has no upper
bound where a teacher's networks agree, and learns nothing else from networks that are sure of all they say. Any number
of teacher draws in a step gives the same gradient on average.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dubito.config import is_number
from dubito.functions import widest
from dubito.inputs import Inputs, plain
from dubito.likelihoods import Categorical, Dirichlet, Gaussian, HeteroscedasticGaussian, Likelihood
from dubito.methods.base import check_count
from dubito.net import Net
from dubito.optim import Optimised, OptimState
from dubito.posteriors.storage import MemorySamples
from dubito.posteriors.student import StudentPosterior
from dubito.rng import Rng
from dubito.sums import over_draws
from dubito.tick import Tick

LABELS = 100.0  # in which a network's probabilities are told; concentrations far above it are all alike


@dataclass(frozen=True, kw_only=True)
class DarkKnowledge(Optimised):
    """A student and how it learns."""

    student: nn.Module | None = None  # the teacher's own architecture when None; for regression two outputs per target
    head: Literal["plain", "dirichlet"] = "plain"  # "dirichlet" keeps the disagreement of a classifier's networks
    noise: float = 0.1  # standard deviation of what is added to the inputs, in their own units
    draws: int = 1  # of the teacher in each step
    batch_size: int = 100
    weight_decay: float = 0.0  # gamma: gamma / 2 |w|^2 is added to the mean loss

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head not in ("plain", "dirichlet"):
            raise ValueError(f"unknown head {self.head!r}; use 'plain' or 'dirichlet'")
        check_count(self, "draws", self.draws, 1)
        check_count(self, "batch_size", self.batch_size, 1)
        for name in ("noise", "weight_decay"):
            value = getattr(self, name)
            if not (is_number(value) and value >= 0):
                raise ValueError(f"DarkKnowledge: {name} must be finite and not negative, got {value!r}")
        if not isinstance(self.student, nn.Module | None):
            raise ValueError(
                f"DarkKnowledge: student is {self.student!r}; give a network, an nn.Module, or leave it out"
            )


class LessonState(NamedTuple):
    """The student's weights (1, D) and the moments of its optimiser."""

    theta: Tensor
    optim: OptimState


class LessonInfo(NamedTuple):
    """What a step tells, (1,): the student's loss in nats."""

    loss: Tensor


class Lesson:
    """A student in front of a teacher's predictions."""

    def __init__(self, settings: DarkKnowledge, teacher: Net, likelihood: Likelihood) -> None:
        self.settings, self.taught = settings, likelihood
        self.net = Net(settings.student or teacher.tidied()).to(teacher.device)
        self.likelihood = _student_likelihood(settings, likelihood)
        if likelihood.kind == "regression" and settings.student is None and not self._has_noise:
            raise ValueError("a regression student outputs means and noise; give student= a net with twice the outputs")
        if names := self.net.untouched_norms:
            raise ValueError(
                f"the student's BatchNorm {names[0]!r} has never seen data; use a batch-free norm, or a trained student"
            )

    def init(self) -> LessonState:
        """The student's own weights."""
        theta = self.net.theta().unsqueeze(0).clone()
        return LessonState(theta, self.settings.optim_init(theta))

    @property
    def _has_noise(self) -> bool:
        """Whether the teacher's outputs are means and noise already."""
        return isinstance(self.taught, HeteroscedasticGaussian)

    def check(self, x: Inputs, teacher: Net) -> None:
        """Refuse inputs that do not fit, and students whose outputs cannot say what the teacher says."""
        widest(teacher, x)
        try:
            widest(self.net, x)
        except ValueError as error:
            why = str(error.__cause__ or error).partition("\n")[0]
            raise ValueError(
                f"the student does not accept its teacher's inputs ({why}); give one that does, of {teacher.dtype}"
            ) from error
        with torch.no_grad():
            self._check_outputs(*(net(net.theta(), x) for net in (teacher, self.net)))

    def _check_outputs(self, taught: Tensor, said: Tensor) -> None:
        doubled = self.taught.kind == "regression" and not self._has_noise
        wanted = (*taught.shape[1:-1], taught.shape[-1] * (2 if doubled else 1))
        if said.shape[1:] != wanted:
            shape = tuple(said.shape[1:])
            raise ValueError(f"the student has outputs of {shape} where its teacher's ask for {wanted}; give it those")

    def perturbed(self, x: Inputs, rng: Rng) -> Inputs:
        """Inputs moved a little; whole numbers stay."""
        if not self.settings.noise:
            return x

        def moved(leaf: Tensor) -> Tensor:
            if not leaf.is_floating_point():
                return leaf
            normal = rng.normal_(torch.empty_like(leaf).unsqueeze(0), "perturbation")[0]
            return leaf.add(normal, alpha=self.settings.noise)

        made: Inputs = tree_map(moved, plain(x))
        return made

    def step(self, state: LessonState, x: Inputs, outputs: Tensor, own: dict[str, Tensor], tick: Tick) -> Tensor:
        """One update towards the teacher's outputs (draws, B, ...) at x, each under its own noise; the loss, (1,)."""
        mean = over_draws(self.taught, outputs, own, lambda lik, o: lik.mean(o))
        theta = state.theta.detach().requires_grad_()
        with torch.enable_grad():
            said = self.net(theta[0], x)
            self._check_outputs(outputs[0], said)
            loss = self._loss(said, mean, outputs, own)
            (grad,) = torch.autograd.grad(loss, theta)
        grad.add_(state.theta, alpha=self.settings.weight_decay)
        self.settings.descend_(state.theta, grad, state.optim, tick)
        return loss.detach().view(1)

    def _loss(self, said: Tensor, mean: Tensor, outputs: Tensor, own: dict[str, Tensor]) -> Tensor:
        if self.taught.kind == "regression":
            variance = over_draws(self.taught, outputs, own, lambda lik, o: lik.variance(o))
            return _gaussian_loss(self.likelihood.mean(said), self.likelihood.variance(said), mean, variance)
        if isinstance(self.likelihood, Dirichlet):
            return _dirichlet_loss(self.likelihood.concentration(said).double(), mean).to(said.dtype)
        log_q = self.likelihood.mean(said).clamp_min(torch.finfo(said.dtype).tiny).log()
        return -(mean.mean(0) * log_q).sum(-1).mean()

    def posterior(self, state: LessonState) -> StudentPosterior:
        """The student as it is now."""
        samples = MemorySamples(state.theta.detach().clone().unsqueeze(0))
        return StudentPosterior(self.net, self.likelihood, samples, "point")


def _student_likelihood(settings: DarkKnowledge, taught: Likelihood) -> Likelihood:
    if settings.head == "dirichlet":
        if not isinstance(taught, Categorical):
            raise ValueError(f"a Dirichlet head is for Categorical teachers, and this one has {taught!r}; use 'plain'")
        return Dirichlet(taught.ignore_index, taught.class_axis)
    if taught.kind == "regression":
        if not taught.gaussian:
            raise ValueError(
                f"students learn from Gaussian or class probabilities, and this teacher has {taught!r}; distil it into "
                "a generator or a mixture"
            )
        return Gaussian.heteroscedastic()
    if taught.kind == "outputs":
        raise ValueError(
            f"{taught!r} has no predictive distribution for a student to learn; distil into a generator or a mixture"
        )
    if isinstance(taught, Dirichlet):  # of which a plain head learns the mean alone
        return Categorical(taught.ignore_index, taught.class_axis)
    return replace(taught)  # type: ignore[type-var]


def _gaussian_loss(mu: Tensor, v: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """The teacher's expected -log N(y; mu, v), less log sqrt(2 pi)."""
    square = (means - mu).square().mean(0) + variances.mean(0)
    return 0.5 * (v.log() + square / v).sum(-1).mean()


def _dirichlet_loss(alpha: Tensor, probs: Tensor) -> Tensor:
    """-E log of how likely LABELS labels in a teacher's proportions (draws, B, C) are, in one order."""
    total = alpha.sum(-1)
    seen = (torch.lgamma(alpha + LABELS * probs) - torch.lgamma(alpha)).sum(-1).mean(0)
    return (torch.lgamma(total + LABELS) - torch.lgamma(total) - seen).mean()
