"""The random Synthesizer (Tay et al. 2021, arXiv:2005.00743): scores that are trained, and do not depend on the text.

plus: the usual scores are added. alpha: both are weighted, by the softmax of two numbers that are learned.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_pl.config import Count, Sizes
from transformer_pl.model import Mask, MultiHeadSelfAttention, softmax


class RandomSynthesizer(MultiHeadSelfAttention):
    """softmax(R) V of every head, then W_O, with a matrix R of scores between positions.

    length: of R. A score of a later query or key is 0.
    """

    def __init__(self, config: Sizes, site: str, plus: bool = False, alpha: bool = False, length: Count = 64):
        super().__init__(config, site)
        self.plus, self.length = plus or alpha, length
        self.alpha = nn.Parameter(torch.zeros(2)) if alpha else None
        if not self.plus:
            del self.W_K
        self.make_scores(config)

    def make_scores(self, config: Sizes) -> None:
        """Build what `own_scores` computes with."""
        self.R = nn.Parameter(torch.randn(config.h, self.length, self.length))
        if not self.plus:
            del self.W_Q

    def own_scores(self, x: Tensor, start: int) -> Tensor:
        """The scores of x (B, Lq, d_model), from position start on: (B or 1, h, Lq, length)."""
        stop = start + x.shape[1]
        return F.pad(self.R, (0, 0, 0, max(0, stop - self.length)))[None, :, start:stop]

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        V = self._heads(self.W_V(x))
        return (self._heads(self.W_K(x)) if self.plus else V), V

    def attend(self, x: Tensor, K: Tensor, V: Tensor, mask: Mask, start: int = 0) -> Tensor:
        Lk = K.shape[2]
        scores = F.pad(self.own_scores(x, start), (0, max(0, Lk - self.length)))[..., :Lk].expand(len(x), -1, -1, -1)
        if self.plus:
            usual = self._heads(self.W_Q(x)) @ K.mT * K.shape[-1] ** -0.5
            own, other = self.alpha.softmax(0) if self.alpha is not None else (1, 1)
            scores = own * scores + other * usual
        return self.W_O((softmax(scores, mask.dense(x, K, start)) @ V).transpose(1, 2).flatten(2))
