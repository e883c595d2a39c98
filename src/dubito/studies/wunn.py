"""What the studies after the report on weight uncertainty in neural networks share: its networks on MNIST.

784-800-800-10 with ReLU on pixels in [0, 1]: a plain MLP, one trained with dropout 0.5 that answers without it, and a
Bayesian network by local reparameterisation. The report states neither prior, optimiser nor batch size and trained for
600 epochs; here Adam 1e-3 with a cosine, batches of 128, 100 epochs, and the prior N(0, 1) beside the library's own.
"""

from collections.abc import Mapping

import dubito
from dubito.nn import mlp
from dubito.posteriors.base import Posterior
from dubito.priors import PriorSpec
from dubito.studies import images
from dubito.studies.base import Plan, Settings, built
from dubito.studies.pieces import ahead

EPOCHS, BATCH = 100, 128
MLP, DROPPED, BNN, OWN = "MLP", "MLP, dropout", "BNN, prior N(0, 1)", "BNN, default prior"
PRIORS: dict[str, PriorSpec] = {BNN: dubito.Normal(std=1.0)}


def plans(settings: Settings, n: int) -> dict[str, Plan]:
    """A row for each method."""
    steps = 40 if settings.quick else EPOCHS * (n // BATCH)
    sizes = [784, 30, 10] if settings.quick else [784, 800, 800, 10]
    plain, dropped = built(lambda: mlp(sizes), settings), built(lambda: mlp(sizes, dropout=0.5), settings)
    descent = dubito.MAP(learning_rate=1e-3, schedule="cosine")
    bayes = dubito.Variational(learning_rate=1e-3, schedule="cosine")
    return {
        MLP: Plan(descent, plain, steps, batch_size=BATCH),
        DROPPED: Plan(descent, dropped, steps, batch_size=BATCH),
        BNN: Plan(bayes, plain, steps, batch_size=BATCH),
        OWN: Plan(bayes, plain, steps, batch_size=BATCH),
    }


def fitted(chosen: Mapping[str, Plan], digits: images.Images, settings: Settings) -> dict[str, Posterior]:
    """Every network on the training digits; all studies take them from one folder."""
    shared = settings.beside("wunn")
    ahead(_made, {name: (name,) for name in chosen}, shared)
    return {name: _posterior(name, plan, digits, shared) for name, plan in chosen.items()}


def _posterior(name: str, plan: Plan, digits: images.Images, settings: Settings) -> Posterior:
    train = (digits.train.x.flatten(1), digits.train.y)
    return plan.fit(train, settings, dubito.Categorical(), PRIORS.get(name), folder=settings.folder(name))


def _made(name: str, settings: Settings) -> None:
    digits = images.digits(settings)
    _posterior(name, plans(settings, len(digits.train.x))[name], digits, settings)
