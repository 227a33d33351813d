"""A gated feed-forward network whose gate is the identity (LiGLU; Shazeer 2020, arXiv:2002.05202, where it is called
Bilinear)."""

from torch import Tensor

from ablations.gated_ffn import GatedFeedForward
from transformer_pl.config import Sizes


class BilinearFeedForward(GatedFeedForward):
    """((x W_1 + b_1) * (x W_3 + b_3)) W_2 + b_2, with two thirds of d_ff."""

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)

    def forward(self, x: Tensor) -> Tensor:
        return self.W_2(self.W_1(x) * self.W_3(x))
