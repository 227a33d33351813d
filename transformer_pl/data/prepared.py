"""A prepared text, as a folder of token arrays has it.

runs/data/<id>/  tokenizer.model  meta.json
                 {train,val,test}.{source,target}.npy and .offsets.npy  {val,test}.{source,target}.txt
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from transformer_pl.data.corpus import EVALUATION, SPLITS
from transformer_pl.data.tokenizer import Tokenizer
from transformer_pl.data.tokens import Split, Tokens
from transformer_pl.runtime.errors import InputError

SIDES = ("source", "target")


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus on disk. Arrays are mapped, not held in memory. A file that cannot be read is an InputError."""

    folder: Path

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The content of meta.json: `fingerprint`, `corpus` (a description), `settings` and `splits`.

        Each split has `pairs`, `source_pieces`, `target_pieces` (tokens), and the counts of `Selection`.
        """
        with self._reading("meta.json") as path:
            return json.loads(path.read_bytes())

    def is_counted(self) -> bool:
        """Return whether the text is prepared, so that its sentences and tokens are counted."""
        return (self.folder / "meta.json").exists()

    def problem(self) -> str | None:
        """Open every file; return an error message for the first one that cannot be read, or None."""
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
        with self._reading("tokenizer.model") as path:
            tokenizer = Tokenizer(path)  # also of an empty file
            _check_count(len(tokenizer), self.meta["settings"]["vocab_size"])
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
        with self._reading(f"{name}.{side}.npy") as path:
            flat = np.load(path, mmap_mode="r")
        with self._reading(f"{name}.{side}.offsets.npy") as path:
            return Tokens(flat, np.load(path))

    def _sentences(self, name: str, side: str) -> list[str]:
        with self._reading(f"{name}.{side}.txt") as path:
            sentences = path.read_bytes().decode().split("\n")[:-1]
            _check_count(len(sentences), self.meta["splits"][name]["pairs"])
        return sentences

    @contextmanager
    def _reading(self, file: str) -> Iterator[Path]:
        path = self.folder / file
        try:
            yield path
        except InputError:  # of another file
            raise
        except (OSError, EOFError, ValueError, KeyError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"{path}: must be as it was written, but cannot be read: {reason}; the next training on this text "
                "prepares it anew"
            ) from None


def _check_count(actual: int, expected: int) -> None:
    if actual != expected:
        raise ValueError(f"it holds {actual} entries in place of {expected}")
