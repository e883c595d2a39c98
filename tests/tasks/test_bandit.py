"""The bandit and its learners: regret of known agents, runs that do not disturb each other, and resume."""

import numpy as np
import pytest
import torch
from torch import nn

import dubito
from dubito.online import Online
from dubito.target import Batch
from dubito.tasks import bandit

G = torch.Generator().manual_seed(0)
X = torch.randn(40, 3, generator=G)
POISON = (X[:, 0] > 0).long()
GAME = bandit.mushrooms(X, POISON)


class Known:
    """Knows the expected reward of everything, or the contrary."""

    def __init__(self, runs, sign=1.0):
        self.runs, self.sign, self.state, self.device = runs, sign, (torch.zeros(1),), torch.device("cpu")
        self.seen = []

    def values(self, x, moment):
        eats = x[..., -1]
        return self.sign * torch.where(x[..., 0] > 0, -15.0, 5.0) * eats

    def learn(self, n, take, moment):
        index = torch.arange(n).expand(self.runs, -1)
        self.seen.append(take(index))
        return torch.zeros(self.runs)

    def describe(self):
        return {"known": self.sign}


def online(method=None, runs=2, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))
    settings = {"likelihood": dubito.Gaussian(std=1.0), "updates": 3, "batch_size": 4, "device": "cpu", **options}
    return Online(net, method or dubito.MAP(), X.new_zeros(1, 5), runs=runs, **settings)


def test_rewards_are_those_of_the_paper():
    assert GAME.expected[POISON == 0].unique(dim=0).tolist() == [[0.0, 5.0]]
    assert GAME.expected[POISON == 1].unique(dim=0).tolist() == [[0.0, -15.0]]
    assert GAME.high[POISON == 1, 1].unique().tolist() == [5.0] and GAME.low[POISON == 1, 1].unique().tolist() == [
        -35.0
    ]


def test_who_knows_has_no_regret_and_who_is_always_wrong_has_all_of_it():
    right = bandit.play(Known(2), GAME, {"a": 0.0}, 50, progress=False).numbers["final"]["a"]
    wrong = bandit.play(Known(2, -1.0), GAME, {"a": 0.0}, 50, progress=False).numbers["regret"]["a"]
    assert right == [0.0, 0.0]
    assert np.isin(np.diff(np.array(wrong), axis=1), [5.0, 15.0]).all()


def test_chance_has_the_expected_regret_and_policies_meet_the_same_contexts():
    learner = Known(40)
    found = bandit.play(learner, GAME, {"known": 0.0, "by chance": 1.0}, 200, progress=False)
    mean = float((GAME.expected.amax(1, keepdim=True) - GAME.expected).mean())
    final = np.array(found.numbers["final"]["by chance"])
    error = final.std(ddof=1) / np.sqrt(len(final))
    assert found.numbers["final"]["known"] == [0.0] * 20 and abs(final.mean() - 200 * mean) < 4 * error + 1e-9
    x, rewards = learner.seen[-1]
    assert torch.equal(x[:20, :, :3], x[20:, :, :3]) and x.shape == (40, 200, 5) and rewards.shape == (40, 200)
    assert set(rewards.unique().tolist()) <= {-35.0, 0.0, 5.0}


def test_only_the_latest_are_learned_from(monkeypatch):
    monkeypatch.setattr(bandit, "BUFFER", 3)
    learner = Known(1)
    bandit.play(learner, GAME, {"a": 1.0}, 6, progress=False)
    assert [x.shape[1] for x, _ in learner.seen] == [1, 2, 3, 3, 3, 3]
    assert torch.equal(learner.seen[3][0][:, 1:], learner.seen[4][0][:, :2])


def test_a_run_learns_from_its_own_rows_alone():
    """Two runs side by side take the steps that each takes alone on its own rows."""
    both = online(dubito.MAP(optimiser="sgd"), updates=1)
    before = both.state.theta.clone()
    x, y = torch.randn(2, 9, 5, generator=G), torch.randn(2, 9, generator=G)
    picked = []

    def take(index):
        picked.append(index)
        at = index.unsqueeze(-1)
        return x.gather(1, at.expand(*index.shape, 5)), y.gather(1, index)

    both.learn(9, take, 0)
    for run in range(2):
        rows = picked[0][run]
        state = both.method.init(before[run : run + 1], both.target, dubito.Tick.at(0, 1))
        batch = Batch(x[run, rows], y[run, rows], rows)
        alone, _ = both.method.step(state, batch, both.target, dubito.Tick.at(0, 1))
        torch.testing.assert_close(alone.theta[0], both.state.theta[run], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "method", [dubito.MAP(), dubito.Variational(), dubito.MCDropout(rate=0.2), dubito.SGLD()], ids=repr
)
def test_values_of_a_run_are_those_of_its_own_network(method):
    learner = online(method, runs=3)
    x = torch.randn(3, 2, 5, generator=G)
    moved = x.clone()
    moved[1] += 1
    first, second = learner.values(x, 0), learner.values(moved, 0)
    assert first.shape == (3, 2) and torch.equal(first[[0, 2]], second[[0, 2]])
    assert not torch.equal(first[1], second[1])
    if method == dubito.MAP():
        outputs = learner.target.net.many(learner.state.theta, x.flatten(0, 1))[..., 0].view(3, 3, 2)
        torch.testing.assert_close(first, torch.stack([outputs[i, i] for i in range(3)]))


