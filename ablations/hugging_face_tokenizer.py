"""A vocabulary that a file of Hugging Face's `tokenizers` holds (github.com/huggingface/tokenizers): `tokenizer.json`.

Needs `pip install tokenizers`.
"""

import hashlib
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from transformer_pl.config import UNK
from transformer_pl.data.tokenizer import Tokenizer
from transformer_pl.runtime.errors import InputError

FIRST = UNK + 1  # the id of the file's token 0: the file's own special tokens stay unused


class HuggingFaceTokenizer(Tokenizer):
    """The file's tokens after the 4 special ones. `data.vocab_size` is 4 more than the file's."""

    def __init__(self, file: Path):
        self.file = file

    def content(self) -> str:
        if not find_spec("tokenizers"):
            raise InputError("data.tokenizer: needs the package tokenizers, which is missing; pip install tokenizers")
        return hashlib.sha256(self._read()).hexdigest()

    def train(self, pairs: Callable[[], Iterable[tuple[str, str]]], vocab_size: int) -> bytes:
        """What the file holds: nothing is learned."""
        return self._read()

    def _read(self) -> bytes:
        try:
            return self.file.expanduser().read_bytes()
        except OSError as error:
            place = f"data.tokenizer.file = {self.file}"
            raise InputError(f"{place}: must be a tokenizer.json, but: {error.strerror}; give its path") from None

    def load(self, model: bytes) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise InputError(f"data.tokenizer: needs the package tokenizers: {error}; pip install tokenizers") from None
        try:
            self.own = tokenizers.Tokenizer.from_str(model.decode())
        except Exception as error:  # the library raises no other kind
            raise InputError(f"data.tokenizer.file = {self.file}: must be a tokenizer.json, but: {error}") from None

    def to_ids(self, sentences: list[str], side: str) -> list[list[int]]:
        encoded = self.own.encode_batch(sentences, add_special_tokens=False)
        return [[FIRST + number for number in one.ids] for one in encoded]

    def to_texts(self, ids: list[list[int]]) -> list[str]:
        return self.own.decode_batch([[number - FIRST for number in row if number >= FIRST] for row in ids])

    def vocabulary(self) -> list[str]:
        names = {number: name for name, number in self.own.get_vocab().items()}
        return ["<pad>", "<s>", "</s>", "<unk>", *(names.get(number, "") for number in range(max(names) + 1))]
