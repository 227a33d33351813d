"""Table 3, row (E): learned positions in place of sinusoids (Gehring et al. 2017, arXiv:1705.03122)."""

import torch
from torch import Tensor, nn

from transformer_pl.config import Count, Sizes


class LearnedPosition(nn.Module):
    """One learned vector for each position, added to the embedding. Positions beyond `most` reuse the last vector.

    They are drawn with a deviation of d_model^-0.5, as in fairseq. Gehring et al. draw positions as large
    as the embeddings of words, which here are sqrt(d_model) times as large.
    """

    def __init__(self, config: Sizes, site: str, most: Count = 512):
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(most, config.d_model) * config.d_model**-0.5)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        at = torch.arange(start, start + x.shape[1], device=x.device).clamp(max=len(self.vectors) - 1)
        return x + self.vectors[at]


class ScaledLearnedPosition(LearnedPosition):
    """The same vectors times sqrt(d_model), as the embeddings of words are (Section 3.4)."""

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        return x + x.shape[-1] ** 0.5 * super().forward(torch.zeros_like(x), start)
