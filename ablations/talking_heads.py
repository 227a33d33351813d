"""Talking-heads attention (Shazeer et al. 2020, arXiv:2003.02436): the heads exchange scores, and exchange weights.

P_w softmax(P_l (Q K^T / sqrt(d_k))) V: the h x h matrices P_l and P_w map the heads' scores of each query and key
before the softmax, and the heads' weights after it. The mask hides keys between the two, in the scores that P_l has
mixed. A hidden key has no weight in any head, so P_w gives it none. Both matrices are drawn from a normal distribution
of deviation 1 / sqrt(h), which is truncated in the authors' code.
"""

import torch
from torch import Tensor, nn

from transformer_pl.config import Sizes
from transformer_pl.model import Mask, softmax


class TalkingHeads(nn.Module):
    """P_w softmax(P_l (Q K^T / sqrt(d_k))) V."""

    def __init__(self, config: Sizes, site: str):
        super().__init__()
        self.P_l, self.P_w = (nn.Parameter(torch.randn(config.h, config.h) * config.h**-0.5) for _ in range(2))

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return self.weights(Q, K, mask, start) @ V

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        """The weights that P_w has mixed: (B, h, Lq, Lk). They may be negative, and need not sum to 1."""
        scores = torch.einsum("gh,bhqk->bgqk", self.P_l, Q @ K.mT * Q.shape[-1] ** -0.5)
        return torch.einsum("gh,bhqk->bgqk", self.P_w, softmax(scores, mask.dense(Q, K, start)))
