"""The synthetic corpus: a grammar has written it, it is pinned, no sentence occurs twice, and its orthography."""

import hashlib
import re

import grammar

from transformer_pl.data.files import SYNTHETIC, SYNTHETIC_VERSION

EVERY = [pair for split in grammar.SIZES for pair in grammar.pairs(split)]
GERMAN = [german for _, german in EVERY]
CONJUNCTION = r"(?:weil|wenn|als|obwohl|bevor|während|dass)"


def test_the_files_are_what_the_grammar_writes():
    assert {path.name: path.read_text(encoding="utf-8") for path in SYNTHETIC.iterdir()} == grammar.texts()


def test_the_corpus_is_the_same_everywhere():
    """Results at scale demo are comparable as long as no sentence changes. Another text is another version."""
    digest = hashlib.sha256(repr([grammar.pairs(split) for split in grammar.SIZES]).encode()).hexdigest()
    assert (SYNTHETIC_VERSION, digest[:16]) == (3, "5f45445fd6c25eb7")
    assert {split: len(grammar.pairs(split)) for split in grammar.SIZES} == grammar.SIZES


def test_no_sentence_occurs_twice_on_either_side():
    for side in zip(*EVERY, strict=True):
        assert len(set(side)) == len(EVERY)


def test_orthography():
    for pair in EVERY:
        for sentence in pair:
            assert re.fullmatch(r"[A-ZÄÖÜ][A-Za-zäöüÄÖÜß, -]*[.?]", sentence), sentence
            assert "  " not in sentence and " ," not in sentence
    assert all(english[-1] == german[-1] for english, german in EVERY)
    assert not any(re.search(rf"[^,] {CONJUNCTION} ", german) for german in GERMAN)
