"""Mushrooms: eat or skip, by Thompson sampling under Bayes by Backprop, greedily, and now and then by chance.

Eating an edible mushroom brings 5, a poisonous one -35 or 5 with equal chance, skipping nothing. After every
interaction the networks learn from mini-batches of the last 4,096, which is also the number of data the prior is
weighed against: were it the number of those seen, the first hundreds of draws would be all prior. All runs of a method
are members that train side by side. Prior, noise and rates were chosen on short runs, most of them under other seeds.
"""

from typing import Any

import numpy as np
import torch

import dubito
from dubito.nn import mlp
from dubito.online import Online
from dubito.results import Result, Table
from dubito.studies.base import Settings, Study, built, gather
from dubito.tasks import bandit

EPSILONS = {"greedy": 0.0, "1 % greedy": 0.01, "5 % greedy": 0.05}
THOMPSON = "Bayes by Backprop"
UNIT = 0.1  # rewards are learned in units of ten, where the outputs of a fresh network lie
NOISE = 0.5  # of a reward in that unit
PRIOR = dubito.Normal(std=0.1)
RATE = 3e-3


def arena(settings: Settings) -> bandit.Bandit:
    """All mushrooms: what counts is regret while learning, so there is no split."""
    x, y = gather(["mushroom"]).sets["mushroom"].part("train")
    return bandit.mushrooms(x, y, UNIT)


def learners(game: bandit.Bandit, settings: Settings) -> dict[str, tuple[Online, dict[str, float]]]:
    """A learner for each method, and the policies its runs follow."""
    runs, width, updates = (2, 16, 2) if settings.quick else (5, 100, 16)
    example = game.inputs(torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
    net = built(lambda: mlp([example.shape[1], width, width, 1]), settings)

    def online(method: dubito.Method[Any], count: int) -> Online:
        return Online(
            net, method, example, runs=count, likelihood=dubito.Gaussian(std=NOISE), prior=PRIOR, updates=updates,
            n_data=bandit.BUFFER, seed=settings.seed, device=settings.device,
        )  # fmt: skip

    return {
        "variational": (online(dubito.Variational(learning_rate=RATE, init_std=0.03), runs), {THOMPSON: 0.0}),
        "map": (online(dubito.MAP(learning_rate=RATE), runs * len(EPSILONS)), EPSILONS),
    }


def run(settings: Settings) -> Result:
    """Every agent on the same mushrooms in the same order."""
    interactions, game = 30 if settings.quick else 5000, arena(settings)
    results = {
        name: bandit.play(
            learner, game, policies, interactions, seed=settings.seed, folder=settings.folder(name),
            progress=settings.progress,
        )
        for name, (learner, policies) in learners(game, settings).items()
    }  # fmt: skip
    curves = {agent: np.array(runs) / UNIT for one in results.values() for agent, runs in one.numbers["regret"].items()}
    at = next(iter(results.values())).numbers["interactions"]
    return Result(
        STUDY.name,
        STUDY.title,
        summary=_summary(curves),
        numbers={"interactions": at, "regret": {name: runs.tolist() for name, runs in curves.items()}},
        tables=[bandit.table(curves), _published(interactions)],
        figures=[bandit.figure(at, curves)],
        settings={name: one.settings for name, one in results.items()},
    )


def _summary(curves: bandit.Curves) -> str:
    final = {name: float(runs[:, -1].mean()) for name, runs in curves.items()}
    best = min(final, key=lambda name: final[name])
    return (
        f"Of {len(final)} agents, {best} has the least regret at the end, {final[best]:,.0f} on average over "
        f"{len(curves[best])} runs; {', '.join(f'{n} {v:,.0f}' for n, v in final.items() if n != best)}."
    )


def _published(interactions: int) -> Table:
    rows = [
        (THOMPSON, "about 1e3 after 50,000 interactions", "read off the paper's figure"),
        ("greedy, 1 % and 5 %", "several 1e3 to 1e4 after 50,000 interactions", "read off the paper's figure"),
        ("mini-batches of 64 per interaction", "64", "here 16"),
    ]
    return Table(f"Published, where this run has {interactions:,} interactions", ("what", "published", "note"), rows)


STUDY = Study(
    "wunn-bandit",
    "Thompson sampling: which mushrooms to eat",
    "Blundell, Cornebise, Kavukcuoglu and Wierstra, Weight Uncertainty in Neural Networks (ICML 2015), section 5.3.",
    "regret of Thompson sampling against greedy agents on the Mushroom bandit, five runs each",
    run,
    why="The paper's figure has 50,000 interactions with 64 mini-batches each, here 5,000 with 16. We think that "
    "Thompson sampling gains late, when greedy agents have settled on wrong answers. Runs differ so much that five "
    "of them separate no two agents.",
)
