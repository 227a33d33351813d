"""Dot-product attention without its scale: what Section 3.2.1 warns of for large d_k."""

from torch import Tensor

from transformer_pl.model import Mask, ScaledDotProductAttention


class UnscaledAttention(ScaledDotProductAttention):
    """softmax(Q K^T) V: equation (1) without 1 / sqrt(d_k)."""

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return super().forward(Q * Q.shape[-1] ** 0.5, K, V, mask, start)

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return super().weights(Q * Q.shape[-1] ** 0.5, K, mask, start)
