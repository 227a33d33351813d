"""Another epsilon of LayerNorm. The paper names none; its authors' code has 1e-6, torch and much later code 1e-5."""

from torch import nn

from transformer_pl.config import Positive, Sizes
from transformer_pl.model import PostNormResidual


class NormEpsilon(PostNormResidual):
    """LayerNorm(x) = (x - mean) / sqrt(variance + eps) · gain + bias after each sub-layer, as in the paper's model."""

    def __init__(self, config: Sizes, site: str, eps: Positive = 1e-5):
        super().__init__(config, site)
        self.norm = nn.LayerNorm(config.d_model, eps=eps)
