"""BPE-dropout (Provilkov et al. 2020, arXiv:1910.13267): in every epoch the training sentences are split anew.

Byte-pair encoding merges the best pair of neighbours until none is left. Each time that it looks for the best pair,
every pair is left out with probability p (Algorithm 1 there), so that a word is split in many ways. Validation and test
sentences keep all merges.
"""

from itertools import chain, pairwise
from random import Random
from typing import Any

import numpy as np

from transformer_pl.config import Rate
from transformer_pl.data.batches import TrainStream
from transformer_pl.data.tokenizer import JointBPE
from transformer_pl.data.tokens import Split, Tokens
from transformer_pl.runtime.errors import InputError


class BPEDropout(TrainStream):
    """Training pairs whose subwords are drawn in every epoch."""

    def __init__(self, *arguments: Any, p: Rate = 0.1):
        super().__init__(*arguments)
        if not isinstance(self.tokenizer, JointBPE):
            rule = "must have the paper's byte-pair encoding"
            raise InputError(f"data.batches = {type(self).__name__}: {rule}; leave out data.tokenizer")
        self.p, self.pieces = p, self.tokenizer.vocabulary()
        self.order = {piece: rank for rank, piece in enumerate(self.pieces)}  # earlier merges come first

    def epoch_split(self, epoch: int) -> Split:
        random = Random(f"{self.config.seed} {epoch}")  # not sentencepiece's, which no seed repeats in another process
        return Split(*(self._drawn(side, random) for side in self.split))

    def _drawn(self, side: Tokens, random: Random) -> Tokens:
        sentences = [[self.pieces[token] for token in side[i]] for i in range(len(side))]
        drawn = [[self.order[piece] for piece in self.divided(pieces, random)] for pieces in sentences]
        return Tokens.of(np.array([*chain(*drawn)], np.uint32), [len(row) for row in drawn])

    def divided(self, pieces: list[str], random: Random) -> list[str]:
        """The same sentence in other pieces. A byte, such as <0x0A>, and an unknown character stay what they are."""
        words: list[list[str]] = [[]]
        for piece in pieces:
            for symbol in [piece] if piece[:1] == "<" and len(piece) > 1 else piece:
                if symbol == "▁":
                    words.append([])
                words[-1].append(symbol)
        for word in words:
            while pairs := [i for i, pair in enumerate(pairwise(word)) if self._keeps(*pair, random)]:
                best = min(pairs, key=lambda i: self.order[word[i] + word[i + 1]])
                word[best : best + 2] = [word[best] + word[best + 1]]
        return [*chain(*words)]

    def _keeps(self, first: str, second: str, random: Random) -> bool:
        """Whether two neighbours may be merged this time."""
        return first + second in self.order and random.random() >= self.p
