"""Residual attention (RealFormer; He et al. 2021, arXiv:2012.11747): scores add up from layer to layer.

Layer n computes softmax(S_n) V with S_n = Q K^T / sqrt(d_k) + S_(n-1), where S_(n-1) are the scores of the same head in
the layer below, before its softmax; the first layer has S_0 = 0. The encoder's self-attention, the decoder's, and its
attention to the encoder's output each add up their own. In decoding a layer adds the scores of the new query, which the
layer below has just computed, so caches hold nothing more. There are no new weights, and initialisation is that of the
paper.
"""

from typing import Any

from torch import Tensor

from transformer_pl.config import Sizes
from transformer_pl.config.components import with_own
from transformer_pl.model import Mask, ScaledDotProductAttention, Transformer, softmax


class MaskWithScores(Mask):
    """The mask of all layers of a stack, by which each one hands its scores to the next in one pass."""

    def __init__(self, mask: Mask):
        super().__init__(mask.keys, mask.causal)
        self.scores: Tensor | float = 0.0  # (B, h, Lq, Lk), of the layer below


class ResidualScores(ScaledDotProductAttention):
    """softmax(Q K^T / sqrt(d_k) + the scores of the layer below) V."""

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        scores = self.scores(Q, K, mask)
        if isinstance(mask, MaskWithScores):
            mask.scores = scores
        return softmax(scores, mask.dense(Q, K, start)) @ V

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return softmax(self.scores(Q, K, mask), mask.dense(Q, K, start))

    def scores(self, Q: Tensor, K: Tensor, mask: Mask) -> Tensor:
        """The scores of this layer, with those of the layers below: (B, h, Lq, Lk)."""
        below = mask.scores if isinstance(mask, MaskWithScores) else 0.0
        return Q @ K.mT * Q.shape[-1] ** -0.5 + below


class ResidualAttention(Transformer):
    """The Transformer with these scores in every attention."""

    def __init__(self, config: Sizes):
        super().__init__(with_own(config, "attention", ResidualScores))

    def encoder_stack(self, x: Tensor, mask: Mask) -> Tensor:
        return super().encoder_stack(x, MaskWithScores(mask))

    def decoder_stack(self, x: Tensor, mask: Mask, memory: Any, memory_mask: Mask, *rest: Any) -> Tensor:
        return super().decoder_stack(x, MaskWithScores(mask), memory, MaskWithScores(memory_mask), *rest)
