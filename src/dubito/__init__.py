"""dubito, "I doubt": networks that know when they do not know."""

__version__ = "0.1.0"

from dubito.fit import fit
from dubito.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson
from dubito.loop import Diverged, Interrupted
from dubito.methods.base import Method, Tick
from dubito.methods.hmc import HMC
from dubito.methods.map import MAP
from dubito.methods.mc_dropout import MCDropout
from dubito.methods.psgld import PSGLD
from dubito.methods.recipes import CyclicalSGHMC, CyclicalSGLD, DeepEnsemble, SnapshotEnsemble
from dubito.methods.sghmc import SGHMC
from dubito.methods.sgld import SGLD
from dubito.net import Net
from dubito.plan import plan
from dubito.posteriors.base import Posterior
from dubito.posteriors.load import load, merge
from dubito.prediction import Prediction, Undefined
from dubito.priors import FanIn, Fixed, Laplace, Normal, Point, Prior, ScaleMixture, StudentT
from dubito.target import Target

__all__ = [
    "fit", "plan", "load", "merge",
    "Posterior", "Prediction", "Method", "Target", "Net", "Tick",
    "MAP", "DeepEnsemble", "SnapshotEnsemble", "MCDropout",
    "SGLD", "PSGLD", "SGHMC", "CyclicalSGLD", "CyclicalSGHMC", "HMC",
    "Likelihood", "Categorical", "Bernoulli", "Gaussian", "Poisson",
    "Prior", "Normal", "ScaleMixture", "Laplace", "StudentT", "FanIn", "Fixed", "Point",
    "Undefined", "Interrupted", "Diverged",
]  # fmt: skip
