"""Focal loss (Lin et al. 2017, arXiv:1708.02002): cross-entropy that counts tokens less which are predicted well."""

import torch.nn.functional as F
from torch import Tensor

from transformer_pl.config import PAD, Optim, Sizes


class FocalLoss:
    """-(1 - p)^gamma log p of every target token, summed. gamma = 0 is plain cross-entropy.

    Targets are not smoothed, so compare it with `optim.eps_ls=0`. The weight of a class, alpha in the source's equation
    5, is left out.
    """

    def __init__(self, config: Sizes, optim: Optim, gamma: float = 2.0):
        self.gamma = gamma

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        nll = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), ignore_index=PAD, reduction="none")
        return ((1 - (-nll).exp()) ** self.gamma * nll).sum()
