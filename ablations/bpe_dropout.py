"""BPE-dropout (Provilkov et al. 2020, arXiv:1910.13267): in every epoch the training sentences are split anew.

Each merge of byte-pair encoding is left out with probability p, so that a word is split in many ways. Validation and
test sentences keep all merges.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import sentencepiece

from transformer_pl.config.types import Rate
from transformer_pl.data.batches import TrainStream
from transformer_pl.data.tokenizer import JointBPE
from transformer_pl.data.tokens import Split, Tokens
from transformer_pl.runtime.errors import InputError

GREATEST_SEED = 2**32


class BPEDropout(TrainStream):
    """Training pairs whose subwords are drawn in every epoch."""

    def __init__(self, *arguments: Any, p: Rate = 0.1):
        super().__init__(*arguments)
        if not isinstance(self.tokenizer, JointBPE):
            raise InputError(f"data.batches = {type(self).__name__}: must have the paper's byte-pair encoding")
        self.p = p

    def epoch_split(self, epoch: int) -> Split:
        seed = (1_000_003 * self.config.seed + epoch) % GREATEST_SEED
        sentencepiece.set_random_generator_seed(seed)
        with ThreadPoolExecutor(1) as thread:  # sentencepiece seeds the generator of a thread once, at its first use
            return thread.submit(lambda: Split(*map(self._drawn, self.split))).result()

    def _drawn(self, side: Tokens) -> Tokens:
        processor: Any = self.tokenizer.processor  # type: ignore[attr-defined]
        sentences = self.tokenizer.decode(side[i] for i in range(len(side)))
        draw = {"enable_sampling": True, "alpha": self.p, "nbest_size": -1}
        ids = [processor.encode(sentence, **draw) for sentence in sentences]  # a list would have threads of its own
        return Tokens.of(np.array([token for row in ids for token in row], np.uint32), [len(row) for row in ids])
