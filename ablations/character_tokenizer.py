"""Characters in place of subwords: Lee et al. 2017 (arXiv:1610.03017). Their encoder also shortens the sequence."""

from collections import Counter
from collections.abc import Callable, Iterable

from transformer_pl.config import UNK
from transformer_pl.data.tokenizer import Tokenizer


class Characters(Tokenizer):
    """The `data.vocab_size` - 4 most frequent characters of both languages. All others are UNK, which reads U+FFFD."""

    def train(self, pairs: Callable[[], Iterable[tuple[str, str]]], vocab_size: int) -> bytes:
        counts = Counter(character for pair in pairs() for sentence in pair for character in sentence)
        frequent = sorted(counts, key=lambda character: (-counts[character], character))
        return "".join(frequent[: max(0, vocab_size - UNK - 1)]).encode()

    def load(self, model: bytes) -> None:
        self.characters = model.decode()
        self.ids = {character: number for number, character in enumerate(self.characters, UNK + 1)}

    def to_ids(self, sentences: list[str], side: str) -> list[list[int]]:
        return [[self.ids.get(character, UNK) for character in sentence] for sentence in sentences]

    def to_texts(self, ids: list[list[int]]) -> list[str]:
        texts = ["", "", "", "\ufffd", *self.characters]
        return ["".join(texts[number] for number in sentence) for sentence in ids]

    def vocabulary(self) -> list[str]:
        return ["<pad>", "<s>", "</s>", "<unk>", *self.characters]
