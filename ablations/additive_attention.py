"""Additive scores, the rival that Section 3.2.1 weighs (Bahdanau et al. 2015, arXiv:1409.0473)."""

import torch
from torch import Tensor, nn

from transformer_pl.config import Sizes
from transformer_pl.model import Mask, softmax


class AdditiveAttention(nn.Module):
    """softmax(v . tanh(q + k)) V, with a vector v of d_k numbers a head. Takes O(Lq Lk d_k) memory a head."""

    table_1 = ("n² d", "1", "1")

    def __init__(self, config: Sizes, site: str):
        super().__init__()
        self.v = nn.Parameter(torch.randn(config.h, config.d_k) * config.d_k**-0.5)

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return self.weights(Q, K, mask, start) @ V

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        sums = (Q[:, :, :, None] + K[:, :, None]).tanh()  # (B, h, Lq, Lk, d_k)
        return softmax((sums * self.v[:, None, None].type_as(sums)).sum(-1), mask.dense(Q, K, start))
