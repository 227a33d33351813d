"""Logits that are capped by tanh, as those of the last layer of Gemma 2 (Gemma Team 2024, arXiv:2408.00118, Section 2).

There the cap is 30. Gemma 2 also caps the scores of attention, at 50.
"""

import torch
from torch import Tensor

from transformer_pl.config import Positive, Sizes
from transformer_pl.model import SharedEmbedding


class CappedLogits(SharedEmbedding):
    """c tanh(logits / c), so that no logit is beyond the cap c."""

    def __init__(self, config: Sizes, site: None, cap: Positive = 30.0):
        super().__init__(config, site)
        self.cap = cap

    def logits(self, x: Tensor) -> Tensor:
        return self.cap * torch.tanh(super().logits(x) / self.cap)
