"""Diagnostics against arviz-stats, against chains whose effective size is known, and at the edges."""

import sys

import numpy as np
import pytest
import torch
from arviz_stats.base import array_stats

from dubito import diagnostics
from dubito.diagnostics import Diagnosis, Diagnostics, choose, summarise


def ar1(rho: float, chains: int, draws: int, k: int, seed: int = 0) -> np.ndarray:
    """Stationary AR(1) chains (chains, draws, k) with unit variance."""
    rng = np.random.default_rng(seed)
    x = np.empty((chains, draws, k))
    x[:, 0] = rng.normal(size=(chains, k))
    for t in range(1, draws):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * rng.normal(size=(chains, k))
    return x


@pytest.mark.parametrize(("chains", "draws"), [(2, 50), (4, 101)])
def test_equals_arviz_per_coordinate(chains: int, draws: int) -> None:
    x = ar1(0.5, chains, draws, 7)
    found = summarise(x)
    for i in range(7):
        assert found.rhat[i] == pytest.approx(array_stats.rhat(x[..., i]), rel=1e-12)
        assert found.ess_bulk[i] == pytest.approx(array_stats.ess(x[..., i]), rel=1e-12)
        assert found.ess_tail[i] == pytest.approx(
            array_stats.ess(x[..., i], method="tail", prob=(0.05, 0.95)), rel=1e-12
        )


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.9])
def test_effective_size_of_autoregressive_chains(rho: float) -> None:
    chains, draws = 4, 2000
    found = summarise(ar1(rho, chains, draws, 20))
    expected = chains * draws * (1 - rho) / (1 + rho)
    assert np.median(found.ess_bulk) == pytest.approx(expected, rel=0.1)


def test_blocks_do_not_change_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    x = ar1(0.3, 2, 40, 9)
    whole = summarise(x)
    monkeypatch.setattr(diagnostics, "_CHUNK", 2 * 40 * 2)
    np.testing.assert_array_equal(summarise(x).rhat, whole.rhat)
    np.testing.assert_array_equal(summarise(x).ess_tail, whole.ess_tail)


def test_shifted_chains_are_found_and_named() -> None:
    x = ar1(0.0, 4, 500, 3)
    assert summarise(x).ok
    x[0, :, 1] += 2.0
    found = summarise(x, ["a", "b", "c"])
    assert found.rhat[1] > 1.1
    assert not found.ok
    assert found.worst(1)[0] == ("b", found.rhat[1], found.ess_bulk[1], found.ess_tail[1])
    assert [one.rhat for one in found.worst(3)] == sorted(found.rhat, reverse=True)


def test_wider_chains_are_found_by_folding() -> None:
    x = ar1(0.0, 4, 500, 1)
    x[0] *= 4.0
    assert summarise(x).rhat[0] > 1.05


def test_too_few_draws_are_not_ok_even_if_mixed() -> None:
    found = summarise(ar1(0.0, 4, 60, 2))
    assert found.ess_bulk.max() < 400
    assert not found.ok


@pytest.mark.parametrize("draws", [4, 5, 6, 7])
@pytest.mark.parametrize("chains", [1, 3])
def test_a_few_draws_are_judged_and_not_called_constant(chains: int, draws: int) -> None:
    found = summarise(ar1(0.0, chains, draws, 5))
    assert np.isfinite(found.rhat).all()
    assert found.constant == ()
    assert not found.ok


def test_one_chain_is_compared_with_itself() -> None:
    x = ar1(0.0, 1, 1000, 2)
    x[0, 500:, 1] += 2.0
    found = summarise(x)
    assert found.rhat[0] < 1.01
    assert found.rhat[1] > 1.5
    assert found.n_chains == 1


def test_constant_coordinates_are_reported() -> None:
    x = ar1(0.0, 2, 500, 3)
    x[..., 1] = 0.25
    found = summarise(x, ["a", "still", "c"])
    assert found.constant == ("still",)
    assert found.ok
    assert [one.name for one in found.worst(5)] in (["a", "c"], ["c", "a"])
    assert "(1 constant)" in str(found)
    nothing = summarise(np.ones((1, 10, 2)))
    assert not nothing.ok
    assert nothing.table()[0] == {"measure": "R-hat", "min": None, "median": None, "max": None, "limit": 1.01}
    assert "–" in str(nothing)


