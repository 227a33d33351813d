"""The bytes of UTF-8 in place of subwords: Xue et al. 2022, ByT5 (arXiv:2105.13626)."""

from collections.abc import Callable, Iterable

from transformer_pl.config import UNK
from transformer_pl.data.tokenizer import Tokenizer

FIRST = UNK + 1  # the id of byte 0


class Bytes(Tokenizer):
    """256 bytes after the 4 special tokens: `data.vocab_size` is 260. Bytes that are not UTF-8 read U+FFFD."""

    def train(self, pairs: Callable[[], Iterable[tuple[str, str]]], vocab_size: int) -> bytes:
        return b""

    def load(self, model: bytes) -> None:
        pass

    def to_ids(self, sentences: list[str], side: str) -> list[list[int]]:
        return [[FIRST + byte for byte in sentence.encode()] for sentence in sentences]

    def to_texts(self, ids: list[list[int]]) -> list[str]:
        return [bytes(number - FIRST for number in row if number >= FIRST).decode(errors="replace") for row in ids]

    def vocabulary(self) -> list[str]:
        bytes_ = [chr(byte) if 32 < byte < 127 else f"<0x{byte:02X}>" for byte in range(256)]
        return ["<pad>", "<s>", "</s>", "<unk>", *bytes_]
