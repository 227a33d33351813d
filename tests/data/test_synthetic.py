"""The synthetic corpus: it is pinned, is what its grammar makes, no sentence occurs twice, and its orthography."""

import gzip
import hashlib
import re

import synthetic_corpus

from transformer_pl.data import synthetic

EVERY = [pair for split in synthetic.SIZES for pair in synthetic.pairs(split)]
GERMAN = [german for _, german in EVERY]
CONJUNCTION = r"(?:weil|wenn|als|obwohl|bevor|während|dass)"


def test_the_corpus_is_the_same_everywhere():
    """Results at scale demo are comparable as long as no sentence changes. Another text is another VERSION."""
    digest = hashlib.sha256(repr([synthetic.pairs(split) for split in synthetic.SIZES]).encode()).hexdigest()
    assert (synthetic.VERSION, digest[:16]) == (3, "5f45445fd6c25eb7")
    assert {split: len(synthetic.pairs(split)) for split in synthetic.SIZES} == synthetic.SIZES


def test_the_file_is_what_the_grammar_makes():
    assert gzip.decompress(synthetic.FILE.read_bytes()) == synthetic_corpus.corpus()


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
