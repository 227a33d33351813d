"""Word-level distillation (Hinton et al. 2015, arXiv:1503.02531; Kim and Rush 2016, arXiv:1606.07947).

A finished trial is the teacher: at each position the student learns its distribution q of the next token beside the
reference y,

    (1 - weight) * CE(y) + weight * sum_k -q_k log p_k.

CE is smoothed, as without a teacher. There is no temperature, which Hinton et al. have.
"""

import torch
import torch.nn.functional as F

from transformer_pl.config import PAD, Optim, Rate, Sizes
from transformer_pl.data.batches import Batch
from transformer_pl.model import Transformer
from transformer_pl.train.teacher import Teacher


class WordDistillation:
    """In place of `optim.loss`. teacher: the id of a finished trial on the same text with the same vocabulary."""

    def __init__(self, config: Sizes, optim: Optim, teacher: Teacher, weight: Rate = 0.5):
        self.eps_ls, self.teacher, self.weight = optim.eps_ls, teacher, weight

    def of_batch(self, model: Transformer, batch: Batch) -> torch.Tensor:
        real = batch.target_out != PAD  # (B, L)
        logits = model(batch.source, batch.target_in)[real]  # (tokens, V)
        taught = self.teacher(batch.source, batch.target_in)[real].softmax(-1)
        reference = F.cross_entropy(logits, batch.target_out[real], reduction="sum", label_smoothing=self.eps_ls)
        return (1 - self.weight) * reference + self.weight * F.cross_entropy(logits, taught, reduction="sum")
