"""Which training pairs are used: those with text in both languages that the keys of cleaning do not leave out.

The paper describes no cleaning, so none is on by default. An evaluation set keeps all of its pairs.
"""

import itertools
from array import array
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from transformer_pl.config import Data
from transformer_pl.data.corpus import Corpus, Pair
from transformer_pl.runtime.errors import InputError, shown

EVALUATION = ("val", "test")  # the splits that keep every pair, and whose text is stored beside their tokens
COUNTED_EVERY = 10_000  # pairs between two reports of progress

OnProgress = Callable[[str, int, int | None], None]  # what is being done, how far, and how far in all, if known


def no_progress(stage: str, done: int, total: int | None) -> None:
    """Show no progress."""


class Selection(NamedTuple):
    """What a split holds, and which of its pairs are used."""

    counts: dict[str, int]  # `pairs` that are used, and those that are left out by reason: `blank`, `long`, ...
    words: tuple[int, int]  # of the used pairs: source, target
    kept: bytes | None  # for each pair a 1 where it is used; None: all are

    def used(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        """Those that are used, of all pairs of the split in their order."""
        return pairs if self.kept is None else itertools.compress(pairs, self.kept)


def select(name: str, corpus: Corpus, data: Data, on_progress: OnProgress = no_progress) -> Selection:
    """Read a split once and decide on each of its pairs. Raises an InputError for every mistake in it.

    A pair that is left out counts for the first reason that holds: `blank` (an empty sentence), `long` (over
    data.most_words), `uneven` (over data.most_ratio), `repeated` (data.unique).
    """
    kept, digests, left_out, words = bytearray(), array("Q"), {"blank": 0}, (0, 0)
    lengths_of_kept = array("I")  # source, target, source, ...; where pairs may be repeated
    for number, pair in enumerate(corpus.pairs(name)):
        if not _is_pair(pair):
            raise InputError(
                f"{corpus.description}: {name} pair {number + 1} must be two texts, each without a newline, but is "
                f"{shown(repr(pair))}; strip the line"
            )
        source, target = pair
        if number % COUNTED_EVERY == 0:
            on_progress("reading the text", number, None)
        lengths = len(source.split()), len(target.split())
        reason = _reason(*lengths, data)
        if name in EVALUATION:
            left_out["blank"] += reason == "blank"
            reason = None
        kept.append(reason is None)
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        words = words[0] + lengths[0], words[1] + lengths[1]
        if data.unique and name not in EVALUATION:
            lengths_of_kept.extend(lengths)
            digests.append(int.from_bytes(blake2b(f"{source}\n{target}".encode(), digest_size=8).digest()))
    if digests:
        first = _drop_repeated(kept, digests)
        left_out["repeated"] = len(digests) - len(first)
        source_words, target_words = np.asarray(lengths_of_kept).reshape(-1, 2)[first].sum(0).tolist()
        words = source_words, target_words
    counts = {"pairs": sum(kept)} | left_out
    if not counts["pairs"]:
        what, remedy = "with text in both languages", "give another text"
        if len(left_out) > 1:
            what, remedy = f"{what} that the cleaning keeps", "fix data.most_words and data.most_ratio"
        raise InputError(
            f"{corpus.description}: {name} must hold a pair {what}, but none of its {len(kept)} pairs has; {remedy}"
        )
    return Selection(counts, words, None if name in EVALUATION else bytes(kept))


def check_counts(counts: dict[str, dict[str, int]], data: Data, describe: str) -> None:
    """Raise an InputError where an evaluation set has not as many pairs as data.val_count or data.test_count."""
    mistakes = []
    for name, expected in (("val", data.val_count), ("test", data.test_count)):
        actual = counts[name]["pairs"]
        if expected is not None and actual != expected:
            mistakes.append(
                f"data.{name}_count = {expected:,}: must be the number of {name} pairs, but {describe} has {actual:,}; "
                f"give the whole set, or set data.{name}_count=None"
            )
    if mistakes:
        raise InputError(*mistakes)


def _is_pair(pair: Any) -> bool:
    """Whether it is what `Corpus.pairs` must yield. A task of one's own may yield anything."""
    is_two = isinstance(pair, tuple | list) and len(pair) == 2
    return is_two and all(isinstance(text, str) and "\n" not in text for text in pair)


def _reason(source: int, target: int, data: Data) -> str | None:
    """Why a pair of so many words is left out; None where it is not."""
    if not source or not target:
        return "blank"
    if data.most_words is not None and max(source, target) > data.most_words:
        return "long"
    if data.most_ratio is not None and max(source, target) > data.most_ratio * min(source, target):
        return "uneven"
    return None


def _drop_repeated(kept: bytearray, digests: array) -> np.ndarray:
    """Of kept pairs with equal digests keep only the first; return which of the kept ones stay.

    Two different pairs among n have the same digest with a probability of n² / 2⁶⁵: one in a million for 6 million.
    """
    _, first = np.unique(np.frombuffer(digests, dtype=np.uint64), return_index=True)
    stays = np.zeros(len(digests), dtype=np.uint8)
    stays[first] = 1
    flags = np.frombuffer(kept, dtype=np.uint8)
    flags[flags == 1] = stays
    return first
