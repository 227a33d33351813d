"""ALiBi: a penalty for the distance between query and key in place of positions (Press et al. 2022, arXiv:2108.12409).
Meant for a model without positions of its own: with `ablations.no_position.NoPosition`."""

import torch
from torch import Tensor

from transformer_pl.config import Sizes
from transformer_pl.model import Mask, ScaledDotProductAttention, softmax


class Alibi(ScaledDotProductAttention):
    """softmax(Q K^T / sqrt(d_k) - m |i - j|) V with the slope m = 2^(-8 k / h) of head k, from 1. Cross-attention stays
    as it is: there is no distance between two sentences. The source has decoders alone, so that i >= j."""

    slopes: Tensor  # (h, 1, 1)

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)
        self.site = site
        slopes = 2.0 ** (-8 * torch.arange(1, config.h + 1) / config.h)
        self.register_buffer("slopes", slopes[:, None, None])  # a buffer: it moves to the GPU with the model

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return self.weights(Q, K, mask, start) @ V

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        scores = Q @ K.mT * Q.shape[-1] ** -0.5  # (B, h, Lq, Lk)
        if self.site != "cross":
            queries = torch.arange(start, start + Q.shape[2], device=Q.device)[:, None]
            keys = torch.arange(K.shape[2], device=Q.device)
            scores = scores - self.slopes * (queries - keys).abs()
        return softmax(scores, mask.dense(Q, K, start))
