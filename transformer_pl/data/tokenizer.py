"""Byte-pair encoding (Section 5.1; Sennrich et al. 2016, arXiv:1508.07909): one vocabulary for both languages.

Encoding is reversible for every sentence without a newline and without ▁ (U+2581), sentencepiece's sign for a blank:
tabs, control characters, a literal "<s>". A character that the training pairs lack is encoded as bytes.
"""

import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import sentencepiece

from transformer_pl.config import BOS, EOS, PAD, UNK
from transformer_pl.data.tokens import Tokens
from transformer_pl.runtime.errors import InputError

BYTES = 256  # tokens that stand for single bytes
FIXED = 4 + BYTES  # tokens that every vocabulary holds; the characters of the sentences come on top


def train_bpe(sentences: Iterable[str], vocab_size: int) -> bytes:
    """Learn a vocabulary of exactly `vocab_size` tokens and return sentencepiece's model.

    It holds 4 special tokens, 256 bytes, every character of the sentences, then the merges. The same sentences give the
    same bytes. No sentence is normalised or sampled. Sentencepiece skips those that hold ▅ (U+2585), its own sign.
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


class Tokenizer:
    """Sentences to token ids and back, by a model of sentencepiece."""

    def __init__(self, model: bytes):
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model, num_threads=1)

    def __len__(self) -> int:
        return self._processor.get_piece_size()

    def encode(self, sentences: Sequence[str]) -> Tokens:
        """Return the token ids of sentences, without BOS and EOS. An empty sentence has none."""
        rows = self._processor.encode(list(sentences), num_threads=-1)  # all cores
        flat = np.fromiter(itertools.chain.from_iterable(rows), np.uint32)
        return Tokens.of(flat, [len(row) for row in rows])

    def decode(self, ids: Iterable[Iterable[int]]) -> list[str]:
        """Return the text of each sentence on one line. PAD, BOS and EOS are left out.

        A model may generate bytes that are not UTF-8: they become U+FFFD. A newline becomes a blank.
        """
        special = (PAD, BOS, EOS)
        texts = self._processor.decode([[int(token) for token in sentence if token not in special] for sentence in ids])
        return [text.replace("\n", " ") for text in texts]

    def vocabulary(self) -> list[str]:
        """Every token by its id, with ▁ for a blank. Merges are in the order in which they were learned."""
        return [self._processor.id_to_piece(i) for i in range(len(self))]
