"""Two matrices in place of one: the source has its own embedding. The target's is also the projection before the
softmax (Press and Wolf 2017, arXiv:1608.05859)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import Sizes
from transformer_pl.model import SharedEmbedding


class UntiedSource(SharedEmbedding):
    """A matrix for the source, and one for the target and the logits, drawn alike."""

    def __init__(self, config: Sizes, site: None):
        super().__init__(config, site)
        self.source = nn.Parameter(torch.randn_like(self.weight) * config.d_model**-0.5)

    def embed(self, ids: Tensor, site: str) -> Tensor:
        weight = self.source if site == "encoder" else self.weight
        return F.embedding(ids, weight) * math.sqrt(weight.shape[1])
