"""The Funnel Transformer's encoder (Dai et al. 2020, arXiv:2006.03236): the upper half of its layers has half as many
positions.

Neighbouring positions are averaged in pairs, without padding. The last layer's output is repeated for both of a pair,
and the output of the lower half is added, as in the source's decoder for tokens. The source's first layer after pooling
still reads all positions; here it reads the pooled ones.
"""

import torch.nn.functional as F
from torch import Tensor

from transformer_pl.model import Mask, Transformer


class FunnelEncoder(Transformer):
    """The Transformer with this encoder."""

    def encoder_stack(self, x: Tensor, mask: Mask) -> Tensor:
        half = len(self.encoder) - len(self.encoder) // 2
        for layer in self.encoder[:half]:
            x = layer(x, mask)
        keys = x.new_ones(x.shape[:2]) if mask.keys is None else mask.keys.type_as(x)
        odd = x.shape[1] % 2
        kept = F.pad(keys, (0, odd)).unflatten(1, (-1, 2))  # (B, L / 2, 2)
        pairs = F.pad(x, (0, 0, 0, odd)).unflatten(1, (-1, 2))  # (B, L / 2, 2, d_model)
        pooled = (pairs * kept.unsqueeze(-1)).sum(2) / kept.sum(2, keepdim=True).clamp(min=1)
        pooled_mask = Mask(kept.any(2))
        for layer in self.encoder[half:]:
            pooled = layer(pooled, pooled_mask)
        return x + pooled.repeat_interleave(2, 1)[:, : x.shape[1]]
