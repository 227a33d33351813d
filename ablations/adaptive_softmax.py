"""Adaptive softmax (Grave et al. 2017, arXiv:1609.04309), and input embeddings that share its weights (Baevski and Auli
2019, arXiv:1809.10853).

Subwords are in the three clusters of adaptive_input.py. The head has the first, and one number for each of the others.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablations.adaptive_input import SHARES
from transformer_pl.config import Sizes
from transformer_pl.model import linear


class AdaptiveSoftmax(nn.Module):
    """log p(w) = log p(w | its cluster) + log p(its cluster), as the logits.

    projection: each cluster after the first has vectors of a quarter of the length before, and a projection; else all
    vectors have d_model numbers.
    """

    def __init__(self, config: Sizes, site: None, projection: bool = True):
        super().__init__()
        d_model, V = config.d_model, config.vocab_size
        counts = [max(1, round(share * V)) for share in SHARES]
        self.counts = [*counts, V - sum(counts)]
        lengths = [max(1, d_model // 4**i) if projection else d_model for i in range(len(self.counts))]
        vectors = [torch.randn(n, d) * d**-0.5 for n, d in zip(self.counts, lengths, strict=True)]
        self.vectors = nn.ParameterList(vectors)
        self.projections = nn.ParameterList(torch.randn(d, d_model) * d_model**-0.5 for d in lengths[1:] if projection)
        self.vectors[0].data *= (lengths[0] / d_model) ** 0.5
        self.clusters = linear(d_model, len(SHARES))

    def embed(self, ids: Tensor, site: str) -> Tensor:
        first, parts = 0, []
        for i, (n, vectors) in enumerate(zip(self.counts, self.vectors, strict=True)):
            inside = (ids >= first) & (ids < first + n)
            found = F.embedding((ids - first).clamp(0, n - 1), vectors)
            found = found @ self.projections[i - 1] if i and self.projections else found
            parts.append(found * inside.unsqueeze(-1))
            first += n
        return torch.stack(parts).sum(0) * math.sqrt(self.clusters.in_features)

    def logits(self, x: Tensor) -> Tensor:
        head = torch.cat([F.linear(x, self.vectors[0]), self.clusters(x)], -1).log_softmax(-1)
        log_p = [head[..., : self.counts[0]]]
        for i, vectors in enumerate(self.vectors[1:]):
            inner = x @ self.projections[i].T if self.projections else x
            log_p.append(F.linear(inner, vectors).log_softmax(-1) + head[..., self.counts[0] + i, None])
        return torch.cat(log_p, -1)
