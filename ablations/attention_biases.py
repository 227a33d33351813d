"""Projections of attention with biases, as the authors' first code had them; Section 3.2.2 has none."""

import torch
from torch import Tensor, nn

from transformer_pl.config import Sizes
from transformer_pl.model import Mask, ScaledDotProductAttention


class AttentionBiases(ScaledDotProductAttention):
    """Attention(Q + b_Q, K, V + b_V), in self-attention and in the decoder's attention to the encoder.

    Other biases of the four projections would add nothing. One of W^K adds the same number to every score of a query,
    and cancels in the softmax. One of W^O can be expressed as b_V W^O where h d_v is at least d_model.
    """

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)
        self.b_Q = nn.Parameter(torch.zeros(config.h, 1, config.d_k))
        self.b_V = nn.Parameter(torch.zeros(config.h, 1, config.d_v))

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return super().forward(Q + self.b_Q.type_as(Q), K, V + self.b_V.type_as(V), mask, start)

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return super().weights(Q + self.b_Q.type_as(Q), K, mask, start)
