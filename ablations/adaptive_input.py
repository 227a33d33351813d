"""Adaptive input embeddings: the rarer a subword, the shorter its vector (Baevski and Auli 2019, arXiv:1809.10853).

Subwords are in three clusters by their number: those that the tokenizer learned first are the most frequent. The shares
are those of Narang et al. 2021 (arXiv:2102.11972, Appendix B): 2,500 and 6,000 of 32,128 subwords, and the rest.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import Sizes

SHARES = (2_500 / 32_128, 6_000 / 32_128)


class AdaptiveInput(nn.Module):
    """The matrix of Section 3.4, whose rows for cluster i are A_i B_i.

    A_i: (subwords of the cluster, d_model / 4^i). B_i: (d_model / 4^i, d_model). As in Section 3.4, the matrix projects
    to the logits, too. Its entries vary as those of the paper's matrix do at first.
    """

    def __init__(self, config: Sizes, site: None):
        super().__init__()
        d_model, V = config.d_model, config.vocab_size
        first = [max(1, round(share * V)) for share in SHARES]
        counts = [*first, V - sum(first)]
        lengths = [max(1, d_model // 4**i) for i in range(len(counts))]
        self.A = nn.ParameterList(torch.randn(n, d) * d**-0.5 for n, d in zip(counts, lengths, strict=True))
        self.B = nn.ParameterList(torch.randn(d, d_model) * d_model**-0.5 for d in lengths)

    def matrix(self) -> Tensor:
        """(vocab_size, d_model)"""
        return torch.cat([A @ B for A, B in zip(self.A, self.B, strict=True)])

    def embed(self, ids: Tensor, site: str) -> Tensor:
        matrix = self.matrix()
        return F.embedding(ids, matrix) * math.sqrt(matrix.shape[1])

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.matrix())
