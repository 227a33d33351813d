"""Self-attention restricted to a neighbourhood of r positions, Table 1's last row and Section 4."""

import torch
from torch import Tensor

from transformer_pl.config import Sizes
from transformer_pl.model import Mask, ScaledDotProductAttention, softmax


class LocalAttention(ScaledDotProductAttention):
    """Equation (1) over the r positions around the query; in the decoder, over the r that end with it.

    Only those keys are ever read, so it costs O(r n d). Cross-attention stays as it is.
    """

    table_1 = ("r n d", "1", "n / r")

    def __init__(self, config: Sizes, site: str, window: int = 16):
        super().__init__(config, site)
        before = {"encoder": window // 2, "decoder": window - 1, "cross": 0}[site]
        self.offsets = None if site == "cross" else range(-before, window - before)

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        if self.offsets is None:
            return super().forward(Q, K, V, mask, start)
        near, seen = self._near(Q, K, mask, start)  # (Lq, r), (B or 1, 1, Lq, r)
        scores = (Q[:, :, :, None] @ K[:, :, near].mT)[:, :, :, 0] * Q.shape[-1] ** -0.5  # (B, h, Lq, r)
        return (softmax(scores, seen)[:, :, :, None] @ V[:, :, near])[:, :, :, 0]

    def _near(self, Q: Tensor, K: Tensor, mask: Mask, start: int) -> tuple[Tensor, Tensor]:
        """The keys of every query, and which of them it may see."""
        offsets = torch.arange(self.offsets.start, self.offsets.stop, device=K.device)
        at = torch.arange(start, start + Q.shape[2], device=K.device)[:, None] + offsets
        near = at.clamp(0, K.shape[2] - 1)
        seen = ((at == near) & (offsets <= 0 if mask.causal else True))[None, None]
        return near, seen if mask.keys is None else seen & mask.keys[:, near][:, None]
