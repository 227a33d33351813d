"""A vocabulary for each language in place of a joint one: Sennrich et al. 2016 (arXiv:1508.07909), Section 3.2."""

from collections.abc import Callable, Iterable
from itertools import groupby

from transformer_pl.config import UNK
from transformer_pl.data.tokenizer import JointBPE, Tokenizer, train_bpe
from transformer_pl.runtime.errors import InputError

SPECIAL = UNK + 1  # tokens that both have in common
LENGTH = 8  # bytes of the number that stands before the two models


class SeparateBPE(Tokenizer):
    """Byte-pair encoding of each language by itself, in half of the ids each: first the source's, then the target's.

    `data.vocab_size` is that of both together.
    """

    def train(self, pairs: Callable[[], Iterable[tuple[str, str]]], vocab_size: int) -> bytes:
        total, models = vocab_size + SPECIAL, list[bytes]()
        for side, (name, size) in enumerate((("source", total - total // 2), ("target", total // 2))):
            try:
                models.append(train_bpe((pair[side] for pair in pairs()), size))
            except InputError as error:
                place = f"data.vocab_size = {vocab_size}: gives {size} tokens to the {name}"
                raise InputError(*(f"{place}; {message}" for message in error.messages)) from None
        return len(models[0]).to_bytes(LENGTH, "big") + b"".join(models)

    def load(self, model: bytes) -> None:
        end = LENGTH + int.from_bytes(model[:LENGTH], "big")
        self.source, self.target = JointBPE(), JointBPE()
        self.source.load(model[LENGTH:end])
        self.target.load(model[end:])
        self.shift = len(self.source) - SPECIAL  # from the target's own ids to those of the model

    def to_ids(self, sentences: list[str], side: str) -> list[list[int]]:
        if side == "source":
            return self.source.to_ids(sentences, side)
        rows = self.target.to_ids(sentences, side)
        return [[number + self.shift if number >= SPECIAL else number for number in row] for row in rows]

    def to_texts(self, ids: list[list[int]]) -> list[str]:
        """A model may mix the languages: the runs in one of them are read one after the other."""
        texts = ("".join(self._text(*run) for run in groupby(row, self._is_targets)) for row in ids)
        return [text.replace("  ", " ").removeprefix(" ") for text in texts]

    def _is_targets(self, number: int) -> bool:
        return number >= len(self.source)

    def _text(self, is_target: bool, run: Iterable[int]) -> str:
        """The text of a run, with the blank before its first word, which a tokenizer leaves out."""
        own = [number - self.shift if is_target else number for number in run]
        tokenizer = self.target if is_target else self.source
        blank = " " if tokenizer.vocabulary()[own[0]].startswith("\u2581") else ""
        return blank + tokenizer.to_texts([own])[0]

    def vocabulary(self) -> list[str]:
        return self.source.vocabulary() + self.target.vocabulary()[SPECIAL:]
