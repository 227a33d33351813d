"""A prepared text, as a folder of token arrays has it.

    runs/data/<id>/  tokenizer.model  meta.json
                     {train,val,test}.{source,target}.npy and .offsets.npy  {val,test}.{source,target}.txt

meta.json has the sha256 of every other file. A damaged file is noticed when it is opened.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, PositiveInt

from transformer_pl.data.corpus import SPLITS
from transformer_pl.data.encode import SIDES
from transformer_pl.data.selection import EVALUATION
from transformer_pl.data.tokenizer import Tokenizer
from transformer_pl.data.tokens import Split, Tokens
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.files import check_digest, load_json


class _Counts(BaseModel, strict=True):
    pairs: PositiveInt
    source_pieces: int
    target_pieces: int


class _Splits(BaseModel, strict=True):
    train: _Counts
    val: _Counts
    test: _Counts


class _Settings(BaseModel, strict=True):
    vocab_size: int


class _Meta(BaseModel, strict=True):
    corpus: str
    settings: _Settings
    splits: _Splits
    digests: dict[str, str] = {}  # sha256 by file name; what an older version prepared has none


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus on disk. Arrays are mapped, not held in memory; a damaged file raises an InputError.

    Each file is checked against its digest when it is first opened, which takes about a second for a GB.
    """

    folder: Path
    _checked: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The content of meta.json: `fingerprint`, `corpus` (a description), `settings`, `digests` and `splits`.

        Each split has `pairs`, `source_pieces`, `target_pieces` (tokens), and the counts of `Selection`.
        """
        with self._reading("meta.json") as path:
            return load_json(path, _Meta)

    def is_counted(self) -> bool:
        """Return whether meta.json can be read. Prints a warning if it is damaged."""
        if not (self.folder / "meta.json").exists():
            return False
        try:
            return bool(self.meta)
        except InputError as error:
            warn(str(error))
            return False

    def damage(self) -> str | None:
        """Return an error message for the first file that is missing or damaged, or None."""
        try:
            _ = self.tokenizer
            for name in SPLITS:
                self.split(name)
            for name in EVALUATION:
                self.text(name)
        except InputError as error:
            return str(error)
        return None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        with self._opening("tokenizer.model") as path:
            tokenizer = Tokenizer(path)
            _check_count(len(tokenizer), self.meta["settings"]["vocab_size"], "tokens")
        return tokenizer

    def mean_length(self, name: str, side: str) -> float:
        """The mean of `lengths_with_special` over a split. side: `source` or `target`."""
        counts = self.meta["splits"][name]
        return counts[f"{side}_pieces"] / counts["pairs"] + 1

    def split(self, name: str) -> Split:
        return Split(*(self._tokens(name, side) for side in SIDES))

    def text(self, name: str) -> tuple[list[str], list[str]]:
        """The raw sentences of `val` or `test` in the order of the arrays: sources and targets."""
        assert name in EVALUATION
        return self._sentences(name, "source"), self._sentences(name, "target")

    def _tokens(self, name: str, side: str) -> Tokens:
        counts = self.meta["splits"][name]
        with self._opening(f"{name}.{side}.npy") as path:
            flat = np.load(path, mmap_mode="r")
            _check_count(len(flat), counts[f"{side}_pieces"], "tokens")
            if path.name not in self.meta.get("digests", {}) and flat.max(initial=0) >= len(self.tokenizer):
                raise ValueError(f"holds the token {flat.max()}, but there are {len(self.tokenizer)}")
        with self._opening(f"{name}.{side}.offsets.npy") as path:
            offsets = np.load(path)
            _check_count(len(offsets) - 1, counts["pairs"], "sentences")
        return Tokens(flat, offsets)

    def _sentences(self, name: str, side: str) -> list[str]:
        with self._opening(f"{name}.{side}.txt") as path:
            sentences = path.read_bytes().decode().split("\n")[:-1]
            _check_count(len(sentences), self.meta["splits"][name]["pairs"], "sentences")
        return sentences

    @contextmanager
    def _opening(self, file: str) -> Iterator[Path]:
        with self._reading(file) as path:
            if file not in self._checked:
                check_digest(path, self.meta.get("digests", {}).get(file))
                self._checked.add(file)
            yield path

    @contextmanager
    def _reading(self, file: str) -> Iterator[Path]:
        path = self.folder / file
        try:
            yield path
        except InputError:  # of another file
            raise
        except (OSError, EOFError, ValueError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"{path}: cannot be read: {reason}; the next training on this text prepares it anew"
            ) from None


def _check_count(actual: int, expected: int, unit: str) -> None:
    if actual != expected:
        raise ValueError(f"holds {actual} {unit} in place of {expected}")
