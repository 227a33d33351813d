"""A synthetic English-German parallel corpus: the data of the scales `demo` and `demo-lm`, with nothing to download.

It lies in synthetic.tsv.gz. A grammar has made it, which is described and kept in tests/benchmarks/synthetic_corpus.py:
the German agrees, inflects and orders its words as German does, and the source determines the target. So a model that
has seen enough would approach 100 BLEU; the training pairs are few, and many words are rare in them, so that a trained
model stays below.
"""

import gzip
import re
from functools import cache
from itertools import islice
from pathlib import Path

VERSION = 3  # raised whenever a sentence of the file changes; enters the fingerprint of the data
SIZES = {"train": 1_200, "val": 500, "test": 500}
LARGE = SIZES | {"train": 6_000}
FILE = Path(__file__).with_name("synthetic.tsv.gz")
WORD = re.compile(r"(?<= )[^\s()]+(?=\))")  # of a tree


def sentence(tree: str) -> str:
    """The sentence of a tree, with punctuation at the word before it."""
    return re.sub(r" (?=[.,?])", "", " ".join(WORD.findall(tree)))


@cache
def _splits(large: bool) -> dict[str, list[tuple[str, str, str]]]:
    """By split, the English sentence, the German one and the English tree.

    A line of the file is a pair of the large corpus, in its order: a number, the German sentence, the tree. Those of
    the small corpus have a number, which is their place in it.
    """
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    if not large:
        lines = sorted((line for line in lines if line[0]), key=lambda line: int(line[0]))
    remaining = iter([(sentence(tree), german, tree) for _, german, tree in lines])
    return {split: list(islice(remaining, size)) for split, size in (LARGE if large else SIZES).items()}


def pairs(split: str, large: bool = False) -> list[tuple[str, str]]:
    """The (English, German) pairs of `train`, `val` or `test`.

    large: of the corpus with LARGE pairs, in place of that with SIZES.

    No sentence occurs twice, on either side, within a split or in two.
    """
    return [(english, german) for english, german, _ in _splits(large)[split]]


def trees(split: str) -> list[str]:
    """The trees of the English sentences of a split, in their order."""
    return [tree for _, _, tree in _splits(False)[split]]
