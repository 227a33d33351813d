"""Byte-pair encoding (Section 5.1): one vocabulary for both languages, and nothing lost on the way.

Every text without a newline comes back as it went in: blanks, tabs, control characters, a literal "<s>", an emoji that
training never saw (it falls back to bytes). The method is that of Sennrich et al. 2016, arXiv:1508.07909.
"""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece

from transformer_pl.runtime.errors import InputError

PAD, BOS, EOS, UNK = 0, 1, 2, 3
BYTES = 256  # pieces that stand for single bytes

# sentencepiece writes a blank as ▁ and reads every ▁ as a blank. So a ▁ of the text travels as ESC and _.
_BLANK, _ESCAPE = "▁", "\x1b"
_ESCAPED = re.compile(f"{_ESCAPE}([{_ESCAPE}_])")


def train_bpe(sentences: Iterable[str], vocab_size: int, byte_fallback: bool = True) -> bytes:
    """The model, as bytes, of exactly `vocab_size` pieces: 4 marks, 256 bytes, every character seen, then the merges.

    The same sentences give the same bytes, on any number of threads. No sentence is skipped, normalised or sampled.
    Raises an InputError when the text has too many characters, or too few merges, for `vocab_size`.
    """
    model, mistakes = io.BytesIO(), []

    def written() -> Iterator[str]:
        try:
            yield from map(_escape, sentences)
        except BaseException as mistake:  # which sentencepiece would tell as its own
            mistakes.append(mistake)
            raise

    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=written(),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            byte_fallback=byte_fallback,
            character_coverage=1.0,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=True,  # the first word of a sentence shares its pieces with the same word elsewhere
            max_sentence_length=2**30,  # bytes, the most there is; the library's default skips what is longer than 4192
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNK,
            num_threads=1,
            minloglevel=3,
        )
    except RuntimeError as error:
        raise (mistakes or [_explained(error, vocab_size)])[0] from None
    return model.getvalue()


def _explained(error: RuntimeError, vocab_size: int) -> Exception:
    """The user's mistake behind an error of sentencepiece, or the error itself."""
    place = f"data.vocab_size = {vocab_size}"
    if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
        return InputError(
            f"{place}: must be at least {least[1]} for this text (4 marks, {BYTES} bytes and every character); raise it"
        )
    if greatest := re.search(r"too high .* value <= (\d+)", str(error)):
        return InputError(f"{place}: must be at most {greatest[1]}, all the merges that this text allows; lower it")
    if "sentences_.empty()" in str(error):
        return InputError("the training text must hold at least one sentence, but is empty; give another text")
    return error


def _escape(text: str) -> str:
    if _BLANK not in text and _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE, _ESCAPE * 2).replace(_BLANK, f"{_ESCAPE}_")


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: _ESCAPE if match[1] == _ESCAPE else _BLANK, text)


class Tokenizer:
    """Text to piece ids and back, from a model's bytes or the path of its file."""

    def __init__(self, model: bytes | Path):
        proto = model if isinstance(model, bytes) else Path(model).read_bytes()
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=proto)

    def __len__(self) -> int:
        return self._processor.get_piece_size()

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """The pieces of each sentence, without BOS and EOS. An empty sentence has none."""
        return self._processor.encode([_escape(sentence) for sentence in sentences])

    def decode(self, pieces: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sentence, one line each; PAD, BOS and EOS say nothing.

        Bytes that are not UTF-8, which only a model can write, become U+FFFD; a newline becomes a blank.
        """
        marks = (PAD, BOS, EOS)
        spoken = [[int(piece) for piece in sentence if piece not in marks] for sentence in pieces]
        return [_unescape(text).replace("\n", " ") for text in self._processor.decode(spoken)]

    def pieces(self) -> list[str]:
        """Every piece by its id, a blank written as ▁; merges stand in the order in which they were learned."""
        return [self._processor.id_to_piece(i) for i in range(len(self))]
