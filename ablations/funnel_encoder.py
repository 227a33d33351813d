"""The Funnel Transformer's encoder (Dai et al. 2020, arXiv:2006.03236): its output has fewer positions than its input.

The layers are in `blocks` of equal size. The first layer of each block after the first averages the positions in pairs,
without padding, between its two sub-layers. Narang et al. 2021 (arXiv:2102.11972) pool there; the source pools the
queries and the residual connection, which comes to nearly the same. The decoder reads what is left, as Appendix A.3 of
the source proposes.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from transformer_pl.config import Count, Sizes
from transformer_pl.model import Mask, Transformer


class FunnelEncoder(Transformer):
    """The Transformer with this encoder."""

    def __init__(self, config: Sizes, blocks: Count = 3):
        super().__init__(config)
        N = config.N_encoder
        self.pools = [i * blocks // N > (i - 1) * blocks // N for i in range(1, N)]  # whether layer i does

    def encoder_stack(self, x: Tensor, mask: Mask) -> Tensor:
        layers: Iterable[Any] = self.encoder
        for layer, pools in zip(layers, [False, *self.pools], strict=True):
            if pools:
                x = layer.residual[0](x, partial(layer.self_attention, mask=mask))
                x, mask = averaged_pairs(x, mask), in_pairs(mask)
                x = layer.residual[1](x, layer.ffn)
            else:
                x = layer(x, mask)
        return x

    def decoder_stack(self, x: Tensor, mask: Mask, memory: Any, memory_mask: Mask, start: int, caches: Any) -> Tensor:
        for _ in range(sum(self.pools)):
            memory_mask = in_pairs(memory_mask)
        return super().decoder_stack(x, mask, memory, memory_mask, start, caches)


def in_pairs(mask: Mask) -> Mask:
    """The mask of (B, L / 2) pairs: a pair is padding if both are."""
    if mask.keys is None:
        return mask
    return Mask(F.pad(mask.keys, (0, mask.keys.shape[1] % 2)).unflatten(1, (-1, 2)).any(2))


def averaged_pairs(x: Tensor, mask: Mask) -> Tensor:
    """The mean of each pair of positions of x (B, L, d_model) that are no padding: (B, L / 2, d_model)."""
    keys = x.new_ones(x.shape[:2]) if mask.keys is None else mask.keys.type_as(x)
    kept = F.pad(keys, (0, x.shape[1] % 2)).unflatten(1, (-1, 2)).unsqueeze(-1)
    pairs = F.pad(x, (0, 0, 0, x.shape[1] % 2)).unflatten(1, (-1, 2))
    return (pairs * kept).sum(2) / kept.sum(2).clamp(min=1)
