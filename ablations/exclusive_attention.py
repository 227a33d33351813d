"""Exclusive self-attention (Zhai 2026, arXiv:2603.09078): a head finds nothing that its position's own value says."""

import torch.nn.functional as F
from torch import Tensor

from transformer_pl.config import Sizes
from transformer_pl.model import Mask, ScaledDotProductAttention


class ExclusiveAttention(ScaledDotProductAttention):
    """y_i - (y_i v_i / |v_i|^2) v_i, where y_i is equation (1) and v_i the value at the query's own position.

    The first position of a decoder, which sees itself alone, finds zeros. Cross-attention stays as it is.
    """

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)
        self.excludes = site != "cross"

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        y = super().forward(Q, K, V, mask, start)
        if not self.excludes:
            return y
        own = F.normalize(V[:, :, start : start + Q.shape[2]], dim=-1)  # (B, h, Lq, d_v)
        return y - (y * own).sum(-1, keepdim=True) * own
