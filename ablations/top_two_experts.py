"""A mixture of experts with two experts for each token (Shazeer et al. 2017, arXiv:1701.06538; in a Transformer
Lepikhin et al. 2021, arXiv:2006.16668). With one expert it is mixture_of_experts.py."""

import torch
from torch import Tensor

from ablations.mixture_of_experts import MixtureOfExperts


class TopTwoExperts(MixtureOfExperts):
    """The two experts with the greatest p = softmax(W x), weighted by p_i / (p_1 + p_2).

    There is no noise and no capacity, and the second expert is always used.

    The auxiliary loss is that of one expert: its share of tokens is that of the tokens for which it comes first.
    """

    def forward(self, x: Tensor) -> Tensor:
        p = self.router(x).softmax(-1)  # (B, L, experts)
        best, chosen = p.topk(2, -1)
        first = torch.zeros_like(p).scatter(-1, chosen[..., :1], 1.0)
        share, mean = first.flatten(0, -2).mean(0), p.flatten(0, -2).mean(0)
        self.auxiliary = {"balance": self.weight * len(self.experts) * (share * mean).sum()}
        gates = torch.zeros_like(p).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        outputs = torch.stack([expert(x) for expert in self.experts], -1)  # all are computed: simple, not fast
        return (outputs * gates.unsqueeze(-2)).sum(-1)
