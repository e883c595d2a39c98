"""MAP lands on the mode, whichever optimiser takes it there."""

import pytest
import torch

import dubito


@pytest.mark.parametrize("settings", [{"optimiser": "sgd", "learning_rate": 0.02}, {"learning_rate": 0.05}])
def test_it_lands_on_the_mode(problem, settings):
    method = dubito.MAP(schedule="cosine", **settings)
    posterior = dubito.fit(
        problem.module, (problem.batch.x, problem.batch.y), method, steps=1500, batch_size=12,
        likelihood=dubito.Gaussian(std=0.3), prior=dubito.Normal(2.0), progress=False, device="cpu",
    )  # fmt: skip
    torch.testing.assert_close(posterior.mean_network().weight[0].detach(), problem.mode, rtol=1e-3, atol=1e-3)


def test_one_member_is_a_point_and_several_are_an_ensemble(problem):
    data = (problem.batch.x, problem.batch.y)
    fits = [dubito.fit(problem.module, data, "map", steps=2, members=m, progress=False) for m in (1, 3)]
    assert [posterior.form for posterior in fits] == ["point", "ensemble"]
    with pytest.raises(dubito.Undefined):
        fits[1].mean_network()


def test_sgd_with_momentum_is_torch_s(problem):
    method = dubito.MAP(optimiser="sgd", learning_rate=1e-3, momentum=0.9)
    state = method.init(problem.theta, problem.target, dubito.Tick.at(0, 9))
    oracle = problem.theta.clone().requires_grad_()
    optimiser = torch.optim.SGD([oracle], lr=1e-3, momentum=0.9)
    for step in range(4):
        state, _ = method.step(state, problem.batch, problem.target, dubito.Tick.at(step, 9))
        oracle.grad = -problem.gradient(oracle.detach()) / 12
        optimiser.step()
    torch.testing.assert_close(state.theta, oracle.detach())
