"""A tanh in place of each norm, before the sub-layer (Zhu et al. 2025, arXiv:2503.10622).

For large language models the source also tunes alpha, for the norms before attention by itself, and learns a factor of
the embeddings; neither is here.
"""

import torch
from torch import Tensor, nn

from ablations.pre_norm import PreNormResidual
from transformer_pl.config import Positive, Sizes


class DynamicTanh(nn.Module):
    """gain tanh(alpha x) + bias: a learned number alpha, and a gain and a bias for each feature."""

    def __init__(self, d_model: int, alpha: float):
        super().__init__()
        self.initial = alpha
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.gain = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * (self.alpha * x).tanh() + self.bias


class DynamicTanhResidual(PreNormResidual):
    """x + Dropout(Sublayer(DynamicTanh(x))), and one more after the last layer of a stack. alpha: at the beginning."""

    def __init__(self, config: Sizes, site: str, alpha: Positive = 0.5):
        super().__init__(config, site)
        self.norm = DynamicTanh(config.d_model, alpha)  # type: ignore[assignment]

    def final_norm(self) -> nn.Module:
        return DynamicTanh(len(self.norm.bias), self.norm.initial)  # type: ignore[arg-type]
