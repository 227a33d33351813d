"""Differential attention (Ye et al. 2024, arXiv:2410.05258): each head subtracts a second softmax from a first one."""

import math

import torch
from torch import Tensor, nn

from transformer_pl.config import Site, Sizes
from transformer_pl.model import Mask, softmax


class DifferentialAttention(nn.Module):
    """(softmax(Q1 K1^T / sqrt(d)) - lambda softmax(Q2 K2^T / sqrt(d))) V, normalised, times 1 - lambda_init.

    Q1 and Q2 are the halves of Q, d their width (equation 1). lambda = exp(q1 k1) - exp(q2 k2) + lambda_init, where
    lambda_init = 0.8 - 0.6 exp(-0.3 layer) depends on the depth, layer from 0 (equation 2). Heads are normalised by
    RMSNorm (equation 3), without weights. The source has half as many heads as its base, so that Q1 and Q2 are as wide
    as a head of base: for the paper's base model.h=4 model.d_k=128 model.d_v=128. It has a decoder alone; here all
    attentions can be differential.
    """

    exempt = {"weights_are_what_attention_computes": "the heads are normalised after the weighted sum"}

    def __init__(self, config: Sizes, site: Site):
        super().__init__()
        self.initial = 0.8 - 0.6 * math.exp(-0.3 * (site.layer or 0))
        self.q1, self.k1, self.q2, self.k2 = (nn.Parameter(0.1 * torch.randn(config.d_k // 2)) for _ in range(4))
        self.norm = nn.RMSNorm(config.d_v, elementwise_affine=False)

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return self.norm(self.weights(Q, K, mask, start) @ V) * (1 - self.initial)

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        """The difference of the two softmaxes, which may be negative: (B, h, Lq, Lk)."""
        half, seen = Q.shape[-1] // 2, mask.dense(Q, K, start)
        first, second = (
            softmax(q @ k.mT * half**-0.5, seen) for q, k in zip(Q.split(half, -1), K.split(half, -1), strict=False)
        )
        rate = (self.q1 @ self.k1).exp() - (self.q2 @ self.k2).exp() + self.initial
        return first - rate * second
