"""Operations counted here against torch's own counter."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dubito.cost import FlopCounter


class Products(nn.Module):
    def forward(self, x):
        a = x @ x.transpose(-1, -2)
        b = torch.bmm(a, x)
        return F.scaled_dot_product_attention(b, x, x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attend(x, x, x, need_weights=False)[0]


MODULES = {
    "linear": (nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 2)), (5, 3, 4)),
    "convolution": (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Conv2d(4, 3, 2, stride=2)), (5, 2, 8, 9)),
    "transposed": (nn.ConvTranspose1d(2, 3, 4, stride=2), (5, 2, 6)),
    "products": (Products(), (5, 3, 4)),
    "attention": (Attention(), (5, 3, 4)),
}


@pytest.mark.parametrize("name", MODULES)
def test_operations_are_those_of_torchs_counter(name):
    module, shape = MODULES[name]
    x = torch.randn(shape)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as reference:
        module(x)
    with torch.no_grad(), FlopCounter() as counter:
        module(x)
    assert counter.total == reference.get_total_flops() > 0
    assert counter.convolves == (name in ("convolution", "transposed"))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_count_their_matrices_at_every_step(kind):
    module = kind(3, 5, num_layers=2, bidirectional=True)
    matrices = sum(parameter.numel() for parameter in module.parameters() if parameter.dim() == 2)
    lengths = [4, 2]
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 2, 3), lengths)
    for x, steps in ((torch.randn(4, 2, 3), 8), (packed, sum(lengths))):
        with torch.no_grad(), FlopCounter() as counter:
            module(x)
        assert counter.total == 2 * steps * matrices