def test_chains_stuck_apart_are_infinitely_bad() -> None:
    found = summarise(np.broadcast_to(np.arange(3.0)[:, None, None], (3, 20, 1)))
    assert found.rhat[0] == np.inf
    assert not found.ok
    assert "inf" in str(found)
    assert "(1 infinite)" in found.plot().axes[0].get_title()


def test_binary_draws_in_equal_number_fold_to_one_value() -> None:
    found = summarise(np.tile([0.0, 1.0], 50).reshape(1, 100, 1))
    assert np.isfinite(found.rhat).all()


def test_tensors_of_single_precision_are_welcome() -> None:
    x = torch.from_numpy(ar1(0.2, 2, 30, 2)).float().requires_grad_()
    np.testing.assert_array_equal(summarise(x).rhat, summarise(x.detach().double()).rhat)


def test_text_shows_spread_and_worst() -> None:
    found = summarise(ar1(0.0, 2, 300, 4), ["a", "b", "c", "d"])
    text = str(found)
    assert text.startswith("4 quantities, 2 chains of 300 draws: ")
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["R-hat", "bulk", "tail"]
    assert f"{found.worst(1)[0].name}: R-hat {found.rhat.max():.3f}" in text
    assert found.table()[1]["min"] == found.ess_bulk.min()
    assert found.table()[1]["limit"] == 200.0


def test_container_joins_weights_and_predictions(tmp_path) -> None:
    good, bad = summarise(ar1(0.0, 2, 500, 2)), summarise(ar1(0.99, 2, 50, 2))
    both = Diagnostics(good, bad)
    assert good.ok and Diagnostics(good).ok and not both.ok
    assert [row["of"] for row in both.table()] == ["weights"] * 3 + ["predictions"] * 3
    assert "weights: 2 quantities" in str(both) and "predictions: 2 quantities" in str(both)
    assert "predictions" not in str(Diagnostics(good))
    figure = both.plot(tmp_path / "mixing.png")
    assert len(figure.axes) == 4
    assert (tmp_path / "mixing.png").read_bytes().startswith(b"\x89PNG")


def test_plot_draws_every_quantity() -> None:
    found: Diagnosis = summarise(ar1(0.0, 2, 50, 12))
    left, right = found.plot().axes
    assert left.get_title() == "R-hat" and right.get_title() == "effective sample size"
    assert left.get_ylim()[1] > 0
    # Every quantity lies between the ends of its histogram.
    assert left.dataLim.x0 <= found.rhat.min() and left.dataLim.x1 >= found.rhat.max()
    assert summarise(np.ones((1, 10, 2))).plot().axes


@pytest.mark.parametrize(("n", "limit"), [(5, 10), (1000, 1000), (79_510, 1000), (7, 1), (1001, 1000)])
def test_choose_spreads_evenly(n: int, limit: int) -> None:
    index = choose(n, limit)
    assert len(index) == min(n, limit) == len(set(index.tolist()))
    assert index[0] == 0 and index[-1] == (n - 1 if limit > 1 else 0)
    gaps = np.diff(index)
    assert limit == 1 or gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: summarise(np.zeros((2, 3, 5))), "at least 4 draws per chain and got 3; keep more samples"),
        (lambda: summarise(np.zeros((2, 3))), r"shape \(2, 3\); give \(chains, draws, K\)"),
        (lambda: summarise(np.zeros((2, 10, 0))), r"give \(chains, draws, K\)"),
        (lambda: summarise(np.zeros((2, 10, 3)), ["a"]), "1 names for 3 coordinates"),
        (lambda: summarise(np.full((2, 10, 1), np.nan), ["w"]), "Coordinate w holds NaN"),
        (lambda: choose(0), "Cannot choose 1000 of 0"),
    ],
)
def test_bad_input_gets_one_sentence(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_missing_arviz_is_one_sentence_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz_stats.base", None)
    with pytest.raises(ImportError, match="pip install arviz-stats"):
        summarise(ar1(0.0, 2, 10, 1))
