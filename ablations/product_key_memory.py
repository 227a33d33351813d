"""A memory with product keys in place of feed-forward networks (Lample et al. 2019, arXiv:1907.05242).

A head has keys^2 slots, whose values all heads share. Half of a query chooses among `keys` half-keys, the other half
among as many others, and the `chosen` best of all pairs of them are read. The source normalises queries over the batch;
here nothing is, so that sentences do not depend on each other. The source replaces one or a few of a model's networks.
"""

import torch
from torch import Tensor, nn

from transformer_pl.config import Count, Site, Sizes
from transformer_pl.model import FeedForward, linear


class ProductKeyMemory(nn.Module):
    """The sum over heads of softmax(the best scores) times their values; a score is that of both half-keys."""

    def __init__(self, config: Sizes, site: str, keys: Count = 16, chosen: Count = 8, heads: Count = 4):
        super().__init__()
        self.keys, self.chosen, self.heads = keys, min(chosen, keys), heads
        half = max(1, config.d_model // 4)
        self.W_Q = linear(config.d_model, heads * 2 * half, bias=True)
        self.half_keys = nn.Parameter(torch.randn(heads, 2, keys, half) * half**-0.5)
        self.values = nn.Embedding(keys**2, config.d_model)
        nn.init.normal_(self.values.weight, std=config.d_model**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        q = self.W_Q(x).unflatten(-1, (self.heads, 2, -1))  # (B, L, heads, 2, half)
        scores = torch.einsum("blhsd, hskd -> blhsk", q, self.half_keys)
        best, index = scores.topk(self.chosen, -1)  # (B, L, heads, 2, chosen)
        pairs = (best[..., 0, :, None] + best[..., 1, None, :]).flatten(-2)
        slots = (index[..., 0, :, None] * self.keys + index[..., 1, None, :]).flatten(-2)
        found, where = pairs.topk(self.chosen, -1)  # (B, L, heads, chosen)
        weights = found.softmax(-1).flatten(-2).unsqueeze(-1)
        return (weights * self.values(slots.gather(-1, where)).flatten(-3, -2)).sum(-2)


class MemoryLayer(nn.Module):
    """This memory in the decoder's last layer but one, as Narang et al. 2021 have it (arXiv:2102.11972, Appendix B).

    All other layers, and all of the encoder, have the paper's network.
    """

    def __init__(self, config: Sizes, site: Site, keys: Count = 64, chosen: Count = 32, heads: Count = 4):
        super().__init__()
        here = site == "decoder" and site.layer == max(0, config.N_decoder - 2)
        self.part = ProductKeyMemory(config, site, keys, chosen, heads) if here else FeedForward(config, site)

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x)
