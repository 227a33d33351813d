"""LoRA: a trained model is adapted by low-rank changes of its projections (Hu et al. 2021, arXiv:2106.09685).

x (W + (alpha / r) B A)^T in place of x W^T for W^Q and W^V of every attention. A is drawn with a deviation of
d_model^-0.5 (the source names none), and B is zero, so that a model begins as the one whose weights it starts from.
`optim.freeze=*.weight,*.bias` trains A and B alone.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import Count, Positive, Sizes
from transformer_pl.model import CrossAttention, MultiHeadAttention, MultiHeadSelfAttention


class LowRankLinear(nn.Linear):
    """x (W + (alpha / r) B A)^T: equation (3) of the source."""

    def __init__(self, W: nn.Linear, rank: int, alpha: float):
        super().__init__(W.in_features, W.out_features, bias=False)
        self.weight, self.scale = W.weight, alpha / rank
        self.A = nn.Parameter(torch.randn(rank, W.in_features) * W.in_features**-0.5)
        self.B = nn.Parameter(torch.zeros(W.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.scale * F.linear(F.linear(x, self.A), self.B)


class LowRankAttention(MultiHeadAttention):
    """Multi-head attention, whose weights keep their names, with matrices A and B beside W^Q and W^V."""

    def __init__(self, config: Sizes, site: str, rank: Count = 4, alpha: Positive = 8.0):
        super().__init__(config, site)
        self.W_Q, self.W_V = (LowRankLinear(W, rank, alpha) for W in (self.W_Q, self.W_V))


class LowRankSelfAttention(LowRankAttention, MultiHeadSelfAttention):
    """In place of `model.self_attention`."""


class LowRankCrossAttention(LowRankAttention, CrossAttention):
    """In place of `model.cross_attention`."""
