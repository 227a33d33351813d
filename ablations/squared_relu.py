"""A feed-forward network with the square of ReLU (Primer: So et al. 2021, arXiv:2109.08668)."""

from torch import Tensor

from transformer_pl.model import FeedForward


class SquaredReLU(FeedForward):
    """max(0, x W_1 + b_1)^2 W_2 + b_2."""

    def forward(self, x: Tensor) -> Tensor:
        return self.W_2(self.W_1(x).relu().square())
