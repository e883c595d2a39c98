"""Where there is a GPU: distillations that are recorded and replayed end where eager ones do."""

import pytest
import torch
from torch import nn

import dubito
from dubito import capture
from dubito.distill import Adversarial, DarkKnowledge, adversarial, dark_knowledge
from dubito.loop import Diverged

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
    Adversarial(noise=4, widths=(16,), directions=8),
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


SAMPLER = dubito.SGLD(burn_in=6, thin=3)
GENERATOR = Adversarial(noise=4, widths=(16,), schedule="linear")
ONLINE = {
    "generator": dubito.OnlineDistillation(sampler=SAMPLER, distiller=GENERATOR, every=6, buffer=10),
    "rounds": dubito.OnlineDistillation(sampler=SAMPLER, distiller=GENERATOR, every=4, rounds=3, buffer=10, restart=12),
    "along": dubito.OnlineDistillation(
        sampler=SAMPLER, distiller=Adversarial(noise=4, widths=(16,), directions=6), every=6, buffer=10
    ),
    "student": dubito.OnlineDistillation(sampler=SAMPLER, distiller=DarkKnowledge(schedule="cosine"), every=3),
    "lessons": dubito.OnlineDistillation(sampler=SAMPLER, distiller=DarkKnowledge(optimiser="sgd"), every=3, rounds=2),
}


def online(method, **options):
    """A fit on a GPU, and what its history says."""
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    net, records = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), []
    settings = {"steps": 90, "batch_size": 20, "device": "cuda", "progress": False, "callback": records.append}
    made = dubito.fit(net, (x, (x.sum(1) > 0).long()), method, **{**settings, **options})
    return made.thetas(4).cpu(), torch.tensor([[r["fit"], r["learner"]] for r in records])


@pytest.fixture
def replays(monkeypatch):
    """The steps that were replayed."""
    taken, replay = [], capture._Replay.__call__

    def counted(self, step):
        taken.append(step)
        replay(self, step)

    monkeypatch.setattr(capture._Replay, "__call__", counted)
    return taken


def eager_and_recorded(method, monkeypatch, **options):
    found = []
    for worth in (1 << 60, 1):
        monkeypatch.setattr(capture, "WORTH", worth)
        found.append(online(method, **options))
    return found


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("name", ONLINE)
def test_distillation_while_sampling_is_recorded_and_equals_the_eager_one(name, members, monkeypatch, capsys, replays):
    eager, recorded = eager_and_recorded(ONLINE[name], monkeypatch, members=members)
    assert "cannot be" not in capsys.readouterr().err
    assert len(replays) > 60 and any((step + 1) % ONLINE[name].every == 0 for step in replays)
    for ours, known in zip(recorded, eager, strict=True):
        torch.testing.assert_close(ours, known, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", ["generator", "student"])
def test_distillation_while_sampling_can_be_compiled(name, monkeypatch, capsys, replays):
    monkeypatch.setattr(capture, "WORTH", 1 << 60)
    eager = online(ONLINE[name])
    monkeypatch.setattr(capture, "WORTH", 1)
    fused = online(ONLINE[name], compiled=True)
    assert "cannot be" not in capsys.readouterr().err and len(replays) > 60
    for ours, known in zip(fused, eager, strict=True):
        torch.testing.assert_close(ours, known, rtol=1e-2, atol=1e-3)


def test_every_kind_of_step_sees_augmented_rows(monkeypatch, capsys, replays):
    """They are put where recorded steps find them, while steps of other kinds are still taken eagerly."""

    def augment(x, generator):
        return x + 0.1 * torch.randn(x.shape, generator=generator, device=x.device)

    eager, recorded = eager_and_recorded(ONLINE["student"], monkeypatch, augment=augment)
    assert "cannot be" not in capsys.readouterr().err and len(replays) > 60
    for ours, known in zip(recorded, eager, strict=True):
        torch.testing.assert_close(ours, known, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", ["generator", "student"])
def test_recorded_distillation_while_sampling_goes_on_where_it_stopped(name, tmp_path):
    class Stop(Exception):
        pass

    def brake(record):
        if record["step"] >= 60:
            raise Stop

    whole, _ = online(ONLINE[name], folder=tmp_path / "whole")
    with pytest.raises(Stop):
        online(ONLINE[name], folder=tmp_path / "parts", checkpoint_every=50, callback=brake)
    parts, _ = online(ONLINE[name], folder=tmp_path / "parts", checkpoint_every=50)
    torch.testing.assert_close(parts, whole, rtol=1e-2, atol=1e-3)


def test_recorded_distillation_while_sampling_stops_when_it_diverges():
    wild = dubito.OnlineDistillation(
        sampler=dubito.SGLD(step_size=1e3, burn_in=6, thin=3), distiller=GENERATOR, buffer=10
    )
    with pytest.raises(Diverged):
        online(wild, steps=300)
