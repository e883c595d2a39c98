"""Measures of doubt from class probabilities, in nats; classes on the last axis."""

import torch
from torch import Tensor


def entropy(probs: Tensor) -> Tensor:
    """H[p] = -sum_c p_c log p_c."""
    terms: Tensor = torch.special.entr(probs)
    return terms.sum(-1)


def bald(mean_probs: Tensor, expected_entropy: Tensor) -> Tensor:
    """I[y; theta] = H[E p] - E H[p] (Houlsby et al., 2011): the part of the doubt that data can remove."""
    return (entropy(mean_probs) - expected_entropy).clamp_min(0)


def variation_ratio(mean_probs: Tensor) -> Tensor:
    """1 - max_c E p_c (Wang et al., 2018)."""
    return 1 - mean_probs.amax(-1)


def votes(probs: Tensor) -> Tensor:
    """(draws, ..., C) -> (..., C): how many draws put each class first."""
    top = probs.argmax(-1).movedim(0, -1)
    return torch.zeros_like(probs[0]).scatter_add_(-1, top, torch.ones_like(top, dtype=probs.dtype))


def vote_ratio(votes: Tensor) -> Tensor:
    """1 - share of the modal class among the draws (Gal, 2016)."""
    return 1 - votes.amax(-1) / votes.sum(-1)
