"""What a text holds, before it is prepared: its pairs, the length of its sentences, the vocabularies that it allows."""

import itertools
from typing import NamedTuple

from transformer_pl.config import Data
from transformer_pl.data.corpus import SPLITS, Corpus
from transformer_pl.data.selection import OnProgress, check_counts, no_progress, select
from transformer_pl.data.tokenizer import MOST_PAIRS, vocabulary_bounds


class Survey(NamedTuple):
    """A text that was read once, without a tokenizer."""

    splits: dict[str, dict[str, int]]  # by split: `pairs` that are used, and those that are left out by reason
    words: tuple[float, float]  # mean number of words of a training sentence: source, target
    vocabulary: tuple[int, int] | None  # the least and the greatest vocab_size; None for a text of over MOST_PAIRS


def survey(corpus: Corpus, data: Data, on_progress: OnProgress = no_progress) -> Survey:
    """Read all of a text. Raises an InputError for every mistake in it."""
    selections = {name: select(name, corpus, data, on_progress) for name in SPLITS}
    counts = {name: selection.counts for name, selection in selections.items()}
    check_counts(counts, data, corpus.description)
    train = selections["train"]
    source, target = (words / train.counts["pairs"] for words in train.words)
    vocabulary = None
    if train.counts["pairs"] <= MOST_PAIRS:
        on_progress("finding the bounds of the vocabulary", 0, None)
        vocabulary = vocabulary_bounds(list(itertools.chain.from_iterable(train.used(corpus.pairs("train")))))
    return Survey(counts, (source, target), vocabulary)
