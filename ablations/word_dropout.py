"""Word dropout (Bowman et al. 2016, arXiv:1511.06349): the decoder's input loses words in training.

The decoder then predicts a token without some of the tokens before it, and has to read the source.
"""

from typing import Any

import torch

from transformer_pl.config import BOS, PAD, UNK, Rate
from transformer_pl.data.batches import Batch, TrainStream


class TargetWordDropout(TrainStream):
    """Each token of the decoder's input, but not its BOS, is the unknown token with probability p."""

    def __init__(self, *arguments: Any, p: Rate = 0.1):
        super().__init__(*arguments)
        self.p = p

    def changed(self, batch: Batch, generator: torch.Generator) -> Batch:
        given = batch.target_in
        dropped = torch.rand(given.shape, generator=generator) < self.p
        is_word = (given != PAD) & (given != BOS)
        return batch._replace(target_in=given.masked_fill(dropped & is_word, UNK))
