"""Where there is a GPU: distillations that are recorded and replayed end where eager ones do."""

import pytest
import torch
from torch import nn

import dubito
from dubito import capture
from dubito.distill import Adversarial, DarkKnowledge, adversarial, dark_knowledge

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


def teacher() -> tuple[dubito.Posterior, torch.Tensor]:
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    method = dubito.SGLD(burn_in=50, thin=5)
    return dubito.fit(net, (x, (x.sum(1) > 0).long()), method, steps=300, device="cuda", progress=False), x


SETTINGS = [
    Adversarial(noise=4, widths=(16, 16), schedule="linear"),
    Adversarial(objective="wgan", noise=4, widths=(16,)),
    Adversarial(objective="gan", noise=4, widths=(16,), rank=1),
    DarkKnowledge(draws=3, batch_size=32, schedule="cosine"),
    DarkKnowledge(head="dirichlet", batch_size=32),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: f"{type(s).__name__}-{getattr(s, 'objective', '')}")
def test_a_recorded_distillation_equals_the_eager_one(settings, monkeypatch, capsys):
    posterior, x = teacher()
    found = []
    for worth in (1 << 60, 1):
        monkeypatch.setattr(capture, "WORTH", worth)
        options = {"steps": 60, "device": "cuda", "progress": False}
        if isinstance(settings, Adversarial):
            found.append(adversarial(posterior, settings, **options).thetas(8))
        else:
            found.append(dark_knowledge(posterior, x, settings, **options).thetas(1))
    assert "cannot be" not in capsys.readouterr().err
    torch.testing.assert_close(found[1], found[0], rtol=1e-2, atol=1e-3)


def test_distillation_while_sampling_runs_on_a_gpu():
    _, x = teacher()
    sampler = dubito.SGLD(burn_in=20, thin=2)
    for distiller in (Adversarial(noise=4, widths=(16,)), DarkKnowledge()):
        method = dubito.OnlineDistillation(sampler=sampler, distiller=distiller, buffer=20)
        net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        made = dubito.fit(net, (x, (x.sum(1) > 0).long()), method, steps=100, device="cuda", progress=False)
        assert torch.isfinite(made.predict(x).probs).all()
