"""R-Drop (Liang et al. 2021, arXiv:2106.14448): two passes with their own dropout should predict the same.

The loss of a token is

    1/2 (CE_1 + CE_2) + alpha/2 * 1/2 (KL(P_1 || P_2) + KL(P_2 || P_1)),

half of equation (4) there, so that its scale is that of one pass; CE is smoothed as without R-Drop.
"""

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field

from transformer_pl.config import PAD, Optim, Sizes
from transformer_pl.data.batches import Batch
from transformer_pl.model import Transformer


class RDrop:
    """In place of `optim.loss`. alpha: the weight of the divergence; 5 for translation in the paper."""

    def __init__(self, config: Sizes, optim: Optim, alpha: Annotated[float, Field(ge=0)] = 5.0):
        self.eps_ls, self.alpha = optim.eps_ls, alpha

    def of_batch(self, model: Transformer, batch: Batch) -> torch.Tensor:
        real = batch.target_out != PAD  # (B, L)
        target = batch.target_out[real]
        first, second = (model(batch.source, batch.target_in)[real].log_softmax(-1) for _ in range(2))
        losses = [F.cross_entropy(one, target, reduction="sum", label_smoothing=self.eps_ls) for one in (first, second)]
        divergence = ((first.exp() - second.exp()) * (first - second)).sum()  # KL in both directions
        return sum(losses) / 2 + self.alpha / 4 * divergence
