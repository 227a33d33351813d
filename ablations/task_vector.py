"""A learned vector of the task beside Figure 1, as in the authors' code, which had one for each of 32 tasks."""

import math

import torch
from torch import Tensor, nn

from transformer_pl.config import Sizes
from transformer_pl.model import SharedEmbedding


class TaskVector(SharedEmbedding):
    """The shared matrix, and one vector added to each embedding of the source.

    It is drawn as one row of the code's matrix (32, d_model), from Glorot's uniform distribution.
    """

    def __init__(self, config: Sizes, site: None):
        super().__init__(config, site)
        bound = math.sqrt(6 / (32 + config.d_model))
        self.task = nn.Parameter(torch.empty(config.d_model).uniform_(-bound, bound))

    def embed(self, ids: Tensor, site: str) -> Tensor:
        embedded = super().embed(ids, site)
        return embedded + self.task if site == "encoder" else embedded
