"""A feed-forward network with another activation than ReLU, at first GELU (Hendrycks and Gimpel 2016,
arXiv:1606.08415)."""

import torch.nn.functional as F
from torch import Tensor

from transformer_pl.config import Sizes
from transformer_pl.model import FeedForward


class ActivationFeedForward(FeedForward):
    """f(x W_1 + b_1) W_2 + b_2: equation (2) with f, a function of torch.nn.functional, in place of ReLU."""

    def __init__(self, config: Sizes, site: str, activation: str = "gelu"):
        super().__init__(config, site)
        self.activation = getattr(F, activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.W_2(self.activation(self.W_1(x)))
