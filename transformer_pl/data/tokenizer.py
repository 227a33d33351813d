"""Tokenizers, which turn sentences into token ids and back: their interface (`data.tokenizer`), and the paper's.

The paper's is byte-pair encoding (Section 5.1; Sennrich et al. 2016, arXiv:1508.07909), with one vocabulary for both
languages. Encoding is reversible for every sentence without a newline and without ▁ (U+2581), sentencepiece's sign for
a blank. So tabs, control characters and a literal "<s>" come back as they were. A character that the training pairs
lack is encoded as bytes.
"""

import io
import itertools
import re
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import index
from typing import Any

import numpy as np
import sentencepiece

from transformer_pl.config import BOS, EOS, PAD, UNK, Component, Data, custom_components
from transformer_pl.config.component_sources import Code, source_digests
from transformer_pl.config.components import build_derived
from transformer_pl.config.option_files import file_contents
from transformer_pl.data.tokens import Tokens
from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.signals import component_code

BYTES = 256  # tokens that stand for single bytes
BLANK = "▁"  # sentencepiece's sign for a blank
LONG = 2**14  # characters of a sentence that is encoded in parts
FIXED = 4 + BYTES  # tokens that every vocabulary holds; the characters of the sentences come on top


class Tokenizer(ABC):
    """Sentences to token ids and back. It is built as `Class(**options)`, and used after `load`.

    Every vocabulary begins with PAD, BOS, EOS and UNK. The model sees ids alone; scores are of text.
    """

    @abstractmethod
    def train(self, pairs: Callable[[], Iterable[tuple[str, str]]], vocab_size: int) -> bytes:
        """Learn a vocabulary of `vocab_size` tokens, or of as many as there are, and return what `load` needs.

        pairs: at each call the training pairs, source and target, from the beginning.
        """

    @abstractmethod
    def load(self, model: bytes) -> None:
        """Take what `train` has returned."""

    @abstractmethod
    def to_ids(self, sentences: list[str], side: str) -> list[list[int]]:
        """The ids of each sentence, without BOS and EOS. side: `source` or `target`."""

    @abstractmethod
    def to_texts(self, ids: list[list[int]]) -> list[str]:
        """The text of each sentence. Among its ids are no PAD, BOS and EOS."""

    @abstractmethod
    def vocabulary(self) -> list[str]:
        """Every token by its id, as people read it."""

    def content(self) -> str:
        """A digest of what the tokens depend on beside code, options and training pairs, such as a file.

        Raises an InputError where such a file is missing.
        """
        return ""

    def __len__(self) -> int:
        return len(self.vocabulary())

    def encode(self, sentences: Sequence[str], side: str) -> Tokens:
        """Return the token ids of sentences, without BOS and EOS. An empty sentence has none.

        Raises an InputError where `to_ids` gives something else.
        """
        rows = list(self.to_ids(list(sentences), side))
        try:
            flat = np.fromiter(map(index, itertools.chain.from_iterable(rows)), np.int64)
        except TypeError as error:
            raise self.wrong("to_ids", f"give whole numbers, but: {error}") from None
        if flat.size and not UNK <= flat.min() <= flat.max() < len(self):
            raise self.wrong("to_ids", f"give {UNK} to {len(self) - 1}, not {flat.min()} to {flat.max()}")
        if len(rows) != len(sentences):
            raise self.wrong("to_ids", f"give the ids of {len(sentences)} sentences, but gives those of {len(rows)}")
        return Tokens.of(flat.astype(np.uint32), [len(row) for row in rows])

    def decode(self, ids: Iterable[Iterable[int]]) -> list[str]:
        """Return the text of each sentence on one line. PAD, BOS and EOS are left out; a newline becomes a blank.

        Raises an InputError where `to_texts` gives something else.
        """
        special = (PAD, BOS, EOS)
        rows = [[int(token) for token in sentence if token not in special] for sentence in ids]
        texts = list(self.to_texts(rows))
        if len(texts) != len(rows) or not all(isinstance(text, str) for text in texts):
            found = shown(repr(texts))
            raise self.wrong("to_texts", f"give the text of each of {len(rows)} sentences, but gives {found}")
        return [text.replace("\n", " ") for text in texts]

    def wrong(self, method: str, law: str) -> InputError:
        """The error for a method that breaks a law of tokenizers. law: what the method must do."""
        return InputError(
            f"data.tokenizer = {type(self).__module__}.{type(self).__qualname__}: {method} must {law}; fix it"
        )


def build_tokenizer(component: Component) -> Tokenizer:
    """The tokenizer of a component, before `train` or `load`. Raises an InputError for a class that is none."""
    return build_derived("data.tokenizer", component, Tokenizer)


def tokenizer_settings(data: Data) -> dict[str, Any]:
    """How a tokenizer differs from the paper's: its path, options, and digests of its code, content and files.

    Empty for the paper's tokenizer. Raises an InputError for a class that is no tokenizer.
    """
    if "tokenizer" not in custom_components(data):
        return {}
    digests = {"code": _code(data), "content": build_tokenizer(data.tokenizer).content()}
    return {"tokenizer": data.tokenizer.model_dump() | digests | {"files": file_contents(data.tokenizer, 0)}}


def _code(data: Data) -> Code | None:
    return source_digests({"tokenizer": data.tokenizer}).get("tokenizer")


def tokenizer_digest(data: Data) -> dict[str, Code]:
    """The code and the content of a tokenizer. Empty for a tokenizer of the core that has no content."""
    settings = tokenizer_settings(data).get("tokenizer", {})
    code, content = settings.get("code"), settings.get("content")
    if content:
        code = {"content": content} | (code if isinstance(code, dict) else {})
    return {"tokenizer": code} if code else {}


