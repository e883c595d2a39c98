"""How draws answer for a datum together, under an alpha-divergence."""

import math

import torch
from torch import Tensor


def pooled(log_prob: Tensor, alpha: float) -> Tensor:
    """What K draws say of each datum together, (K, B) -> (B,): 1/alpha log 1/K sum_k p_k^alpha; their mean at 0.

    The fit of an alpha-divergence in its energy form (Li & Gal 2017, https://arxiv.org/abs/1703.02914). Terms near the
    largest, as all are for a small alpha, are averaged less 1, in which they would drown.
    """
    if alpha == 0 or len(log_prob) == 1:
        return log_prob.mean(0)
    scaled = alpha * log_prob
    best = scaled.detach().amax(0)
    less = (scaled - best).expm1().mean(0)
    far = torch.logsumexp(scaled - best, 0) - math.log(len(log_prob))
    return (best + torch.where(less > -0.5, less.log1p(), far)) / alpha