@pytest.mark.parametrize(
    "method",
    [dubito.MAP(), dubito.Variational(), dubito.MCDropout(rate=0.2), dubito.ConcreteDropout(rate=0.2), dubito.SGHMC()],
    ids=lambda method: type(method).__name__,
)
def test_a_game_that_was_stopped_goes_on_to_the_same_end(method, tmp_path, monkeypatch):
    whole = bandit.play(online(method), GAME, {"a": 0.1}, 8, progress=False)
    save, step = bandit._Game.save, bandit._Game.step

    def stop(self, state, tick):
        if tick.step == 5:
            save(self, state, 5)
            raise KeyboardInterrupt
        return step(self, state, tick)

    monkeypatch.setattr(bandit._Game, "step", stop)
    with pytest.raises(KeyboardInterrupt):
        bandit.play(online(method), GAME, {"a": 0.1}, 8, folder=tmp_path / "run", progress=False)
    monkeypatch.setattr(bandit._Game, "step", step)
    resumed = bandit.play(online(method), GAME, {"a": 0.1}, 8, folder=tmp_path / "run", progress=False)
    assert resumed.numbers == whole.numbers
    assert (
        bandit.play(online(method), GAME, {"a": 0.1}, 8, folder=tmp_path / "run", progress=False).numbers
        == whole.numbers
    )
    with pytest.raises(ValueError, match="holds another run"):
        bandit.play(online(method), GAME, {"a": 0.2}, 8, folder=tmp_path / "run", progress=False)


def test_wrong_input_is_one_sentence():
    with pytest.raises(ValueError, match="3 runs cannot be shared out to 2 policies"):
        bandit.play(Known(3), GAME, {"a": 0.0, "b": 0.1}, 5)
    with pytest.raises(ValueError, match=r"epsilon is a probability, got a=1.5"):
        bandit.play(Known(1), GAME, {"a": 1.5}, 5)
    with pytest.raises(ValueError, match=r"need rewards \(N, actions\)"):
        bandit.Bandit(X, torch.zeros(3, 2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="plans for a number of steps that is not known here"):
        online(dubito.MAP(schedule="cosine"))
    with pytest.raises(ValueError, match=r"use settings .* warm_up=schedules\.WarmUp\(steps\) where it warms up"):
        online(dubito.SparseVD())
    assert online(dubito.SparseVD(warm_up=dubito.schedules.WarmUp(10))).runs == 2 and online("variational").runs == 2
    with pytest.raises(ValueError, match="HMC needs all rows at hand"):
        online(dubito.HMC())
    with pytest.raises(ValueError, match=r"the network gives \(1, 2\) for 1 row\(s\), not one value each"):
        Online(nn.Linear(5, 2), "map", X.new_zeros(1, 5), runs=1, likelihood=dubito.Gaussian(std=1.0), device="cpu")
    with pytest.raises(ValueError, match="runs must be at least 1, got 0"):
        online(runs=0)
    with pytest.raises(ValueError, match="interactions is 0; play at least 1"):
        bandit.play(Known(1), GAME, {"a": 0.0}, 0)
    with pytest.raises(ValueError, match=r"interactions must be a whole number, got 2\.5"):
        bandit.play(Known(1), GAME, {"a": 0.0}, 2.5)
    with pytest.raises(ValueError, match=r"policies come by name, and \['a'\] has none; give {name: epsilon}"):
        bandit.play(Known(1), GAME, ["a"], 5)
    with pytest.raises(ValueError, match="epsilon is a probability, got a=often"):
        bandit.play(Known(1), GAME, {"a": "often"}, 5)
    with pytest.raises(ValueError, match="contexts or rewards hold NaN or infinity"):
        bandit.Bandit(X * torch.nan, torch.zeros(len(X), 2), torch.zeros(len(X), 2))
    with pytest.raises(ValueError, match=r"poisonous holds \[0, 3\]; give 1 for a poisonous one"):
        bandit.mushrooms(torch.zeros(2, 3), torch.tensor([0, 3]))
    game = bandit.mushrooms(torch.zeros(2, 3).numpy(), [False, True])
    assert game.expected.tolist() == [[0.0, 5.0], [0.0, -15.0]]


def test_the_prior_is_weighed_against_as_many_data_as_there_are_or_as_told():
    take = lambda index: (torch.zeros(*index.shape, 5), torch.zeros(index.shape))  # noqa: E731
    counted, fixed = online(), online(n_data=64)
    for learner in (counted, fixed):
        learner.learn(7, take, 0)
    assert counted.target.n_data == 7 and fixed.target.n_data == 64
