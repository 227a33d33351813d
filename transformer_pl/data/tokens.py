"""Sentences as token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Tokens:
    """Sentences in one language, or pieces of them, as one array of token ids."""

    flat: np.ndarray  # (tokens,) uint16 or uint32: the sentences one after the other, without special tokens
    offsets: np.ndarray  # (sentences + 1,) int64: sentence i is flat[offsets[i] : offsets[i + 1]]
    ends: np.ndarray | None = None  # (sentences,) False for a piece that the next one continues; None: all are whole

    @classmethod
    def of(cls, flat: np.ndarray, lengths: Sequence[int] | np.ndarray, ends: np.ndarray | None = None) -> "Tokens":
        """The sentences that lie one after the other in `flat` and have these lengths."""
        return cls(flat, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), ends)

    @classmethod
    def joined(cls, parts: Sequence["Tokens"]) -> "Tokens":
        """The sentences of all parts, one after the other."""
        return cls.of(np.concatenate([part.flat for part in parts]), np.concatenate([part.lengths for part in parts]))

    def take(self, indexes: Sequence[int]) -> "Tokens":
        """The sentences at `indexes`, in that order."""
        rows = [self[i] for i in indexes]
        return Tokens.of(np.concatenate([self.flat[:0], *rows]), [len(row) for row in rows])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self.flat[self.offsets[i] : self.offsets[i + 1]]

    def rows(self) -> list[list[int]]:
        """The ids of each sentence."""
        return [self[i].tolist() for i in range(len(self))]

    @property
    def lengths(self) -> np.ndarray:
        """(sentences,) int32: the tokens of each sentence, special tokens not counted."""
        return np.diff(self.offsets).astype(np.int32)

    @property
    def lengths_with_special(self) -> np.ndarray:
        """(sentences,) int32: the tokens of each sentence, with BOS or EOS. A piece that goes on has no EOS."""
        return self.lengths + (1 if self.ends is None else self.ends.astype(np.int32))

    def in_pieces(self, longest: int) -> "Tokens":
        """The sentences, each cut into consecutive pieces of `longest` tokens, EOS among them; the last is shorter."""
        counts = -(-self.lengths_with_special // longest)  # pieces of each sentence
        ends = np.zeros(counts.sum(), bool)
        ends[np.cumsum(counts) - 1] = True
        lengths = np.full(len(ends), longest)
        lengths[ends] = self.lengths - (counts - 1) * longest
        return Tokens.of(self.flat, lengths, ends)

    @property
    def sentence(self) -> np.ndarray:
        """(pieces,) int64: the index of the sentence that each piece is of."""
        return np.arange(len(self)) if self.ends is None else np.cumsum(self.ends) - self.ends


def evenly_spaced(total: int, count: int) -> list[int]:
    """Return at most `count` different indexes below `total`, evenly spaced."""
    return np.unique(np.linspace(0, total - 1, count).astype(int)).tolist()


class Split(NamedTuple):
    """The sentence pairs of a split."""

    source: Tokens
    target: Tokens

    @property
    def longer(self) -> np.ndarray:
        """(pairs,) int32: the tokens of the longer sentence of each pair that the model sees, with BOS or EOS."""
        return np.maximum(self.source.lengths_with_special, self.target.lengths_with_special)
