"""RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) before each sub-layer, as in T5 (Raffel et al. 2020,
arXiv:1910.10683)."""

from torch import nn

from ablations.pre_norm import PreNormResidual
from transformer_pl.config import Sizes


class PreRMSNormResidual(PreNormResidual):
    """x + Dropout(Sublayer(RMSNorm(x))), and one norm more after the last layer of a stack."""

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)
        self.norm = nn.RMSNorm(config.d_model, eps=1e-6)  # type: ignore[assignment]

    def final_norm(self) -> nn.Module:
        return nn.RMSNorm(self.norm.normalized_shape, eps=self.norm.eps)
