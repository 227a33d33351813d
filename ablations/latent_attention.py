"""Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434): keys and values of all heads from one short vector.

K = (x W_D) W_K and V = (x W_D) W_V (equations 9 to 11), where x W_D has `rank` numbers. Decoding caches these alone.
The queries stay as they are (the source's are of low rank, too), and there are no further keys for rotary positions.
"""

import torch
from torch import Tensor

from transformer_pl.config import Count, Sizes
from transformer_pl.model import Cache, CrossAttention, Mask, MultiHeadAttention, MultiHeadSelfAttention, linear
from transformer_pl.model.slots import Memory


class LatentAttention(MultiHeadAttention):
    """Multi-head attention whose `keys_values` takes latents (B, L, rank) in place of x."""

    def __init__(self, config: Sizes, site: str, rank: Count = 16):
        super().__init__(config, site)
        self.W_D = linear(config.d_model, rank)
        self.W_K = linear(rank, config.h * config.d_k)
        self.W_V = linear(rank, config.h * config.d_v)


class LatentSelfAttention(LatentAttention, MultiHeadSelfAttention):
    """In place of `model.self_attention`."""

    def forward(self, x: Tensor, mask: Mask, start: int = 0, cache: Cache | None = None) -> Tensor:
        latents = self.W_D(x)
        if cache is not None:
            if cache:
                latents = torch.cat([cache["latents"], latents], 1)
            cache["latents"] = latents
        return self.attend(x, *self.keys_values(latents), mask, start)


class LatentCrossAttention(LatentAttention, CrossAttention):
    """In place of `model.cross_attention`. The memory of a sentence is its latents."""

    def keys_values(self, x: Tensor) -> Memory:  # type: ignore[override]
        return (self.W_D(x),)

    def forward(self, x: Tensor, memory: Memory, mask: Mask) -> Tensor:
        return super().forward(x, super().keys_values(*memory), mask)
