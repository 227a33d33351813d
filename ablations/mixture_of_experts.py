"""A mixture of experts in place of each feed-forward network, with one expert per token (Fedus et al. 2021,
arXiv:2101.03961). `experts` networks have the paper's size, and a router chooses one of them for each token."""

import torch
from torch import Tensor, nn

from transformer_pl.config import Count, Positive, Sizes
from transformer_pl.model import FeedForward, linear


class MixtureOfExperts(nn.Module):
    """p_i(x) FFN_i(x) of the expert i with the greatest p = softmax(W x) (equations 1 and 2); none has a capacity.

    The auxiliary loss `balance` is weight times experts times the sum over experts of the share of tokens times the
    mean probability (equations 4 to 6): just weight where all experts get equally many tokens. It counts padding, too.
    """

    def __init__(self, config: Sizes, site: str, experts: Count = 4, weight: Positive = 0.01):
        super().__init__()
        self.weight = weight
        self.router = linear(config.d_model, experts)
        self.experts = nn.ModuleList(FeedForward(config, site) for _ in range(experts))
        self.auxiliary = {"balance": torch.zeros(())}

    def forward(self, x: Tensor) -> Tensor:
        p = self.router(x).softmax(-1)  # (B, L, experts)
        chosen = p.argmax(-1, keepdim=True)
        ours = torch.zeros_like(p).scatter(-1, chosen, 1.0)
        share, mean = ours.flatten(0, -2).mean(0), p.flatten(0, -2).mean(0)
        self.auxiliary = {"balance": self.weight * len(self.experts) * (share * mean).sum()}
        outputs = torch.stack([expert(x) for expert in self.experts], -1)  # all are computed: simple, not fast
        return (outputs * (ours * p).unsqueeze(-2)).sum(-1)
