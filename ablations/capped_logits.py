"""Logits that are capped by tanh (Gemma 2, arXiv:2408.00118, Section 2; there the cap is 30)."""

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
