"""Attention with a sigmoid in place of the softmax (Ramapuram et al. 2024, arXiv:2409.04431)."""

from torch import Tensor, nn

from transformer_pl.config import Sizes
from transformer_pl.model import Mask


class SigmoidAttention(nn.Module):
    """sigmoid(Q K^T / sqrt(d_k) - log n) V, with n the number of keys that a query may see. Weights need not sum to 1.

    The source has one n, the length of its sequences; with the keys that are seen, padding changes nothing.
    The source has self-attention alone; here the attention to the encoder has a sigmoid, too.
    """

    table_1 = ("n² d", "1", "1")

    def __init__(self, config: Sizes, site: str):
        super().__init__()

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return self.weights(Q, K, mask, start) @ V

    def weights(self, Q: Tensor, K: Tensor, mask: Mask, start: int = 0) -> Tensor:
        seen = mask.dense(Q, K, start)
        bias = seen.sum(-1, keepdim=True).clamp(min=1).log().type_as(Q)
        return (Q @ K.mT * Q.shape[-1] ** -0.5 - bias).sigmoid() * seen
