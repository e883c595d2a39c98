"""Members of a deep ensemble of one MLP under Adam, side by side."""

from torch import Tensor, nn

from benchmarks.common import Stepping
from benchmarks.floors.recording import Feed, cross_entropy, descent, fused, outputs, stacked, stepping


def steps(net: nn.Module, x: Tensor, y: Tensor, batch: int, members: int) -> Stepping:
    """Products of all members at once, one fused Adam for all."""
    held = [p.requires_grad_() for p in stacked(net, members)]
    feed = Feed(x, y, batch)
    loss = fused(lambda parameters, rows, labels: cross_entropy(outputs(parameters, rows), labels), x.device)
    return stepping(descent(lambda: loss(held, feed.x, feed.y), held, x.device), feed, x.device)
