"""Small named networks that can be rebuilt from a recipe, so that a posterior file stands on its own."""

from dubito.nn.bayes import BayesConv1d, BayesConv2d, BayesConv3d, BayesLinear, kl, to_posterior
from dubito.nn.gates import Gate, folded, gated
from dubito.nn.nets import fcnn1, fcnn2, lenet5, mlp, small_cnn, vgg
from dubito.nn.registry import build, names, recipe, register
from dubito.nn.zeros import ZerosKept

__all__ = [
    "BayesConv1d", "BayesConv2d", "BayesConv3d", "BayesLinear", "kl", "to_posterior",
    "build", "fcnn1", "fcnn2", "lenet5", "mlp", "names", "recipe", "register", "small_cnn",
    "vgg", "Gate", "ZerosKept", "folded", "gated",
]  # fmt: skip
