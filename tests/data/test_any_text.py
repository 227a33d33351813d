"""Random text: what can be read is prepared and comes back whole from its tokens; all else is one message."""

import gzip
import json
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from transformer_pl.config import Data
from transformer_pl.data import tokenizer
from transformer_pl.data.prepare import prepare
from transformer_pl.data.tokenizer import JointBPE
from transformer_pl.runtime.errors import InputError

ODD = ["", " ", "\t a ", "a\u2028b\x85", "\r", "\x00", "\ufeff", "<s> \x1b_", "e\u0301 😀", "a " * 5_000, "é" * 5_000]
SENTENCES = st.sampled_from(ODD) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\n▁"), max_size=20
)
PAIRS = st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=5)
FORMATS = ["text", "jsonl", "json", "translation"]


def written(pairs, form):
    """The files of a split: ending and content."""
    if form == "text":
        return {side: "".join(f"{pair[i]}\n" for pair in pairs).encode() for i, side in enumerate(("en", "de"))}
    rows = [{"en": en, "de": de} for en, de in pairs]
    rows = [{"translation": row} for row in rows] if form == "translation" else rows
    if form == "json":
        return {"json": json.dumps(rows).encode()}
    return {"jsonl": "".join(f"{json.dumps(row)}\n" for row in rows).encode()}


def prepared_or_told(pairs, form, zipped=False, spoil=lambda content: content):
    """Prepare a text whose validation set is `pairs`: its sentences, or None if it is refused."""
    with tempfile.TemporaryDirectory() as name:
        text, runs = Path(name, "text"), Path(name, "runs")
        text.mkdir()
        for split in ("train", "val", "test"):
            files = written(pairs if split == "val" else [("low lower", "tief tiefer")] * 20, form)
            for ending, content in files.items():
                content = spoil(content) if split == "val" and ending == list(files)[-1] else content
                content = gzip.compress(content) if zipped else content
                (text / f"{split}.{ending}{'.gz' * zipped}").write_bytes(content)
        try:
            prepared = prepare(Data(path=str(text), vocab_size=280), runs)
        except InputError as error:
            assert len(error.messages) == 1 and "\n" not in str(error) and "val" in str(error)
            assert not list(runs.rglob("*.tokens"))
            return None
        sides = prepared.text("val")
        for tokens, sentences in zip(prepared.split("val"), sides, strict=True):
            assert prepared.tokenizer.decode(list(tokens)) == sentences
        return list(zip(*sides, strict=True))


ANY = settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


@ANY
@given(pairs=PAIRS, form=st.sampled_from(FORMATS), zipped=st.booleans())
def test_every_sentence_comes_back(pairs, form, zipped):
    if form == "text":  # a byte order mark, and what ends a line elsewhere, are no part of a sentence
        expected = [tuple(side.removesuffix("\r") for side in pair) for pair in pairs]
        expected[0] = tuple(side.removesuffix("\r").removeprefix("\ufeff") for side in pairs[0])
    else:
        expected = pairs
    whole = [pair for pair in expected if "".join(pair).split()]  # two blank lines end a document
    assert prepared_or_told(pairs, form, zipped) == (whole or None)


@ANY
@given(pairs=PAIRS, form=st.sampled_from(FORMATS), at=st.integers(0, 500), piece=st.binary(max_size=3))
def test_broken_bytes_are_read_or_refused(pairs, form, at, piece):
    prepared_or_told(pairs, form, spoil=lambda content: content[: at % (len(content) + 1)] + piece)


WORDS = ["", "low", "lower", "▁", " ", "\t", "é", "😀", "a▁b", "<s>", "tief.", "\u00a0", "0x41"]


@ANY
@given(words=st.lists(st.sampled_from(WORDS), max_size=60), length=st.integers(1, 30))
@example(words=["low", "lower", ""], length=4)
@example(words=["low", "", "", "▁low", "tief"], length=1)
def test_a_long_line_has_the_same_tokens_in_parts(words, length):
    """Whatever stands where it is divided: several blanks, signs of sentencepiece's own."""
    bpe, line = JointBPE(), " ".join(words)
    bpe.load(bpe.train(lambda: [("low lower lowest " * 9, "tief tiefer")] * 9, 290))
    whole = bpe.encode([line, "low"], "source").rows()
    with mock.patch.object(tokenizer, "LONG", length):
        assert bpe.encode([line, "low"], "source").rows() == whole
