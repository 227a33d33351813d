"""Which splits and pairs of a dataset are used. Of the training pairs the keys may leave some out.

The paper describes no cleaning, so none is on by default but that of pairs with an empty sentence.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from hashlib import blake2b

from transformer_pl.config import Data
from transformer_pl.runtime.errors import InputError, collect_errors, shown
from transformer_pl.task import EVALUATION, SPLITS, Corpus, Pair

COUNTED_EVERY = 10_000  # pairs between two reports of progress
BEGINNINGS = {"train": ("train",), "val": ("val", "dev"), "test": ("test",)}

# `pairs` that are used, and those that are left out by reason: `blank`, `long`, ...; of an evaluation set also LEAKS
Counts = dict[str, int]
LEAKS = {"seen": "also training pairs", "equal": "the same text on both sides"}
OnProgress = Callable[[str, int, int | None], None]  # what is being done, how far, and how far in all, if known


def used_pairs(name: str, corpus: Corpus, data: Data, counts: Counts | None = None) -> Iterator[Pair]:
    """The pairs of a split that are used, in their order. Raises an InputError for the first mistake in it.

    counts: receives every pair that is read.
    """
    counts, seen = {} if counts is None else counts, set[bytes]()
    is_train = name == "train"
    for number, pair in enumerate(itertools.islice(corpus.pairs(name), data.train_pairs if is_train else None), 1):
        if any("\n" in sentence for sentence in pair):
            raise InputError(f"{name}, pair {number}: must have no newline, but is {shown(pair)}; put a blank for it")
        reason = _reason(pair, data, seen) if is_train else None
        counts[reason or "pairs"] = counts.get(reason or "pairs", 0) + 1
        if not reason:
            yield pair


def _reason(pair: Pair, data: Data, seen: set[bytes]) -> str | None:
    """The first reason why a training pair is left out; None where it is used. seen: digests of those before it."""
    shorter, longer = sorted(len(sentence.split()) for sentence in pair)
    if not shorter:
        return "blank"
    if data.max_words is not None and longer > data.max_words:
        return "long"
    if data.max_length_ratio is not None and longer > data.max_length_ratio * shorter:
        return "uneven"
    if data.deduplicate:
        before = len(seen)
        seen.add(blake2b("\n".join(pair).encode(), digest_size=8).digest())
        if len(seen) == before:
            return "repeated"
    return None


def count_pairs(corpus: Corpus, data: Data, on_progress: OnProgress) -> dict[str, Counts]:
    """Read a whole dataset and count the pairs of each split. Raises an InputError for a mistake in it."""
    every: dict[str, Counts] = {name: {"pairs": 0} for name in SPLITS}
    unseen = {name: Counter[Pair]() for name in EVALUATION}  # which the training pairs, as far as read, do not hold
    for name in (*EVALUATION, "train"):
        counts = every[name]
        for number, pair in enumerate(used_pairs(name, corpus, data, counts)):
            if number % COUNTED_EVERY == 0:
                on_progress("reading the dataset", number, None)
            if name == "train":
                for pairs in unseen.values():
                    pairs.pop(pair, None)
            else:
                unseen[name][pair] += 1
                counts["equal"] = counts.get("equal", 0) + (pair[0] == pair[1])
        read = sum(counts.values())
        if name == "train" and data.train_pairs and read < data.train_pairs:
            raise InputError(f"data.train_pairs = {data.train_pairs:,}: must be at most {read:,}, all that there are")
        if not counts["pairs"]:
            rule = f"{name} must hold a pair with text that data.max_words and data.max_length_ratio allow"
            raise InputError(f"{corpus.description}: {rule}, but none of its {read} is one; change them")
    for name, pairs in unseen.items():
        every[name]["seen"] = every[name]["pairs"] - pairs.total()
    return every


def leaks(counts: dict[str, Counts]) -> list[str]:
    """What the counts say of evaluation pairs that make a score look too good."""
    found = [(counts[name].get(leak, 0), name, what) for name in EVALUATION for leak, what in LEAKS.items()]
    return [f"{n:,} of the {counts[name]['pairs']:,} {name} pairs are {what}" for n, name, what in found if n]


def choose_splits(names: Collection[str], data: Data, place: str, hint: str = "") -> dict[str, str]:
    """Return the name of each split: the name in `data`, or else the only one with the usual beginning.

    hint: what an error message adds about names.
    """

    def choose(role: str) -> str:
        wanted = getattr(data, role)
        candidates = [name for name in names if (name == wanted if wanted else name.startswith(BEGINNINGS[role]))]
        if len(candidates) == 1:
            return candidates[0]
        rule = f"named {wanted}" if wanted else f"that begins with {' or '.join(BEGINNINGS[role])}"
        holds = shown(", ".join(candidates or names) or "nothing")
        raise InputError(f"{place}: must hold one split {rule}, but holds {holds}; name it with data.{role}=NAME{hint}")

    return collect_errors(choose, SPLITS)
