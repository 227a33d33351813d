"""Relative positions: a learned vector for each distance between query and key (Shaw et al. 2018, arXiv:1803.02155).
Meant for a model without positions of its own: with `ablations.no_position.NoPosition`."""

import torch
from torch import Tensor, nn

from transformer_pl.config import Count, Sizes
from transformer_pl.model import Mask, ScaledDotProductAttention, softmax


class RelativeAttention(ScaledDotProductAttention):
    """softmax(Q (K + a^K)^T / sqrt(d_k)) (V + a^V), a by distance, all beyond `most` alike; the heads share
    them, as in the source's Section 3.3; its base model has vectors of its own for each head.

    Cross-attention stays as it is: there is no distance between two sentences.
    """

    def __init__(self, config: Sizes, site: str, most: Count = 16):
        super().__init__(config, site)
        self.most = most
        self.a_K = self.a_V = None
        if site != "cross":
            self.a_K = nn.Parameter(torch.randn(2 * most + 1, config.d_k) * config.d_k**-0.5)
            self.a_V = nn.Parameter(torch.randn(2 * most + 1, config.d_v) * config.d_v**-0.5)

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        if self.a_K is None:
            return super().forward(Q, K, V, mask, start)
        weights = self.weights(Q, K, mask, start)  # (B, h, Lq, Lk)
        a_V = self.a_V[self._distances(Q, K, start)].type_as(weights)  # (Lq, Lk, d_v)
        return weights @ V + torch.einsum("bhqk,qkd->bhqd", weights, a_V)

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        if self.a_K is None:
            return super().weights(Q, K, mask, start)
        a_K = self.a_K[self._distances(Q, K, start)].type_as(Q)  # (Lq, Lk, d_k)
        scores = (Q @ K.mT + torch.einsum("bhqd,qkd->bhqk", Q, a_K)) * Q.shape[-1] ** -0.5
        return softmax(scores, mask.dense(Q, K, start))

    def _distances(self, Q: Tensor, K: Tensor, start: int) -> Tensor:
        """Rows of a for query start + i and key j: (Lq, Lk)."""
        queries = torch.arange(start, start + Q.shape[2], device=Q.device)
        keys = torch.arange(K.shape[2], device=K.device)
        return (keys - queries[:, None]).clamp(-self.most, self.most) + self.most
