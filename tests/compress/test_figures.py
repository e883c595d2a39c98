"""Pictures of sparsity hold the numbers they claim to."""

import numpy as np
import pytest
import torch
from torch import nn

import dubito
from dubito.compress import figures
from dubito.net import Net
from dubito.posteriors.sparse import SparsePosterior


def made() -> SparsePosterior:
    torch.manual_seed(0)
    net = Net(nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(12, 2)))
    mean = torch.full((1, net.layout.size), 0.1)
    std = torch.full_like(mean, 0.05)
    for name in ("0.bias", "2.bias"):
        std[:, net.layout.spans[name]] = 0
    std[:, net.layout.spans["0.weight"].start : net.layout.spans["0.weight"].start + 4] = 10.0  # the first filter
    return SparsePosterior(net, dubito.Categorical(), mean, std)


def test_log_alpha_by_layer():
    figure = figures.log_alphas(made())
    data = figure.panels[0].data
    assert [series["label"] for series in data["series"]] == ["0.weight", "2.weight"]
    width = np.diff(data["edges"])
    first, second = (np.asarray(series["y"]) * width for series in data["series"])
    right = np.asarray(data["edges"][:-1]) >= 3
    assert first[right].sum() == pytest.approx(4 / 12) and second[right].sum() == 0
    assert first.sum() == pytest.approx(1) and "above 3" in figure.caption
    assert "beyond 12 either way is drawn at the edge" in figure.caption
    assert figure.options["marks"] == {"threshold": 3.0}


def test_matrix_and_filters_show_the_zeros():
    posterior = made()
    sparse = posterior.mean_network()
    figure = figures.matrices(posterior.net.network(posterior.mean[0]), sparse, "0.weight")
    before, after = (panel.data["values"] for panel in figure.panels)
    assert before.shape == after.shape == (3, 4) and not after[0].any() and figure.options["cells"]
    np.testing.assert_allclose(before, 1.0)
    np.testing.assert_allclose(after[1:], 1.0)
    picture = figures.filters(sparse)
    assert picture is not None and picture.panels[0].data["captions"] == ["0", "", ""]
    assert figures.filters(nn.Linear(2, 2)) is None


def test_all_pictures_of_a_fit(monkeypatch):
    """The matrix is the largest one that fits, or the smallest where none does."""
    posterior, records = made(), [{"step": 20, "sparsity/0.weight": 0.1}]
    plain = posterior.net.network(posterior.mean[0])
    shown = figures.standard(posterior, plain, records, 20)
    assert [figure.name for figure in shown] == ["log-alpha", "sparsity", "matrix", "filters"]
    assert shown[2].title == "Weights of 2.weight" and "a plain fit" in shown[2].caption
    monkeypatch.setattr(figures, "MOST", 3)
    assert figures.standard(posterior, plain, records, 20)[2].title == "Weights of 0.weight"


def test_sparsity_over_epochs_comes_from_the_history():
    records = [{"step": 10, "fit": 1.0}, {"step": 20, "sparsity/a": 0.1}, {"step": 40, "sparsity/a": 0.4}]
    (series,) = figures.sparsity_over_epochs(records, 20).panels[0].data["series"]
    assert series["label"] == "a" and series["x"] == [1.0, 2.0] and series["y"] == [0.1, 0.4]
    with pytest.raises(ValueError, match="the records tell no sparsity"):
        figures.sparsity_over_epochs(records[:1], 20)
