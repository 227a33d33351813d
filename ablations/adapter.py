"""Adapters: small networks after the sub-layers of a trained model (Houlsby et al. 2019, arXiv:1902.00751).

Each sub-layer's output y, before it is added to x, becomes y + W_up gelu(W_down y + b_down) + b_up, which has
`bottleneck` numbers inside. The source draws both matrices with a deviation of 0.01, so that at first y hardly changes,
and trains the norms as well: `optim.freeze=*.W_?.weight,*.W_?.bias,embedding.*` leaves adapters and norms.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import Count, Sizes
from transformer_pl.model import PostNormResidual


class AdapterResidual(PostNormResidual):
    """LayerNorm(x + Adapter(Dropout(Sublayer(x)))), whose norm keeps its name."""

    def __init__(self, config: Sizes, site: str, bottleneck: Count = 8):
        super().__init__(config, site)
        self.W_down = nn.Parameter(
            nn.init.trunc_normal_(torch.empty(bottleneck, config.d_model), std=0.01, a=-0.02, b=0.02)
        )
        self.W_up = nn.Parameter(
            nn.init.trunc_normal_(torch.empty(config.d_model, bottleneck), std=0.01, a=-0.02, b=0.02)
        )
        self.b_down, self.b_up = nn.Parameter(torch.zeros(bottleneck)), nn.Parameter(torch.zeros(config.d_model))

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        y = self.dropout(sublayer(x)).type_as(x)
        inner = F.gelu(F.linear(y, self.W_down, self.b_down))  # (B, L, bottleneck)
        return self.norm(x + y + F.linear(inner, self.W_up, self.b_up).type_as(x))
