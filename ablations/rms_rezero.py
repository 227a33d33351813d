"""ReZero (Bachlechner et al. 2020, arXiv:2003.04887) with an RMSNorm before each sub-layer, a row of Narang et al. 2021
(arXiv:2102.11972)."""

from torch import nn

from ablations.rezero import ReZero
from transformer_pl.config import Sizes


class RMSReZero(ReZero):
    """x + alpha Dropout(Sublayer(RMSNorm(x))), and one norm more after the last layer of a stack."""

    def __init__(self, config: Sizes, site: str):
        super().__init__(config, site)
        self.norm = nn.RMSNorm(config.d_model, eps=1e-6)  # type: ignore[assignment]
