"""Attention whose temperature falls during the training, from `begin` to 1: flat weights first, sharp ones last.

Annealing the temperature of a softmax is of Jang et al. 2017 (arXiv:1611.01144), there of a Gumbel-softmax.
"""

from torch import Tensor

from transformer_pl.config import Positive, Sizes
from transformer_pl.model import Mask, ScaledDotProductAttention


class AnnealedAttention(ScaledDotProductAttention):
    """softmax(Q K^T / (sqrt(d_k) temperature)) V."""

    def __init__(self, config: Sizes, site: str, begin: Positive = 4.0):
        super().__init__(config, site)
        self.begin, self.temperature = begin, 1.0

    def at_step(self, step: int, steps: int) -> None:
        self.temperature = self.begin ** (1 - step / steps)

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return super().forward(Q / self.temperature, K, V, mask, start)

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return super().weights(Q / self.temperature, K, mask, start)
