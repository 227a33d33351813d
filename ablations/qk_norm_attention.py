"""Attention over normalised queries and keys (Henry et al. 2020, arXiv:2010.04245)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import Count, Sizes
from transformer_pl.model import Mask, ScaledDotProductAttention


class QKNormAttention(ScaledDotProductAttention):
    """softmax(g Q^ K^T) V, Q^ and K^ of length 1 in each head, with one learned g for each attention.

    g begins at log2(L^2 - L), where L is the option `length`: 97.5 % of the training sentences are no
    longer (Section 3 of the source).
    """

    def __init__(self, config: Sizes, site: str, length: Count = 32):
        super().__init__(config, site)
        self.g = nn.Parameter(torch.tensor(math.log2(max(2, length) * (max(2, length) - 1))))

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return super().forward(*self._normalised(Q, K), V, mask, start)

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return super().weights(*self._normalised(Q, K), mask, start)

    def _normalised(self, Q: Tensor, K: Tensor) -> tuple[Tensor, Tensor]:
        """Q and K whose scaled products are g Q^ K^T."""
        return F.normalize(Q, dim=-1) * (self.g * Q.shape[-1] ** 0.5).type_as(Q), F.normalize(K, dim=-1)
