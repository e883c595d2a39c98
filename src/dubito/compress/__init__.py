"""Smaller networks from posteriors."""

from dubito.compress.prune import pruned, pruning, signal_to_noise

__all__ = ["pruned", "pruning", "signal_to_noise"]
