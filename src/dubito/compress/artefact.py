"""From a posterior to a small network on disk, with what was saved measured."""

import copy
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dubito.compress import chains, sparse
from dubito.compress.curve import SHARES, check_rows, choose, error, losses, points
from dubito.compress.scores import By, counts, ratio, scored
from dubito.inputs import arguments, move, rows, tensors
from dubito.nn.gates import folded
from dubito.posteriors.base import Posterior
from dubito.results import Table
from dubito.rng import isolated

REPEATS = 15
ROWS = 128  # of the validation data, at which latency is measured


@dataclass(frozen=True)
class Compressed:
    """What became of a network: where it lies, what it costs, and what it did before."""

    path: str
    by: str
    cut: float
    error: float
    dense_error: float
    ratio: float  # all weights over those that are not zero, biases left out
    sparsity: dict[str, float]  # of each matrix and kernel
    bytes: int
    dense_bytes: int
    seconds: float  # for a batch on the CPU
    dense_seconds: float
    units: tuple[int, ...]  # outputs of each layer with weights, where the network is a chain

    @property
    def smaller(self) -> float:
        """Bytes of the dense float32 file over bytes of this one."""
        return self.dense_bytes / self.bytes

    def table(self) -> Table:
        """Before and after, for a report."""
        dense = ("dense", self.dense_error, 1.0, self.dense_bytes, 1.0, 1e3 * self.dense_seconds)
        small = ("compressed", self.error, self.ratio, self.bytes, self.smaller, 1e3 * self.seconds)
        columns = ("network", "error", "weights / non-zero", "bytes", "times smaller", "ms a batch on the CPU")
        formats = {"error": ".4g", columns[2]: ".1f", "bytes": ",d", columns[4]: ".1f", columns[5]: ".3f"}
        return Table(f"Compressed by {self.by}", columns, [dense, small], formats=formats)

    def numbers(self) -> dict[str, Any]:
        """As plain values, for a result; the path stays behind."""
        kept = {name: value for name, value in asdict(self).items() if name != "path"}
        return {**kept, "units": list(self.units), "smaller": self.smaller}


def small_network(network: nn.Module, x: Any = None) -> nn.Module:
    """A network that computes the same without its dead units, where it is a chain of layers; else the network.

    x: inputs like those it will see, of which only the number of axes counts; (rows, numbers) when left out.
    """
    layers = chains.chain(network)
    flat = not isinstance(x, Tensor) or x.dim() == 2
    if layers is None:
        return network
    with isolated("rebuilt"):  # layers are made with fresh weights, which are written over
        return nn.Sequential(*chains.without_dead_units(layers, flat)).eval()


def write(
    posterior: Posterior,
    path: str | Path,
    validation: tuple[Any, Any],
    *,
    by: By | None = None,
    cut: float | None = None,
    tolerance: float = 1.0,
) -> Compressed:
    """Compress a posterior's mean network into a file that `dubito.load_network` opens.

    by: the score weights go by, the posterior's own kind where left out. cut: the score below which they go; left out,
    it is chosen on the validation rows as the sparsest within `tolerance` standard errors of the best.
    """
    check_rows(posterior, validation)
    held = scored(posterior, by)
    likelihood = posterior.likelihood
    if cut is None:
        cut = choose(points(held, likelihood, validation, SHARES), tolerance).cut
    masked, dense = folded(held.masked(cut)).cpu(), folded(held.network).cpu()
    small = small_network(masked, tensors(validation[0]))
    saved = sparse.save_network(small, path)
    errors = [error(losses(net, likelihood, validation), likelihood) for net in (small, dense)]
    seconds = latencies([small, dense], tensors(validation[0]))
    return Compressed(
        path=str(saved),
        by=held.by,
        cut=cut,
        error=errors[0],
        dense_error=errors[1],
        ratio=ratio(masked),
        sparsity={name: 1 - kept / total for name, (kept, total) in counts(masked).items()},
        bytes=saved.stat().st_size,
        dense_bytes=sparse.dense_bytes(dense.float()),
        seconds=seconds[0],
        dense_seconds=seconds[1],
        units=_units(small),
    )


def latencies(networks: list[nn.Module], x: Any) -> list[float]:
    """Median seconds of each network for one batch on the CPU, measured in turn so that all meet the same machine."""
    networks = [_without_subnormals(network) for network in networks]
    first = next(networks[0].parameters())
    args, kwargs = arguments(move(rows(x, slice(0, ROWS)), torch.device("cpu"), first.dtype))
    taken: list[list[float]] = [[] for _ in networks]
    with torch.no_grad():
        for _ in range(REPEATS):
            for network, times in zip(networks, taken, strict=True):
                start = time.perf_counter()
                network(*args, **kwargs)
                times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken]


def _without_subnormals(network: nn.Module) -> nn.Module:
    """A copy: weights that decayed below the least normal number take a processor a hundred times as long."""
    copied = copy.deepcopy(network)
    with torch.no_grad():
        for values in (*copied.parameters(), *copied.buffers()):
            if values.is_floating_point():
                values.masked_fill_(values.abs() < torch.finfo(values.dtype).tiny, 0)
    return copied


def _units(network: nn.Module) -> tuple[int, ...]:
    layers = chains.chain(network) or []
    return tuple(len(layer.weight) for layer in layers if isinstance(layer, chains.Weighted))
