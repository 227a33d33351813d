"""Two matrices in place of one: the text is embedded by one, for source and target alike, and another projects to the
logits. What Press and Wolf 2017 (arXiv:1608.05859) tie is untied; source and target share their embedding as before.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import Sizes


class UntiedOutput(nn.Module):
    """A matrix for all input and one for the projection before the softmax, drawn alike."""

    def __init__(self, config: Sizes, site: None):
        super().__init__()
        shape, std = (config.vocab_size, config.d_model), config.d_model**-0.5
        self.input, self.output = (nn.Parameter(torch.randn(shape) * std) for _ in range(2))

    def embed(self, ids: Tensor, site: str) -> Tensor:
        return F.embedding(ids, self.input) * math.sqrt(self.input.shape[1])

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.output)
