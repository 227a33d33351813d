"""Sentences as token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Tokens:
    """Sentences in one language, as one array of token ids."""

    flat: np.ndarray  # (tokens,) uint16 or uint32: the sentences one after the other, without special tokens
    offsets: np.ndarray  # (sentences + 1,) int64: sentence i is flat[offsets[i] : offsets[i + 1]]

    @classmethod
    def joined(cls, parts: Sequence["Tokens"]) -> "Tokens":
        """The sentences of all parts, one after the other."""
        starts = np.cumsum([0, *(len(part.flat) for part in parts)])
        offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts, strict=False)]
        return cls(np.concatenate([part.flat for part in parts]), np.concatenate([*offsets, starts[-1:]]))

    def take(self, indexes: Sequence[int] | np.ndarray) -> "Tokens":
        """The sentences at `indexes`, in that order."""
        indexes = np.asarray(indexes, dtype=np.int64)
        starts = self.offsets[indexes]
        counts = self.offsets[indexes + 1] - starts
        offsets = np.concatenate([[0], np.cumsum(counts)])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
        return Tokens(self.flat[places], offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self.flat[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """(sentences,) int32: the tokens of each sentence, special tokens not counted."""
        return np.diff(self.offsets).astype(np.int32)

    @property
    def lengths_with_special(self) -> np.ndarray:
        """(sentences,) int32: the tokens that the model sees of each sentence: its own, and BOS or EOS."""
        return self.lengths + 1


def evenly_spaced(total: int, count: int) -> list[int]:
    """Return at most `count` different indexes below `total`, evenly spaced."""
    return np.unique(np.linspace(0, total - 1, count).astype(int)).tolist()


class Split(NamedTuple):
    source: Tokens
    target: Tokens


def pairs_that_fit(
    source_lengths: np.ndarray, target_lengths: np.ndarray, batch_tokens: int, max_length: int
) -> np.ndarray:
    """True for each pair that is trained on: both sentences fit `max_length`, and a batch of their own."""
    return np.maximum(source_lengths, target_lengths) <= min(max_length, batch_tokens)
