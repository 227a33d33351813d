"""A curriculum by length: short sentences first (Kocmi and Bojar 2017, arXiv:1707.09533)."""

from typing import Any

import numpy as np

from transformer_pl.config import Count
from transformer_pl.data.batches import TrainStream
from transformer_pl.data.tokens import Split


class LengthCurriculum(TrainStream):
    """In the first `epochs` epochs the batches come in the order of their longest sentences, and then shuffled.

    The source includes longer sentences little by little, beside the short ones.
    """

    def __init__(self, *arguments: Any, epochs: Count = 1):
        super().__init__(*arguments)
        self.epochs = epochs

    def epoch_batches(self, split: Split, epoch: int) -> list[np.ndarray]:
        batches = super().epoch_batches(split, epoch)
        if epoch >= self.epochs:
            return batches
        return sorted(batches, key=lambda batch: int(split.longer[batch].max()))
