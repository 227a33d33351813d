"""A gated feed-forward network (Dauphin et al. 2017, arXiv:1612.08083; Shazeer 2020, arXiv:2002.05202)."""

import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import Sizes
from transformer_pl.model import linear


class GatedFeedForward(nn.Module):
    """(gate(x W_1 + b_1) * (x W_3 + b_3)) W_2 + b_2, with two thirds of d_ff: as many parameters as equation (2).

    `gate` is a function of torch.nn.functional; relu leaves the gating as the only difference to the paper.
    """

    def __init__(self, config: Sizes, site: str, gate: str = "relu"):
        super().__init__()
        inner = round(config.d_ff * 2 / 3)
        self.gate = getattr(F, gate)
        self.W_1 = linear(config.d_model, inner, bias=True)
        self.W_3 = linear(config.d_model, inner, bias=True)
        self.W_2 = linear(inner, config.d_model, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.W_2(self.gate(self.W_1(x)) * self.W_3(x))
