"""LayerScale (Touvron et al. 2021, arXiv:2103.17239): a learned factor for each number that a sub-layer puts out.

x + diag(lambda) Sublayer(LayerNorm(x)), their equation (4): the norm is before the sub-layer, so compare the row with
ablations.pre_norm.PreNormResidual. All factors start at `initial`: in the source at 0.1 with up to 18 layers, at 1e-5
with 24, at 1e-6 with more. All other weights are initialised as in the paper.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ablations.pre_norm import PreNormResidual
from transformer_pl.config import Positive, Sizes


class LayerScale(PreNormResidual):
    """x + Dropout(lambda * Sublayer(LayerNorm(x))), and one norm more after the last layer of a stack."""

    def __init__(self, config: Sizes, site: str, initial: Positive = 0.1):
        super().__init__(config, site)
        self.factors = nn.Parameter(torch.full((config.d_model,), initial))  # lambda

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return super().forward(x, lambda x: self.factors * sublayer(x))
