"""Pictures of sparsity: log alpha by layer, zeros over epochs, a matrix and filters before and after."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from dubito import plots
from dubito.plots import Series
from dubito.posteriors.sparse import SparsePosterior
from dubito.results import Figure

BINS = 60
REACH = 12.0  # of log alpha, either way; what lies beyond is shown at the edge
MOST = 300  # rows or columns of a matrix that are drawn
PREFIX = "sparsity/"  # of history records

Floats = NDArray[np.float64]


def log_alphas(posterior: SparsePosterior, name: str = "log-alpha") -> Figure:
    """How log alpha is spread in each layer, of the first network; weights right of the threshold are zero."""
    _check(posterior)
    size = posterior.net.layout.size
    values = posterior.net.layout.split(posterior.log_alpha()[0, :size].double().cpu())
    edges = np.linspace(-REACH, REACH, BINS + 1)
    series = [
        Series(layer, np.histogram(values[layer].numpy().clip(-REACH, REACH), edges, density=True)[0])
        for layer in posterior.sparsity()
    ]
    caption = (
        f"Weights with log alpha above {posterior.threshold:g} count as 0. What lies beyond {REACH:g} either way is "
        "drawn at the edge."
    )
    return plots.histogram(
        name, "Dropout rates of the weights", edges, series, x_label="log alpha", y_label="density", caption=caption,
        marks={"threshold": posterior.threshold},
    )  # fmt: skip


def sparsity_over_epochs(records: Sequence[Mapping[str, float]], per_epoch: int, name: str = "sparsity") -> Figure:
    """The share of zeros in each layer over a run, from the records that `fit(callback=...)` was given."""
    if per_epoch < 1:
        raise ValueError(f"per_epoch is {per_epoch}; give the updates of an epoch, rows // batch size, at least 1")
    noted = [record for record in records if any(key.startswith(PREFIX) for key in record)]
    if not noted:
        raise ValueError("the records tell no sparsity; collect those of a SparseVD fit with callback=records.append")
    epochs = [record["step"] / per_epoch for record in noted]
    layers = [key for key in noted[0] if key.startswith(PREFIX)]
    series = [Series(key.removeprefix(PREFIX), [record[key] for record in noted], epochs) for key in layers]
    return plots.lines(name, "Zeros by layer while training", series, x_label="epoch", y_label="share of zeros")


def matrices(before: nn.Module, after: nn.Module, layer: str, name: str = "matrix", caption: str = "") -> Figure:
    """The size of a layer's weights in two networks of one shape, each against its largest.

    At most so many rows and columns.
    """
    pictures = {}
    for label, network in (("before", before), ("after", after)):
        values = _magnitudes(network, layer)
        shown = values[:MOST, :MOST] / (values.max() or 1.0)
        across, down = (np.arange(n, dtype=float) for n in (shown.shape[1], shown.shape[0]))
        pictures[label] = plots.field(
            "matrix", label, across, down, shown, value_label="|weight| / largest", x_label="input", y_label="unit",
            low=0.0, high=1.0, cells=True,
        )  # fmt: skip
    return plots.panels(name, f"Weights of {layer}", pictures, caption=caption)


def filters(network: nn.Module, name: str = "filters") -> Figure | None:
    """The kernels of the first two-dimensional convolution, averaged over its inputs; None where there is none."""
    first = next((m for m in network.modules() if isinstance(m, nn.Conv2d)), None)
    if first is None:
        return None
    kernels = first.weight.detach().double().cpu().mean(1).numpy()
    top = np.abs(kernels).max() or 1.0
    captions = ["" if kernel.any() else "0" for kernel in kernels]
    title = "Filters of the first convolution"
    return plots.images(name, title, (kernels / top + 1) / 2, captions, caption="Grey is 0.")


def _check(posterior: object) -> None:
    if not isinstance(posterior, SparsePosterior):
        raise ValueError(f"{type(posterior).__name__} has no log alpha of each weight; give a posterior of SparseVD")


def _magnitudes(network: nn.Module, layer: str) -> Floats:
    if layer not in dict(network.named_parameters()):
        raise ValueError(f"{type(network).__name__} has no weight {layer!r}; give networks of one architecture")
    weight = network.get_parameter(layer).detach().double().abs().cpu()
    found: Floats = weight.reshape(len(weight), -1).numpy()
    return found


def standard(posterior: SparsePosterior, plain: nn.Module, records: Sequence[Any], per_epoch: int) -> list[Figure]:
    """All of them for one fit, with the largest matrix that is drawn whole beside that of a plain fit."""
    _check(posterior)
    sparse = posterior.mean_network()
    caption = "Before: a plain fit. After: what Sparse VD left."
    drawn = matrices(plain, sparse, _shown(sparse, list(posterior.sparsity())), caption=caption)
    shown = [log_alphas(posterior), sparsity_over_epochs(records, per_epoch), drawn]
    picture = filters(sparse)
    return shown if picture is None else [*shown, picture]


def _shown(network: nn.Module, layers: Sequence[str]) -> str:
    """The largest matrix of which all rows and columns are drawn, or else the smallest."""
    shapes = {layer: _magnitudes(network, layer).shape for layer in layers}
    whole = [layer for layer in layers if max(shapes[layer]) <= MOST]
    sizes = {layer: shapes[layer][0] * shapes[layer][1] for layer in layers}
    return max(whole, key=lambda layer: sizes[layer]) if whole else min(layers, key=lambda layer: sizes[layer])
