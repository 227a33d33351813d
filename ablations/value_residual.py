"""Value residual (ResFormer; Zhou et al. 2024, arXiv:2410.17897): the first layer's values enter those of all others.

The self-attention of layer n takes its weighted sum of the values (V_1 + V_n) / 2, where V_1 are the values of the
first layer of the same stack. This is the Identity-ResFormer of the source, which also learns the two factors, from 1/2
each. The attention to the encoder's output stays as it is. There are no new weights, and initialisation is that of the
paper. The source has a decoder alone.
"""

from typing import Any

import torch
from torch import Tensor

from transformer_pl.config import Sizes
from transformer_pl.config.components import with_own
from transformer_pl.model import Cache, Mask, MultiHeadSelfAttention, Transformer


class MaskWithValues(Mask):
    """The mask of all layers of a stack, by which the first one hands its values to the others in one pass."""

    def __init__(self, mask: Mask):
        super().__init__(mask.keys, mask.causal)
        self.first_values: Tensor | None = None  # (B, h, L, d_v), of the positions of x


class ValueResidualSelfAttention(MultiHeadSelfAttention):
    """Self-attention to the mean of its own values and the first layer's. A cache holds the means."""

    def forward(self, x: Tensor, mask: MaskWithValues, start: int = 0, cache: Cache | None = None) -> Tensor:  # type: ignore[override]
        K, V = self.keys_values(x)
        if mask.first_values is None:
            mask.first_values = V
        V = (mask.first_values + V) / 2
        if cache is not None:
            if cache:
                K, V = torch.cat([cache["K"], K], 2), torch.cat([cache["V"], V], 2)
            cache.update(K=K, V=V)
        return self.attend(x, K, V, mask, start)


class ValueResidual(Transformer):
    """The Transformer with this self-attention in every layer."""

    def __init__(self, config: Sizes):
        super().__init__(with_own(config, "self_attention", ValueResidualSelfAttention))

    def encoder_stack(self, x: Tensor, mask: Mask) -> Tensor:
        return super().encoder_stack(x, MaskWithValues(mask))

    def decoder_stack(self, x: Tensor, mask: Mask, *rest: Any) -> Tensor:
        return super().decoder_stack(x, MaskWithValues(mask), *rest)
