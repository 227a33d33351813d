"""Dropout of attention weights, as later versions of the authors' code have it; Section 5.4 does not."""

from torch import Tensor

from transformer_pl.config import Sizes
from transformer_pl.model import Dropout, Mask, ScaledDotProductAttention


class AttentionDropout(ScaledDotProductAttention):
    """Dropout(softmax(Q K^T / sqrt(d_k))) V, with the P_drop of the other places."""

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)
        self.dropout = Dropout(config.p_drop)

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        if not self.training:
            return super().forward(Q, K, V, mask, start)
        return self.dropout(self.weights(Q, K, mask, start)) @ V
