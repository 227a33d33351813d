"""Self-attention restricted to a neighbourhood of r positions, Table 1's last row and Section 4."""

import torch
from torch import Tensor

from transformer_pl.config import Count, Sizes
from transformer_pl.model import Mask, ScaledDotProductAttention, softmax


class LocalAttention(ScaledDotProductAttention):
    """Equation (1) over the r positions around the query; in the decoder, over the r that end with it.

    Only those keys are ever read, so it costs O(r n d). Cross-attention stays as it is.
    """

    table_1 = ("r n d", "1", "n / r")

    def __init__(self, config: Sizes, site: str, window: Count = 16):
        super().__init__(config, site)
        before = {"encoder": window // 2, "decoder": window - 1, "cross": 0}[site]
        self.offsets = None if site == "cross" else range(-before, window - before)

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        if self.offsets is None:
            return super().forward(Q, K, V, mask, start)
        near, weights = self._over_neighbours(Q, K, mask, start)
        return (weights[:, :, :, None] @ V[:, :, near])[:, :, :, 0]

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        if self.offsets is None:
            return super().weights(Q, K, mask, start)
        near, weights = self._over_neighbours(Q, K, mask, start)
        return weights.new_zeros(*weights.shape[:3], K.shape[2]).scatter_add(3, near.expand_as(weights), weights)

    def _over_neighbours(self, Q: Tensor, K: Tensor, mask: Mask, start: int) -> tuple[Tensor, Tensor]:
        """The keys of every query, (Lq, r), and how much it takes of each, (B, h, Lq, r)."""
        near, seen = self._near(Q, K, mask, start)
        return near, softmax((Q[:, :, :, None] @ K[:, :, near].mT)[:, :, :, 0] * Q.shape[-1] ** -0.5, seen)

    def _near(self, Q: Tensor, K: Tensor, mask: Mask, start: int) -> tuple[Tensor, Tensor]:
        """The keys of every query, (Lq, r), and which of them it may see, (B or 1, 1, Lq, r)."""
        offsets = torch.arange(self.offsets.start, self.offsets.stop, device=K.device)
        at = torch.arange(start, start + Q.shape[2], device=K.device)[:, None] + offsets
        near = at.clamp(0, K.shape[2] - 1)
        seen = ((at == near) & (offsets <= 0 if mask.causal else True))[None, None]
        return near, seen if mask.keys is None else seen & mask.keys[:, near][:, None]
