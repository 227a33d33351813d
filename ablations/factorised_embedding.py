"""A factorised embedding: a small vector for each subword, and one projection to d_model (ALBERT, Lan et al. 2020,
arXiv:1909.11942)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import Count, Sizes


class FactorisedEmbedding(nn.Module):
    """The matrix of Section 3.4 as A B, with A (V, e), B (e, d_model) and e = d_model / divisor.

    The source has e = 128 for d_model = 768. Entries of A B vary as those of the paper's matrix do at first.
    shared: whether A B also projects to the logits, as Narang et al. 2021 have it (arXiv:2102.11972); else a matrix of
    its own, (V, d_model), does.
    """

    def __init__(self, config: Sizes, site: None, divisor: Count = 6, shared: bool = True):
        super().__init__()
        V, d_model, e = config.vocab_size, config.d_model, max(1, config.d_model // divisor)
        self.A = nn.Parameter(torch.randn(V, e) * e**-0.5)
        self.B = nn.Parameter(torch.randn(e, d_model) * d_model**-0.5)
        self.output = None if shared else nn.Parameter(torch.randn(V, d_model) * d_model**-0.5)

    def embed(self, ids: Tensor, site: str) -> Tensor:
        return F.embedding(ids, self.A) @ self.B * math.sqrt(self.B.shape[1])

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x @ self.B.T, self.A) if self.output is None else F.linear(x, self.output)
