"""GatedNorm (Qiu et al. 2026, arXiv:2601.22966): a gate of low rank after the norm, which scales each number of it.

As in Marin (github.com/marin-community/marin, experiments/grug): RMSNorm before each sub-layer and after the last
layer, each with a gate. The gate's matrices are initialised as other projections are: gates start near 1/2.
`ablations.pre_rms_norm.PreRMSNormResidual` is the same without gates.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from ablations.pre_norm import PreNormResidual
from transformer_pl.config import Count, Sizes
from transformer_pl.model import linear


class GatedNorm(nn.Module):
    """n * sigmoid(SiLU(n W_down) W_up) with n = RMSNorm(x); x (..., d_model) to the same shape."""

    def __init__(self, d_model: int, rank: int):
        super().__init__()
        self.norm = nn.RMSNorm(d_model, eps=1e-6)
        self.W_down, self.W_up = linear(d_model, rank), linear(rank, d_model)

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm(x)
        return n * self.W_up(F.silu(self.W_down(n))).sigmoid()


class GatedNormResidual(PreNormResidual):
    """x + Dropout(Sublayer(GatedNorm(x))), and one gated norm more after the last layer of a stack."""

    def __init__(self, config: Sizes, site: str, rank: Count = 16):
        super().__init__(config, site)
        self.d_model, self.rank = config.d_model, rank
        self.norm = GatedNorm(config.d_model, rank)  # type: ignore[assignment]

    def final_norm(self) -> nn.Module:
        return GatedNorm(self.d_model, self.rank)
