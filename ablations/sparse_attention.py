"""Sparse attention (Child et al. 2019, arXiv:1904.10509): a query sees its neighbourhood, and few positions beyond it.

With the stride l, query i sees key j (Section 4.3 of the source)

    strided:  where i - j < l, or (i - j) mod l = 0,
    fixed:    where j is in the same block of l positions as i, or among the last c positions of any block.

Each pattern is the union of the source's two, which one head may have (equation 8 there). Both are of a decoder; in an
encoder, distances count in both directions, and cross-attention stays as it is. The weights are computed as a whole and
then hidden, so this shows what the pattern does to the loss, not what it saves.
"""

from typing import Literal

import torch
from torch import Tensor

from transformer_pl.config import Count, Sizes
from transformer_pl.model import Mask, ScaledDotProductAttention, softmax


class SparseAttention(ScaledDotProductAttention):
    """Equation (1) over the positions of a pattern.

    pattern: `strided` or `fixed`. stride: l. summary: c, of the fixed pattern.
    """

    def __init__(
        self,
        config: Sizes,
        site: str,
        pattern: Literal["strided", "fixed"] = "strided",
        stride: Count = 8,
        summary: Count = 1,
    ):
        super().__init__(config, site)
        self.is_sparse, self.pattern, self.stride, self.summary = site != "cross", pattern, stride, summary

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return self.weights(Q, K, mask, start) @ V

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        seen = mask.dense(Q, K, start)
        if self.is_sparse:
            seen = seen & self._seen(Q, K, start)
        return softmax(Q @ K.mT * Q.shape[-1] ** -0.5, seen)

    def _seen(self, Q: Tensor, K: Tensor, start: int) -> Tensor:
        """Whether the pattern lets query start + i see key j: (Lq, Lk)."""
        i = torch.arange(start, start + Q.shape[-2], device=K.device)[:, None]
        j = torch.arange(K.shape[-2], device=K.device)
        if self.pattern == "strided":
            return ((i - j).abs() < self.stride) | ((i - j) % self.stride == 0)
        return (i // self.stride == j // self.stride) | (j % self.stride >= self.stride - self.summary)
