"""Sandwich-LN: a norm before each sub-layer and one after it, inside the residual connection (Ding et al. 2021,
arXiv:2105.13290)."""

from collections.abc import Callable

from torch import Tensor, nn

from ablations.pre_norm import PreNormResidual
from transformer_pl.config import Sizes


class SandwichNormResidual(PreNormResidual):
    """x + Dropout(LayerNorm(Sublayer(LayerNorm(x)))), and one norm more after the last layer of a stack."""

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)
        self.after = nn.LayerNorm(config.d_model, eps=self.norm.eps)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return super().forward(x, lambda y: self.after(sublayer(y)))
