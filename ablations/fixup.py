"""Fixup (Zhang, Dauphin and Ma 2019, arXiv:1901.09321): an initialisation with which no norm is needed.

The last projection of each sub-layer begins at zero. The others are drawn as in the paper and multiplied by L^(-1/2),
with L sub-layers in a stack: the source's L^(-1/(2m - 2)) for m = 2 projections in a row. A learned bias, a number,
comes before each sub-layer, and a learned factor after it. The source has such a bias before every projection and every
activation, and begins the last layer of the model at zero, too, which is not possible where the embedding has the same
matrix.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from transformer_pl.config import Sizes
from transformer_pl.config.components import with_own
from transformer_pl.model import Dropout, Transformer


class FixupResidual(nn.Module):
    """x + scale Dropout(Sublayer(x + bias)), with scale 1 and bias 0 at first."""

    def __init__(self, config: Sizes, site: str):
        super().__init__()
        self.scale, self.bias = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))
        self.dropout = Dropout(config.p_drop)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.scale * self.dropout(sublayer(x + self.bias)).type_as(x)

    def final_norm(self) -> nn.Module:
        return nn.Identity()


class Fixup(Transformer):
    """The Transformer with this residual and this initialisation."""

    def __init__(self, config: Sizes):
        super().__init__(with_own(config, "residual", FixupResidual))
        for layers in (self.encoder, self.decoder):
            L = sum(isinstance(module, FixupResidual) for module in layers.modules())
            for name, module in layers.named_modules():
                if isinstance(module, nn.Linear):
                    module.weight.data *= 0.0 if name.endswith(("W_O", "W_2")) else L**-0.5