def load_tokenizer(settings: dict[str, Any], model: bytes) -> Tokenizer:
    """The tokenizer of a prepared dataset. settings: those that it was prepared with (see prepared.py)."""
    data = Data()
    if custom := settings.get("tokenizer"):
        data = Data(tokenizer=Component(path=custom["path"], options=custom["options"]))
        if _code(data) != custom["code"]:
            remedy = "put the code back that the trial keeps under sources, or train the trial again"
            raise InputError(f"data.tokenizer = {custom['path']}: has changed since the dataset was prepared; {remedy}")
    tokenizer = build_tokenizer(data.tokenizer)
    with component_code():
        tokenizer.load(model)
    return tokenizer


def check_adds_nothing(tokenizer: Tokenizer, sentences: Sequence[str], side: str) -> None:
    """Raise an InputError where sentences have more text one by one than as one, or tokens of each that nobody reads.

    Such tokens, which one long sentence has only once, are padding, or a mark at the end.
    """
    try:
        rows, joined = (tokenizer.encode(texts, side).rows() for texts in (sentences, [" ".join(sentences)]))
        texts, as_one = tokenizer.decode(rows), "".join(tokenizer.decode(joined))
    except Exception:  # joined, they may be no sentence of this task
        return
    added, sentence = max(zip(texts, sentences, strict=True), key=lambda pair: len(pair[0]) - len(pair[1]))
    if len(added) > len(sentence) and _letters("".join(texts)) - _letters(as_one):  # a cut one is no longer
        raise tokenizer.wrong("to_ids", f"add nothing, such as padding, but {sentence!r} comes back as {added!r}")
    for token, more in (Counter(itertools.chain(*rows)) - Counter(joined[0])).items():
        without = ([one for one in row if one != token] for row in rows)
        if more >= len(rows) - 1 and tokenizer.decode(without) == texts:
            rule = f"add nothing, such as padding, but {sentences[0]!r} has the token {tokenizer.vocabulary()[token]!r}"
            raise tokenizer.wrong("to_ids", f"{rule}, which is no part of its text")


def _letters(text: str) -> Counter[str]:
    return Counter("".join(text.casefold().split()))


def train_bpe(sentences: Iterable[str], vocab_size: int) -> bytes:
    """Learn a vocabulary of exactly `vocab_size` tokens and return sentencepiece's model.

    It holds 4 special tokens, 256 bytes, every character of the sentences, then the merges. The same sentences give the
    same bytes. No sentence is normalised or sampled. Sentencepiece skips sentences with ▅ (U+2585), a sign of its own,
    and the names of its tokens, such as <s> and <0x41>. Characters that occur nowhere else are encoded as bytes.
    Raises an InputError if the sentences have too many characters for `vocab_size`, or too few possible merges.
    """
    model, errors = io.BytesIO(), list[BaseException]()

    def read() -> Iterator[str]:
        try:
            yield from sentences
        except BaseException as error:  # sentencepiece would raise it as an error of its own
            errors.append(error)
            raise

    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=read(),
            model_writer=model,
            model_type="bpe",
            vocab_size=max(vocab_size, FIXED),  # with fewer it names no bound
            byte_fallback=True,
            character_coverage=1.0,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=True,  # the first word of a sentence has the same tokens as elsewhere
            max_sentence_length=2**30,  # bytes; the default skips sentences of more than 4192
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNK,
            num_threads=1,
            minloglevel=3,
        )
    except RuntimeError as error:
        if errors:
            raise errors[0] from None
        place = f"data.vocab_size = {vocab_size}"
        if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            tokens = f"{FIXED - BYTES} special tokens, {BYTES} bytes and every character"
            raise InputError(f"{place}: must be at least {least[1]} for this dataset ({tokens}); raise it") from None
        if most := re.search(r"too high .* value <= (\d+)", str(error)):
            raise InputError(f"{place}: must be at most {most[1]}, or no merges are left; lower it") from None
        raise
    return model.getvalue()


class JointBPE(Tokenizer):
    """Byte-pair encoding with one vocabulary for both languages, by a model of sentencepiece."""

    def train(self, pairs: Callable[[], Iterable[tuple[str, str]]], vocab_size: int) -> bytes:
        return train_bpe(itertools.chain.from_iterable(pairs()), vocab_size)

    def load(self, model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model, num_threads=1)
        self._is_of_words = all(BLANK not in piece[1:] for piece in self.vocabulary())  # no token is of two words

    def __len__(self) -> int:
        return self._processor.get_piece_size()

    def to_ids(self, sentences: list[str], side: str) -> list[Any]:
        short = [sentence if len(sentence) <= LONG else "" for sentence in sentences]
        ids = self._processor.encode(short, num_threads=-1)  # all cores
        for i in (i for i, sentence in enumerate(sentences) if len(sentence) > LONG):
            ids[i] = array("i", itertools.chain.from_iterable(map(self._processor.encode, self._parts(sentences[i]))))
        return ids

    def _parts(self, sentence: str) -> Iterator[str]:
        """A long sentence in parts that have the same tokens: each word begins with a blank, as each sentence does.

        As a whole, a line of 100 MB would take 5 GB, and more time than all of its parts.
        """
        start, last = 0, len(sentence) - 1  # a blank at the end begins no word
        while self._is_of_words and (blank := sentence.find(" ", start + LONG, last)) >= 0:
            yield sentence[start:blank]
            start = blank + 1
        yield sentence[start:]

    def to_texts(self, ids: list[list[int]]) -> list[str]:
        """A model may generate bytes that are not UTF-8: they become U+FFFD."""
        return self._processor.decode(ids)

    def vocabulary(self) -> list[str]:
        """Every token by its id, with ▁ for a blank. Merges are in the order in which they were learned."""
        return [self._processor.id_to_piece(i) for i in range(len(self))]
