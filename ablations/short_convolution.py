"""Short convolutions of keys and values (So et al. 2021, arXiv:2109.08668, convolve queries, too): each number of a
head is mixed with the same number at the positions before.

As in Marin (github.com/marin-community/marin, issue 7585) a kernel has 4 positions, and begins as the identity. Marin
also convolves what a sub-layer adds to the residual.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import Count, Sizes
from transformer_pl.model import Cache, Mask, MultiHeadSelfAttention


class ShortConvolutionSelfAttention(MultiHeadSelfAttention):
    """Keys and values after a depthwise convolution over `kernel` positions: centred in the encoder, else causal.

    `keys_values` and `attend` take x with the positions around it that the kernel needs. Padding counts as zeros.
    """

    def __init__(self, config: Sizes, site: str, kernel: Count = 4):
        super().__init__(config, site)
        self.before = kernel - 1 if site == "decoder" else kernel // 2
        self.after = kernel - 1 - self.before
        identity = F.one_hot(torch.tensor(self.before), kernel).float()
        self.C_K = nn.Parameter(identity.repeat(self.W_K.out_features // config.d_k, config.d_k, 1))
        self.C_V = nn.Parameter(identity.repeat(self.W_V.out_features // config.d_v, config.d_v, 1))

    def forward(self, x: Tensor, mask: Mask, start: int = 0, cache: Cache | None = None) -> Tensor:
        if mask.keys is not None:
            x = x.masked_fill(~mask.keys[:, :, None], 0)
        x = torch.cat([cache["before"], x], 1) if cache else F.pad(x, (0, 0, self.before, self.after))
        found = super().forward(x, mask, start, cache)
        if cache is not None:
            cache["before"] = x[:, x.shape[1] - self.before :]
        return found

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        K, V = super().keys_values(x)
        return convolved(K, self.C_K), convolved(V, self.C_V)

    def attend(self, x: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return super().attend(x[:, self.before : x.shape[1] - self.after], K, V, mask, start)


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """x (B, heads, L + kernel - 1, d) by weight (heads, d, kernel) to (B, heads, L, d)."""
    return (x.unfold(2, weight.shape[-1], 1) * weight[:, None]).sum(-1)
