"""Cross-entropy of the next token: smoothed for training (Section 5.4), plain for perplexity."""

import torch.nn.functional as F
from torch import Tensor

from transformer_pl.data.tokenizer import PAD


def smoothed_loss(logits: Tensor, target: Tensor, eps_ls: float) -> Tensor:
    """The sum over tokens of the label-smoothed cross-entropy, in nats; padding is left out.

    logits (B, L, V), target (B, L). eps_ls is spread evenly over all V subwords (Szegedy et al. 2016; torch's variant).
    """
    return F.cross_entropy(
        logits.flatten(0, 1).float(), target.flatten(), ignore_index=PAD, reduction="sum", label_smoothing=eps_ls
    )


def negative_log_likelihood(logits: Tensor, target: Tensor) -> Tensor:
    """The un-smoothed cross-entropy of every token in nats, (B, L); zero at padding."""
    flat = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), ignore_index=PAD, reduction="none")
    return flat.view_as(target)
