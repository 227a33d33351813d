"""A text of a few pairs, which the tests of folders, tables and the hub read."""

import pytest

from transformer_pl.config import Data
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import SPLITS, Corpus, open_corpus

PAIRS = {
    "train": [("a cat", "eine Katze"), ("a dog", "ein Hund"), ("", "leer")],
    "val": [("two cats", "zwei Katzen")],
    "test": [("two dogs", "zwei Hunde"), ("three", "drei")],
}


def read(corpus: Corpus) -> dict[str, list]:
    return {split: list(corpus.pairs(split)) for split in SPLITS}


def opened(folder, **changes) -> Corpus:
    return open_corpus(Data(path=folder and str(folder), **changes))


def mistake(folder, **changes) -> str:
    """What a user is told who trains on this folder: one line."""
    with pytest.raises(InputError) as error:
        read(opened(folder, **changes))
    assert "\n" not in str(error.value)
    return str(error.value)
