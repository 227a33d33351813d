"""RMSNorm in place of LayerNorm: no mean is subtracted, and there is no bias (Zhang and Sennrich 2019,
arXiv:1910.07467)."""

from torch import nn

from transformer_pl.config import Sizes
from transformer_pl.model import PostNormResidual


class RMSNormResidual(PostNormResidual):
    """RMSNorm(x + Dropout(Sublayer(x))) with RMSNorm(x) = x / sqrt(mean of x^2 + eps) · gain."""

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)
        self.norm = nn.RMSNorm(config.d_model, eps=1e-6)  # type: ignore[assignment]
