"""The flat optimisers against torch's own."""

import pytest
import torch

from dubito import schedules
from dubito.optim import Optimised
from dubito.tick import Tick

STEPS = 30


def loss(theta: torch.Tensor) -> torch.Tensor:
    return ((theta - torch.linspace(-1, 1, theta.shape[-1])).square() * torch.linspace(0.5, 20, theta.shape[-1])).sum()


def ours(settings: Optimised, theta: torch.Tensor) -> torch.Tensor:
    theta = theta.clone()
    state = settings.optim_init(theta)
    for step in range(STEPS):
        grad = torch.func.grad(loss)(theta)
        settings.descend_(theta, grad, state, Tick.at(step, STEPS))
    return theta


def torchs(make, theta: torch.Tensor, rate=None, clip: float | None = None) -> torch.Tensor:
    rows = []
    for row in theta:
        parameter = torch.nn.Parameter(row.clone())
        optimiser = make([parameter])
        for step in range(STEPS):
            for group in optimiser.param_groups:
                group["lr"] = group["lr"] if rate is None else rate(step)
            optimiser.zero_grad()
            loss(parameter).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([parameter], clip)
            optimiser.step()
        rows.append(parameter.detach())
    return torch.stack(rows)


THETA = torch.randn(3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_adam_is_torchs_adam():
    expected = torchs(lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.9, 0.999)), THETA)
    torch.testing.assert_close(ours(Optimised(learning_rate=0.05), THETA), expected)


def test_sgd_is_torchs_sgd_with_momentum():
    expected = torchs(lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.8), THETA)
    torch.testing.assert_close(ours(Optimised(learning_rate=0.01, optimiser="sgd", momentum=0.8), THETA), expected)


def test_each_member_is_clipped_by_its_own_norm():
    scaled = THETA * torch.tensor([[0.01], [1.0], [100.0]], dtype=torch.float64)
    settings = Optimised(learning_rate=0.01, optimiser="sgd", momentum=0.0, clip_norm=1.0)
    expected = torchs(lambda p: torch.optim.SGD(p, lr=0.01), scaled, clip=1.0)
    torch.testing.assert_close(ours(settings, scaled), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"clip_norm": 0.1}, {"optimiser": "sgd"}])
def test_a_gradient_in_stretches_is_the_whole_one(settings, members):
    found = []
    for parted in (False, True):
        theta, settled = THETA[:members].clone(), Optimised(learning_rate=0.01, **settings)
        state = settled.optim_init(theta)
        for step in range(3):
            grad = torch.func.grad(loss)(theta)
            settled.descend_(theta, list(grad.split([2, 4], dim=1)) if parted else grad, state, Tick.at(step, 3))
        found.append(theta)
    torch.testing.assert_close(found[1], found[0])


def test_a_schedule_multiplies_the_rate():
    cosine = schedules.Cosine()
    settings = Optimised(learning_rate=0.02, optimiser="sgd", momentum=0.0, schedule="cosine")
    expected = torchs(lambda p: torch.optim.SGD(p, lr=0.02), THETA, lambda s: 0.02 * cosine(s, STEPS))
    torch.testing.assert_close(ours(settings, THETA), expected)
    assert settings.rates == cosine


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_every_tensor_of_the_state_has_members_first(optimiser):
    state = Optimised(optimiser=optimiser).optim_init(THETA)
    assert all(len(t) == 3 for t in state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be positive, got 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive, got nan"),
        ({"optimiser": "adamw"}, "unknown optimiser 'adamw'; use 'adam' or 'sgd'"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\), got 1.0"),
        ({"clip_norm": 0.0}, "clip_norm must be positive or None, got 0.0"),
        ({"schedule": "cosin"}, "no schedule is called 'cosin'"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Optimised(**settings)
