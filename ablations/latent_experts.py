"""A mixture of experts in a latent space (LatentMoE; Elango et al. 2026, arXiv:2601.18089): shared matrices lead into a
smaller space, where the experts work, and back.

As in Marin (github.com/marin-community/marin, experiments/grug) the latents are normalised. Router, weights of the two
experts and auxiliary loss are those of top_two_experts.py.
"""

import torch
from torch import Tensor, nn

from ablations.mixture_of_experts import MixtureOfExperts
from transformer_pl.config import Count, Positive, Sizes
from transformer_pl.model import linear


class LatentExperts(MixtureOfExperts):
    """(p_i FFN_i(z) + p_j FFN_j(z)) / (p_i + p_j) W_up of the two experts with the greatest p = softmax(W x).

    z = RMSNorm(x W_down) has d_model / divisor numbers; the router reads all of x.
    """

    def __init__(self, config: Sizes, site: str, experts: Count = 4, weight: Positive = 0.01, divisor: Count = 2):
        latent = max(1, config.d_model // divisor)
        super().__init__(config._replace(d_model=latent), site, experts, weight)
        self.router = linear(config.d_model, experts)
        self.W_down, self.W_up = linear(config.d_model, latent), linear(latent, config.d_model)
        self.norm = nn.RMSNorm(latent, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        p = self.router(x).softmax(-1)  # (B, L, experts)
        best, chosen = p.topk(2, -1)
        first = torch.zeros_like(p).scatter(-1, chosen[..., :1], 1.0)
        share, mean = first.flatten(0, -2).mean(0), p.flatten(0, -2).mean(0)
        self.auxiliary = {"balance": self.weight * len(self.experts) * (share * mean).sum()}
        gates = torch.zeros_like(p).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        z = self.norm(self.W_down(x).type_as(self.norm.weight))  # autocast has no norm in two precisions
        outputs = torch.stack([expert(z) for expert in self.experts], -1)  # all are computed: simple, not fast
        return self.W_up((outputs * gates.unsqueeze(-2)).sum(-1))
