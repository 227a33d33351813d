"""Three matrices in place of one: what Section 3.4 shares, after Press and Wolf 2017 (arXiv:1608.05859)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import Sizes


class UntiedEmbedding(nn.Module):
    """A matrix each for the source, the target and the projection before the softmax, drawn alike."""

    def __init__(self, config: Sizes, site: None):
        super().__init__()
        shape, std = (config.vocab_size, config.d_model), config.d_model**-0.5
        names = ("encoder", "decoder", "output")
        self.weight = nn.ParameterDict({name: nn.Parameter(torch.randn(shape) * std) for name in names})

    def embed(self, ids: Tensor, site: str) -> Tensor:
        return F.embedding(ids, self.weight[site]) * math.sqrt(self.weight[site].shape[1])

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight["output"])
