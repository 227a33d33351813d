"""The factorised random Synthesizer (Tay et al. 2021, arXiv:2005.00743): a matrix of scores of a low rank."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablations.random_synthesizer import RandomSynthesizer
from transformer_pl.config import Count, Sizes


class FactorisedRandomSynthesizer(RandomSynthesizer):
    """softmax(R_1 R_2^T) V of every head, then W_O, with R_1 and R_2 (length, rank) that are trained.

    rank: 8 in the source.
    """

    def __init__(self, config: Sizes, site: str, rank: Count = 8, length: Count = 64):
        self.rank = rank
        super().__init__(config, site, length=length)

    def make_scores(self, config: Sizes) -> None:
        std = self.rank**-0.25  # so that their products vary as the entries of a whole R do
        self.R_1, self.R_2 = (nn.Parameter(torch.randn(config.h, self.length, self.rank) * std) for _ in range(2))
        del self.W_Q

    def own_scores(self, x: Tensor, start: int) -> Tensor:
        stop = start + x.shape[1]
        R_1 = F.pad(self.R_1, (0, 0, 0, max(0, stop - self.length)))[:, start:stop]
        return (R_1 @ self.R_2.mT)[None]
