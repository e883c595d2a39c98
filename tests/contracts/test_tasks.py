"""Every method and every distilled posterior in every task: it works, or one sentence says why it cannot."""

from dataclasses import fields, replace
from functools import cache
from typing import get_args

import pytest
import torch

import dubito
from dubito import distill, methods
from dubito.likelihoods import Dirichlet
from dubito.results import Result
from dubito.tasks import FGSM, OOD, PGD, SCORES, Active, Robustness, Selective, TargetedFGSM, Trajectory
from dubito.tasks.active import Acquisition

METHODS = methods.registry()
SEVERAL = {"bald", "vote_ratio", "top_spread"}  # scores that one network cannot have


def data(n: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(n, 16, generator=torch.Generator().manual_seed(0))
    return x, (x[:, :8].mean(1) > x[:, 8:].mean(1)).long()


def fit(name: str, rows: tuple[torch.Tensor, torch.Tensor], seed: int = 0) -> dubito.Posterior:
    wished = {"burn_in": 4, "thin": 2, "cycles": 2, "leapfrog": 3, "exploration": 0.5}
    method = METHODS[name]()
    settable = {f.name for f in fields(method) if f.init}
    short = replace(method, **{k: v for k, v in wished.items() if k in settable})
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(16, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    return dubito.fit(net, rows, short, steps=12, seed=seed, progress=False, device="cpu")


def online(distiller: distill.Adversarial | distill.DarkKnowledge) -> dubito.Posterior:
    sampler = dubito.SGLD(burn_in=4, thin=2)
    method = dubito.OnlineDistillation(sampler=sampler, distiller=distiller, every=2, buffer=2)
    net = torch.nn.Sequential(torch.nn.Linear(16, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    return dubito.fit(net, data(), method, steps=12, progress=False, device="cpu")


DISTILLED = {
    "generator": lambda chain: distill.adversarial(chain, steps=2, progress=False, device="cpu"),
    "mixture": lambda chain: distill.mixture(chain, distill.Mixture(components=2), progress=False, device="cpu"),
    "student": lambda chain: distill.dark_knowledge(chain, data()[0], steps=2, progress=False, device="cpu"),
    "Dirichlet student": lambda chain: distill.dark_knowledge(
        chain, data()[0], distill.DarkKnowledge(head="dirichlet"), steps=2, progress=False, device="cpu"
    ),
    "online generator": lambda _: online(distill.Adversarial(noise=2, widths=(4,))),
    "online student": lambda _: online(distill.DarkKnowledge()),
}


@cache
def made(name: str) -> dubito.Posterior:
    return DISTILLED[name](made("SGLD")) if name in DISTILLED else fit(name, data())


@pytest.fixture(params=[*sorted(METHODS), *DISTILLED])
def case(request) -> tuple[str, dubito.Posterior]:
    return request.param, made(request.param)


def missing(posterior: dubito.Posterior) -> set[str]:
    """What one network cannot tell; with a Dirichlet head it cannot vote alone."""
    if posterior.predict(data()[0], draws=5).n_draws > 1:
        return set()
    return {"vote_ratio"} if isinstance(posterior.likelihood, Dirichlet) else SEVERAL


def test_ood(case):
    name, posterior = case
    far = torch.randn(10, 16, generator=torch.Generator().manual_seed(1))
    found = OOD(draws=5, bootstrap=5, shown=2).run({name: posterior}, {"inside": data(), "far": far}).numbers
    assert set(found["detection"]["far"][name]) == set(SCORES) - missing(posterior)
    assert set(found["undefined"][name]) == missing(posterior)
    assert all("needs several networks" in why for why in found["undefined"][name].values())


def test_selective(case):
    name, posterior = case
    rows = data()
    found = Selective(draws=5).run({name: posterior}, {"test": rows, "validation": rows, "unknown": rows[0][:4]})
    assert set(found.numbers["aurc"][name]) == set(SCORES) - missing(posterior)
    assert set(found.numbers["threshold"][name]) == set(SCORES) - missing(posterior)


@pytest.mark.parametrize("attack", [FGSM(draws=2), PGD(steps=2, draws=2, fresh=True, norm="l2", restarts=1)])
def test_robustness(case, attack):
    name, posterior = case
    task = Robustness(attack=attack, epsilons=(0.0, 0.1), draws=5, bootstrap=5, shown=2)
    found = task.run({name: posterior}, {"test": data()}).numbers
    assert set(found["against epsilon"][name]) == {"0", "0.1"}
    assert set(found["detection"][name][name]) == set(SCORES) - missing(posterior)


def test_trajectory(case):
    name, posterior = case
    task = Trajectory(attack=TargetedFGSM(steps=2, draws=2), draws=5)
    found = task.run({name: posterior}, {"test": data()}).numbers[name]
    assert found["steps"] == [0, 1, 2] and len(found["fared"]) == 3


@pytest.mark.parametrize("acquisition", get_args(Acquisition))
@pytest.mark.parametrize("name", sorted(METHODS))
def test_active(name, acquisition):
    task = Active(acquisition=acquisition, batch=2, rounds=1, start=4, draws=5)

    def run() -> Result:
        return task.run(lambda rows, _, seed: fit(name, rows, seed), {"pool": data(), "test": data()})

    if acquisition in ("bald", "batch_bald", "mean_std") and missing(made(name)):
        with pytest.raises(dubito.Undefined, match="needs several networks"):
            run()
    else:
        assert run().numbers["labels"] == [4, 6]
