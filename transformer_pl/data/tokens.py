"""Sentences as token ids."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from transformer_pl.config import BOS, EOS


@dataclass(frozen=True)
class Tokens:
    """Sentences in one language, or pieces of them, as one array of token ids."""

    flat: np.ndarray  # (tokens,) uint16 or uint32: the sentences one after the other, without special tokens
    offsets: np.ndarray  # (sentences + 1,) int64: sentence i is flat[offsets[i] : offsets[i + 1]]
    ends: np.ndarray | None = None  # (sentences,) False for a piece without an EOS of its own; None: all have one
    before: np.ndarray | None = None  # (sentences,) the token that a decoder reads first; None: BOS

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

    def count(self, indexes: np.ndarray) -> np.ndarray:
        """(indexes,) int64: `lengths_with_special` of these sentences, without a look at the others."""
        ends = 1 if self.ends is None else self.ends[indexes]
        return self.offsets[indexes + 1] - self.offsets[indexes] + ends

    def in_pieces(self, longest: int) -> "Tokens":
        """The sentences, each cut into consecutive pieces of `longest` tokens, EOS among them; the last is shorter."""
        counts = -(-self.lengths_with_special // longest)  # pieces of each sentence
        ends = np.zeros(counts.sum(), bool)
        ends[np.cumsum(counts) - 1] = True
        lengths = np.full(len(ends), longest)
        lengths[ends] = self.lengths - (counts - 1) * longest
        return Tokens.of(self.flat, lengths, ends)

    def windows(self, documents: np.ndarray, longest: int, stride: int | None = None) -> "Windows":
        """The sentences with their EOS, joined to documents and cut into pieces of at most `longest` tokens.

        documents (documents,): the tokens of each, EOS included. A piece that goes on begins with the token before it.
        stride: pieces reach back, and all but the first of a document have at most so many tokens of their own at their
        end, as in lm-evaluation-harness; None: they do not overlap.
        """
        stream, step = np.insert(self.flat, self.offsets[1:], EOS), stride or longest
        counts = 1 - np.minimum(longest - documents, 0) // step  # pieces of each document
        place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # of a piece in its document
        start, length = (np.repeat(of, counts) for of in (np.cumsum(documents) - documents, documents))
        own = np.where(place > 0, longest + (place - 1) * step, 0)
        ends = np.minimum(length, longest + place * step)
        begins = own if stride is None else np.maximum(0, ends - longest)
        flat = stream
        if stride is not None:
            flat = np.concatenate([stream[i:j] for i, j in zip(start + begins, start + ends, strict=True)])
        before = np.where(begins > 0, stream[start + begins - 1], BOS)
        pieces = Tokens.of(flat, ends - begins, np.zeros(len(ends), bool))
        return Windows(replace(pieces, before=before), own - begins, self.lengths_with_special)

    def whole(self) -> "Tokens":
        """The lines that these pieces are of, one after the other."""
        if self.before is None:
            last = np.full(len(self), True) if self.ends is None else self.ends
            return Tokens(self.flat, np.append(0, self.offsets[1:][last]))
        ends = np.flatnonzero(self.flat == EOS)
        return Tokens.of(np.delete(self.flat, ends), np.diff(ends, prepend=-1) - 1)

    def cut_as(self, pieces: "Tokens", longest: int) -> "Tokens":
        """These lines in pieces of at most `longest` tokens, as `pieces` are of the same lines in other tokens."""
        if pieces.ends is None:
            return self
        if pieces.before is None:
            return self.in_pieces(longest)
        lines = np.add.reduceat((pieces.flat == EOS).astype(int), pieces.offsets[pieces.first_pieces])  # of documents
        documents = np.add.reduceat(self.lengths_with_special, np.cumsum(lines) - lines)
        return self.windows(documents, longest).pieces

    @property
    def first_pieces(self) -> np.ndarray:
        """(documents,) int64: each piece that begins anew: all, or the first of each joined document."""
        return np.arange(len(self)) if self.before is None else np.flatnonzero(self.before == BOS)

    @property
    def sentence(self) -> np.ndarray:
        """(pieces,) int64: the index of the sentence that each piece is of."""
        return np.arange(len(self)) if self.ends is None else np.cumsum(self.ends) - self.ends


def evenly_spaced(total: int, count: int) -> list[int]:
    """Return at most `count` different indexes below `total`, evenly spaced."""
    return np.unique(np.linspace(0, total - 1, count).astype(int)).tolist()


class Windows(NamedTuple):
    """Lines of text in pieces that may overlap; see `Tokens.windows`."""

    pieces: Tokens
    earlier: np.ndarray  # (pieces,) how many tokens of each, at its beginning, are of earlier pieces
    lines: np.ndarray  # (lines,) the tokens of each line, EOS included


class Split(NamedTuple):
    """The sentence pairs of a split."""

    source: Tokens
    target: Tokens

    @classmethod
    def of_targets(cls, target: Tokens) -> "Split":
        """Targets with empty sources."""
        return cls(Tokens.of(target.flat[:0], np.zeros(len(target), np.int64)), target)

    @property
    def longer(self) -> np.ndarray:
        """(pairs,) int32: the tokens of the longer sentence of each pair that the model sees, with BOS or EOS."""
        return np.maximum(self.source.lengths_with_special, self.target.lengths_with_special)
