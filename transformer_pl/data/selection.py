"""Which training pairs are used: those with text in both languages that the keys of cleaning do not leave out.

The paper describes no cleaning, so none is on by default. An evaluation set keeps all of its pairs.
"""

import itertools
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from transformer_pl.config import Data
from transformer_pl.data.corpus import EVALUATION, SPLITS, Corpus, Pair
from transformer_pl.runtime.errors import InputError, shown

COUNTED_EVERY = 10_000  # pairs between two reports of progress

OnProgress = Callable[[str, int, int | None], None]  # what is being done, how far, and how far in all, if known


def no_progress(stage: str, done: int, total: int | None) -> None:
    """Show no progress."""


class Selection(NamedTuple):
    """What a split holds, and which of its pairs are used."""

    counts: dict[str, int]  # `pairs` that are used, and those that are left out by reason: `blank`, `long`, ...
    kept: bytearray  # for each pair a 1 where it is used

    def used(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        """Those that are used, of all pairs of the split in their order."""
        return itertools.compress(pairs, self.kept)


def select(name: str, corpus: Corpus, data: Data, on_progress: OnProgress = no_progress) -> Selection:
    """Read a split once and decide on each of its pairs. Raises an InputError for the first mistake in it.

    A pair that is left out counts for the first reason that holds: `blank` (an empty sentence), `long` (over
    data.most_words), `uneven` (over data.most_ratio), `repeated` (data.unique).
    """
    kept, left_out, seen = bytearray(), {"blank": 0}, set[bytes]()
    keeps_all = name in EVALUATION
    for number, pair in enumerate(corpus.pairs(name)):
        if number % COUNTED_EVERY == 0:
            on_progress("reading the text", number, None)
        if any("\n" in sentence for sentence in pair):
            raise InputError(
                f"{name}, pair {number + 1}: must have no newline, but is {shown(pair)}; put a blank for it"
            )
        reason = _reason(len(pair[0].split()), len(pair[1].split()), data)
        if keeps_all and reason != "blank":
            reason = None
        if data.unique and not keeps_all and not reason:
            digest = blake2b("\n".join(pair).encode(), digest_size=8).digest()
            reason = "repeated" if digest in seen else None
            seen.add(digest)
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
        kept.append(keeps_all or not reason)
    counts = {"pairs": sum(kept)} | left_out
    if name == "train" and data.train_pairs and len(kept) < data.train_pairs:
        raise InputError(
            f"data.train_pairs = {data.train_pairs:,}: must be at most the training pairs of the text, which has "
            f"{len(kept):,}; lower it, or leave it out for all"
        )
    if not counts["pairs"]:
        raise InputError(
            f"{corpus.description}: {name} must hold a pair with text in both languages, but none of its {len(kept)} "
            f"pairs is used; give another text{', or fix data.most_words and data.most_ratio' * (len(left_out) > 1)}"
        )
    return Selection(counts, kept)


def select_all(corpus: Corpus, data: Data, on_progress: OnProgress = no_progress) -> dict[str, Selection]:
    """Read all of a text. Raises an InputError for a mistake in it."""
    selections = {name: select(name, corpus, data, on_progress) for name in SPLITS}
    check_counts({name: selection.counts for name, selection in selections.items()}, data, corpus.description)
    return selections


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


def _reason(source: int, target: int, data: Data) -> str | None:
    """Why a pair of so many words is left out; None where it is not."""
    if not source or not target:
        return "blank"
    if data.most_words is not None and max(source, target) > data.most_words:
        return "long"
    if data.most_ratio is not None and max(source, target) > data.most_ratio * min(source, target):
        return "uneven"
    return None
