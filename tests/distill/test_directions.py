"""Games on principal coordinates: the coordinates against an exact decomposition, and the generator that comes out."""

import pytest
import torch
from torch import nn

import dubito
from dubito.distill import Adversarial, adversarial, bank
from dubito.distill.directions import basis, coordinates
from dubito.posteriors.samples import SamplesPosterior
from dubito.posteriors.storage import MemorySamples
from dubito.rng import Rng

QUIET = {"progress": False, "device": "cpu"}


def teacher(n: int, spread: torch.Tensor, seed: int = 0) -> SamplesPosterior:
    """n vectors of ten weights that vary as `spread` says along directions drawn anew."""
    source = torch.Generator().manual_seed(seed)
    turned = torch.linalg.qr(torch.randn(10, 10, generator=source)).Q
    theta = 3 + (torch.randn(n, 10, generator=source) * spread) @ turned.T
    return SamplesPosterior(dubito.Net(nn.Linear(9, 1)), dubito.Gaussian(1.0), MemorySamples(theta.unsqueeze(1)))


def banked(posterior: SamplesPosterior) -> bank.Bank:
    return bank.Bank(posterior.samples, bank.standard(posterior.samples, torch.device("cpu"), False, centred=True))


@pytest.mark.parametrize("n", [12, 4000])
def test_coordinates_are_principal(n, monkeypatch):
    """Of few rows exactly; of many, as much of their variance as the exact ones hold."""
    held = banked(teacher(n, 0.5 ** torch.arange(10.0)))
    monkeypatch.setattr("dubito.distill.directions.SPARE", 10 if n == 12 else 2)
    held._rows = 7
    rows = torch.cat(list(held.pieces())).double()
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    found = coordinates(held, 3, Rng(0), show=False).double()
    back = basis(held, found.float(), show=False).double()
    assert float(found.square().mean()) == pytest.approx(1, rel=1e-5)
    residue = float((rows - found @ back.T).square().sum())
    assert residue == pytest.approx(float(values[3:].square().sum()), rel=1e-3 if n == 12 else 0.05)
    lengths, inner = back.norm(dim=0), back.T @ back
    torch.testing.assert_close(lengths, lengths[:1].expand(3), rtol=1e-3, atol=0)  # one scale for all directions
    assert float((inner - inner.diag().diag()).abs().max()) < 1e-3 * float(inner.max())
    if n == 12:
        cosines = ((back / lengths).T @ right[:3].T).abs()
        torch.testing.assert_close(cosines, torch.eye(3, dtype=cosines.dtype), atol=1e-3, rtol=0)


def test_as_many_directions_as_weights_lose_nothing():
    held = banked(teacher(40, torch.ones(10)))
    rows = torch.cat(list(held.pieces()))
    found = coordinates(held, 10, Rng(0), show=False)
    torch.testing.assert_close(found @ basis(held, found, show=False).T, rows, atol=1e-4, rtol=0)


def test_a_teacher_that_does_not_move_has_coordinates_zero():
    held = banked(teacher(6, torch.zeros(10)))
    found = coordinates(held, 2, Rng(0), show=False)
    assert bool(found.isfinite().all())
    assert bool(basis(held, found, show=False).isfinite().all())


@pytest.mark.parametrize("standardise", [True, False])
def test_generated_vectors_lie_in_the_directions(standardise):
    posterior = teacher(60, torch.tensor([2.0, 1.0] + [0.01] * 8))
    settings = Adversarial(noise=4, widths=(8,), directions=2, standardise=standardise)
    found = adversarial(posterior, settings, steps=3, **QUIET)
    whole = adversarial(posterior, Adversarial(noise=4, widths=(8,)), steps=3, **QUIET)
    assert found.size == whole.size and found.parameters.keys() == whole.parameters.keys()
    mean, std = posterior.moments()
    inward = (found.thetas(50) - mean) / (std if standardise else 1.0)
    values = torch.linalg.svdvals(inward)
    assert float(values[2]) < 1e-3 * float(values[0]) and float(values[1]) > 1e-2


def test_a_finished_run_is_opened_without_looking_at_the_teacher(classifier, tmp_path, monkeypatch):
    settings = Adversarial(noise=4, widths=(8,), directions=3)
    first = adversarial(classifier[0], settings, steps=3, folder=tmp_path, **QUIET)
    monkeypatch.setattr("dubito.distill.offline.coordinates", None)
    again = adversarial(classifier[0], settings, steps=3, folder=tmp_path, **QUIET)
    assert torch.equal(again.thetas(4), first.thetas(4))
    longer = adversarial(classifier[0], settings, steps=5, folder=tmp_path, **QUIET)  # from the coordinates it kept
    assert not torch.equal(longer.thetas(4), first.thetas(4))


def test_what_cannot_be_is_refused_with_the_cure(classifier):
    few = teacher(6, torch.ones(10))
    with pytest.raises(ValueError, match="directions is 6, but 6 vectors of 10 weights vary in 5 at most; ask for"):
        adversarial(few, Adversarial(directions=6), steps=1, **QUIET)
    with pytest.raises(ValueError, match="leave out rank or directions"):
        Adversarial(rank=1, directions=2)
    with pytest.raises(ValueError, match="directions must be at least 1, got 0"):
        Adversarial(directions=0)
    method = dubito.OnlineDistillation(
        sampler=dubito.SGLD(burn_in=2, thin=1), distiller=Adversarial(directions=5), every=2, buffer=5
    )
    with pytest.raises(ValueError, match="directions is 5, but 5 vectors of 11 weights vary in 4 at most"):
        dubito.fit(nn.Linear(9, 1), (torch.zeros(4, 9), torch.zeros(4, 1)), method, steps=20, **QUIET)
