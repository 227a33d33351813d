"""What a text holds, before it is prepared: its pairs, the length of its sentences, the vocabularies that it allows."""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from transformer_pl.data.sources import SPLITS, Corpus, Pair
from transformer_pl.data.tokenizer import vocabulary_bounds
from transformer_pl.runtime.errors import InputError

EVALUATION = ("val", "test")  # the splits that keep every pair, and whose text is stored beside their tokens
MOST_PAIRS = 100_000  # in a larger training text, the bounds of the vocabulary take long to find and allow any usual
COUNTED_EVERY = 10_000  # pairs between two reports of progress

OnProgress = Callable[[str, int, int | None], None]  # what is being done, how far, and how far in all, if known


def no_progress(stage: str, done: int, total: int | None) -> None:
    """Show no progress."""


class Survey(NamedTuple):
    """A text that was read once, without a tokenizer."""

    pairs: dict[str, int]  # by split: those that are used
    blank: int  # training pairs with an empty sentence, which are left out
    words: tuple[float, float]  # mean number of words of a training sentence: source, target
    vocabulary: tuple[int, int] | None  # the least and the greatest vocab_size; None for a text of over MOST_PAIRS


def survey(corpus: Corpus, on_progress: OnProgress = no_progress) -> Survey:
    """Read all of a text. Raises an InputError for every mistake in it."""
    counts = {name: count_pairs(name, corpus, on_progress) for name in SPLITS}
    pairs = {name: count["pairs"] for name, count in counts.items()}
    words = [sum(len(sentence.split()) for sentence in side) for side in zip(*used_pairs("train", corpus), strict=True)]
    source, target = (count / pairs["train"] for count in words)
    vocabulary = None
    if pairs["train"] <= MOST_PAIRS:
        on_progress("finding the bounds of the vocabulary", 0, None)
        vocabulary = vocabulary_bounds(list(itertools.chain.from_iterable(used_pairs("train", corpus))))
    return Survey(pairs, counts["train"]["blank"], (source, target), vocabulary)


def used_pairs(name: str, corpus: Corpus) -> Iterator[Pair]:
    """Training leaves out pairs with an empty sentence. An evaluation set keeps all pairs."""
    return (pair for pair in corpus.pairs(name) if name in EVALUATION or _has_text(pair))


def count_pairs(name: str, corpus: Corpus, on_progress: OnProgress = no_progress) -> dict[str, int]:
    """The number of `pairs` that a split uses, and of `blank` ones. Raises an InputError where it has no text."""
    pairs = blank = 0
    for pair in corpus.pairs(name):
        if pairs % COUNTED_EVERY == 0:
            on_progress("reading the text", pairs, None)
        pairs += 1
        blank += not _has_text(pair)
    used = pairs if name in EVALUATION else pairs - blank
    if not used:
        raise InputError(
            f"{corpus.describe}: {name} must hold a pair with text in both languages, but none of its {pairs} pairs "
            "has; give another text"
        )
    return {"pairs": used, "blank": blank}


def _has_text(pair: Pair) -> bool:
    return bool(pair[0].strip() and pair[1].strip())
