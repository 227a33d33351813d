"""A prepared corpus: a folder of token arrays.

runs/data/<id>/  tokenizer.model  meta.json
                 SPLIT.{source,target}.{tokens,lengths}, except train SPLIT.{source,target}.txt, and SPLIT.documents
                 where the documents of its lines are known. A SPLIT is train, val, test or the name of a further set.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from transformer_pl.data.tokenizer import Tokenizer, load_tokenizer
from transformer_pl.data.tokens import Split, Tokens, Windows
from transformer_pl.runtime.files import parse_json, reading

SIDES = ("source", "target")
TOKENIZER = "tokenizer.model"


@with_config(ConfigDict(strict=True))
class Meta(TypedDict):
    """The form of meta.json."""

    corpus: str  # for people
    fingerprint: dict[str, Any]
    settings: dict[str, Any]  # that decided which tokens it has
    splits: dict[str, dict[str, int]]  # by split, the counts of its pairs and tokens (see selection.py)


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus on disk. Arrays are mapped, not held in memory. Raises an InputError for an unreadable file."""

    folder: Path
    longest: int | None = None  # targets with more tokens are cut into pieces of this length; None: none is cut
    joined: bool = False  # whether the lines of a document are joined before

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The content of meta.json."""
        with self._reading("meta.json") as path:
            return parse_json(path.read_bytes(), Meta)

    def is_counted(self) -> bool:
        """Whether the corpus is prepared, and its sentences and tokens are counted."""
        return (self.folder / "meta.json").exists()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        with self._reading(TOKENIZER) as path:
            return load_tokenizer(self.meta["settings"], path.read_bytes())

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """The mean lengths of source and target over the training pairs, one special token included."""
        if self.longest is not None:
            return 1.0, float(self.split("train").target.lengths_with_special.mean())
        counts = self.meta["splits"]["train"]
        return counts["source_pieces"] / counts["pairs"] + 1, counts["target_pieces"] / counts["pairs"] + 1

    def files(self, name: str) -> list[Path]:
        """The files of a split."""
        names = [f"{name}.{side}.{kind}" for side in SIDES for kind in ("tokens", "lengths", "txt")]
        return [path for name in (*names, f"{name}.documents") if (path := self.folder / name).exists()]

    def split(self, name: str) -> Split:
        """The tokens of a split. Where targets are cut, each piece has a source of its own, which is empty."""
        if self.longest is None:
            source, target = (self._tokens(name, side) for side in SIDES)
            return Split(source, target)
        return Split.of_targets(self.windows(name).pieces if self.joined else self.in_pieces(name))

    def text(self, name: str) -> tuple[list[str], list[str]]:
        """The raw sentences of `val` or `test` in the order of the arrays: sources and targets."""
        sides = []
        for side in SIDES:
            with self._reading(f"{name}.{side}.txt") as path:
                sides.append(path.read_bytes().decode().split("\n")[:-1])
        return sides[0], sides[1]

    def in_pieces(self, name: str) -> Tokens:
        """The lines of a split, each cut into pieces of its own."""
        return self._tokens(name, "target").in_pieces(self.longest or 0)

    def windows(self, name: str, stride: int | None = None) -> Windows:
        """The documents of a split, or its lines where these are not joined, in pieces: see `Tokens.windows`."""
        target = self._tokens(name, "target")
        lengths, documents = target.lengths_with_special, self._documents(name) if self.joined else None
        if documents is not None:
            lengths = np.add.reduceat(lengths, np.flatnonzero(np.diff(documents, prepend=-1)))
        return target.windows(lengths, self.longest or 0, stride)

    def documents(self, name: str) -> list[int] | None:
        """The document of each sentence of an evaluated set, from 0; None where fewer than two are known."""
        documents = self._documents(name)
        return None if documents is None or not documents.any() else documents.tolist()

    def _documents(self, name: str) -> np.ndarray | None:
        if not (self.folder / f"{name}.documents").exists():
            return None
        with self._reading(f"{name}.documents") as path:
            return np.fromfile(path, np.int32)

    def _tokens(self, name: str, side: str) -> Tokens:
        dtype = token_type(self.meta["settings"]["vocab_size"])
        with self._reading(f"{name}.{side}.tokens") as path:
            flat = np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
        with self._reading(f"{name}.{side}.lengths") as path:
            return Tokens.of(flat, np.fromfile(path, np.int32))

    def _reading(self, file: str) -> AbstractContextManager[Path]:
        return reading(self.folder / file, f"remove {self.folder}, and the next training prepares the dataset again")


def token_type(vocab_size: int) -> type:
    """The type of a stored token."""
    return np.uint16 if vocab_size <= 2**16 else np.uint32
