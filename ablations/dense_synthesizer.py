"""The dense Synthesizer (Tay et al. 2021, arXiv:2005.00743): a query's scores come from its own vector alone.

plus and alpha: see random_synthesizer.py. The usual scores then have the same W_Q. Each head has a W_2 of its own.
"""

import torch
from torch import Tensor, nn

from ablations.random_synthesizer import RandomSynthesizer
from transformer_pl.config import Count, Sizes


class DenseSynthesizer(RandomSynthesizer):
    """softmax(relu(x W_Q) W_2) V of every head, then W_O: one score for each position of a key.

    factorised: the scores are the products of a and of b numbers, each computed so, with a b = length.
    """

    def __init__(
        self,
        config: Sizes,
        site: str,
        factorised: bool = False,
        plus: bool = False,
        alpha: bool = False,
        length: Count = 64,
    ):
        self.factorised = factorised
        super().__init__(config, site, plus, alpha, length)

    def make_scores(self, config: Sizes) -> None:
        a = next(a for a in range(int(self.length**0.5), 0, -1) if self.length % a == 0)
        widths = (a, self.length // a) if self.factorised else (self.length,)
        self.W_2 = nn.ParameterList(torch.randn(config.h, config.d_k, width) * config.d_k**-0.5 for width in widths)

    def own_scores(self, x: Tensor, start: int) -> Tensor:
        hidden = self._heads(self.W_Q(x)).relu()
        first, *second = (hidden @ W for W in self.W_2)
        return (first.unsqueeze(-1) * second[0].unsqueeze(-2)).flatten(-2) if second else first
