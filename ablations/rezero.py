"""ReZero (Bachlechner et al. 2020, arXiv:2003.04887): a learned number, zero at first, weighs each sub-layer.

x + alpha Sublayer(x) has no norm: at the start of the training each layer is the identity, whatever the depth. All
other weights are initialised as in the paper. The source's Transformer shares alpha between the two sub-layers of a
layer; here each sub-layer has its own. With `norm` there is a LayerNorm before each sub-layer and after the last layer.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from transformer_pl.config import Sizes
from transformer_pl.model import Dropout


class ReZero(nn.Module):
    """x + alpha Dropout(Sublayer(x)), with norm x + alpha Dropout(Sublayer(LayerNorm(x)))."""

    def __init__(self, config: Sizes, site: str, norm: bool = False):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(()))
        self.norm = nn.LayerNorm(config.d_model, eps=1e-6) if norm else nn.Identity()
        self.dropout = Dropout(config.p_drop)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.alpha * self.dropout(sublayer(self.norm(x))).type_as(x)

    def final_norm(self) -> nn.Module:
        if isinstance(self.norm, nn.Identity):
            return nn.Identity()
        return type(self.norm)(self.norm.normalized_shape, eps=self.norm.eps)
