"""Smaller networks from posteriors."""

from dubito.compress.artefact import Compressed, latencies, small_network, write
from dubito.compress.curve import choose, curve, points
from dubito.compress.prune import pruned, pruning, signal_to_noise
from dubito.compress.scores import Scored, counts, ratio, scored
from dubito.compress.sparse import dense_bytes, load_network, save_network

__all__ = [
    "Compressed", "Scored", "choose", "counts", "curve", "dense_bytes", "latencies", "load_network", "points", "pruned",
    "pruning", "ratio", "save_network", "scored", "signal_to_noise", "small_network", "write",
]  # fmt: skip
