"""Many draws of one MLP at many rows: the averaged probabilities and the averaged entropy."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.floors.recording import fused, outputs

Answer = tuple[Tensor, Tensor]


def predicting(parameters: Sequence[Tensor], x: Tensor, at_a_time: int) -> Callable[[], Answer]:
    """Products of some draws at once, and their sums in single precision."""

    def sums(part: Sequence[Tensor], rows: Tensor) -> Answer:
        probs = outputs(part, rows).softmax(-1)
        return probs.sum(0), torch.special.entr(probs).sum((0, -1))

    chunk, draws = fused(sums, x.device), len(parameters[0])

    @torch.no_grad()
    def predict() -> Answer:
        probs, entropy = 0.0, 0.0
        for start in range(0, draws, at_a_time):
            more = chunk([p[start : start + at_a_time] for p in parameters], x)
            probs, entropy = probs + more[0], entropy + more[1]
        return torch.as_tensor(probs) / draws, torch.as_tensor(entropy) / draws

    return predict
