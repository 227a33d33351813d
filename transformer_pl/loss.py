"""Cross-entropy of the next token: smoothed for training (Section 5.4), plain for perplexity."""

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_pl.data.tokenizer import PAD

PART = 2**22  # logits whose logarithms exist at once: 16 MiB in float32


def smoothed_loss(logits: Tensor, target: Tensor, eps_ls: float) -> Tensor:
    """The sum over tokens of the label-smoothed cross-entropy, in nats; padding is left out.

    logits (B, L, V), target (B, L). eps_ls is spread evenly over all V subwords (Szegedy et al. 2016; torch's variant).
    """
    return F.cross_entropy(
        logits.flatten(0, 1).float(), target.flatten(), ignore_index=PAD, reduction="sum", label_smoothing=eps_ls
    )


def negative_log_likelihood(logits: Tensor, target: Tensor) -> Tensor:
    """The un-smoothed cross-entropy of every token in nats, (B, L); zero at padding."""
    rows, targets = logits.flatten(0, 1), target.flatten()
    size = max(1, PART // rows.shape[1])  # in parts, or a batch of validation would take three times its logits
    parts = zip(rows.split(size), targets.split(size), strict=True)
    nll = [F.cross_entropy(part.float(), next_, ignore_index=PAD, reduction="none") for part, next_ in parts]
    return torch.cat(nll).view_as(target)
