"""Gated attention (Qiu et al. 2025, arXiv:2505.06708): a sigmoid of the input gates what the heads have found.

Concat(head_1, ..., head_h) of Section 3.2.2 is multiplied by sigmoid(x W^G) before W^O, where x is the input from which
the queries are projected. The gate is elementwise, one number for each of the h d_v numbers, or with `headwise` one
number for each head. W^G has no bias, and is initialised as the other projections are: the gates start near 1/2.
The source has decoders alone; `GatedCrossAttention` is the same gate at the attention to the encoder.
"""

from torch import Tensor

from transformer_pl.config import Sizes
from transformer_pl.model import CrossAttention, Mask, MultiHeadAttention, MultiHeadSelfAttention, linear


class GatedAttention(MultiHeadAttention):
    """(Concat(head_1, ..., head_h) * sigmoid(x W^G)) W^O."""

    def __init__(self, config: Sizes, site: str, headwise: bool = False):
        super().__init__(config, site)
        self.W_G = linear(config.d_model, config.h * (1 if headwise else config.d_v))

    def attend(self, x: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        heads = self.attention(self._heads(self.W_Q(x)), K, V, mask, start)  # (B, h, Lq, d_v)
        gates = self._heads(self.W_G(x)).sigmoid()  # (B, h, Lq, d_v or 1)
        return self.W_O((heads * gates).transpose(1, 2).flatten(2))


class GatedSelfAttention(GatedAttention, MultiHeadSelfAttention):
    """In place of `model.self_attention`."""


class GatedCrossAttention(GatedAttention, CrossAttention):
    """In place of `model.cross_attention`."""
