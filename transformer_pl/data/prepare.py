"""From text to token arrays, once for each corpus and vocabulary.

    runs/data/<id>/  tokenizer.model  meta.json
                     {train,val,test}.{source,target}.npy and .offsets.npy  {val,test}.{source,target}.txt

The id follows from the text itself and from how it is cut into pieces, so a folder is never out of date. meta.json
has the sha256 of every other file: a damaged folder is noticed when it is opened, and a training makes it anew.
"""

import errno
import hashlib
import itertools
import json
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, PositiveInt

from transformer_pl.data.sources import SPLITS, Corpus, open_corpus
from transformer_pl.data.tokenizer import Tokenizer, train_bpe
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.files import check_digest, load_json, sha256

if TYPE_CHECKING:
    from transformer_pl.config import Data

TOKENIZING = 1  # raised whenever the same text would give other pieces
EVALUATION = ("val", "test")  # the splits whose text is kept beside their pieces
SIDES = ("source", "target")
CHUNK = 10_000  # pairs in memory at a time
BPE_SENTENCES = 4_000_000  # of more than these, evenly spaced ones teach the vocabulary


@dataclass(frozen=True)
class Tokens:
    """One side of a split: every sentence's pieces, end to end in one array."""

    flat: np.ndarray  # (pieces,) uint16 or uint32
    offsets: np.ndarray  # (sentences + 1,) int64: where each sentence begins, and where the last one ends

    @classmethod
    def of(cls, sentences: list[list[int]]) -> "Tokens":
        offsets = np.cumsum([0, *map(len, sentences)])
        return cls(np.fromiter(itertools.chain.from_iterable(sentences), dtype=np.uint32), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self.flat[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Pieces in each sentence, marks left out."""
        return np.diff(self.offsets)


def evenly_spaced(total: int, count: int) -> list[int]:
    """At most `count` sentences from all over a set of `total`."""
    return np.unique(np.linspace(0, total - 1, count).astype(int)).tolist()


class Split(NamedTuple):
    source: Tokens
    target: Tokens


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
        """`fingerprint`, `corpus` (in words), `settings`, `digests`, and for each of `splits`:

        `pairs`, `source_pieces`, `target_pieces`, and `blank`, the pairs without text on a side.
        """
        with self._reading("meta.json") as path:
            return load_json(path, _Meta)

    def is_counted(self) -> bool:
        """Whether meta.json is there and can be read; a warning names a damaged one."""
        if not (self.folder / "meta.json").exists():
            return False
        try:
            return bool(self.meta)
        except InputError as error:
            warn(str(error))
            return False

    def damage(self) -> str | None:
        """What is wrong with the first of its files that is missing or damaged; None where all are whole."""
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
            _agree(len(tokenizer), self.meta["settings"]["vocab_size"], "pieces")
        return tokenizer

    def mean_length(self, name: str, side: str) -> float:
        """Pieces in a sentence, with its mark."""
        counts = self.meta["splits"][name]
        return counts[f"{side}_pieces"] / counts["pairs"] + 1

    def split(self, name: str) -> Split:
        return Split(*(self._tokens(name, side) for side in SIDES))

    def text(self, name: str) -> tuple[list[str], list[str]]:
        """The sentences of `val` or `test`, raw, in the order of the arrays: sources and targets."""
        assert name in EVALUATION
        return self._sentences(name, "source"), self._sentences(name, "target")

    def _tokens(self, name: str, side: str) -> Tokens:
        counts = self.meta["splits"][name]
        with self._opening(f"{name}.{side}.npy") as path:
            flat = np.load(path, mmap_mode="r")
            _agree(len(flat), counts[f"{side}_pieces"], "pieces")
        with self._opening(f"{name}.{side}.offsets.npy") as path:
            offsets = np.load(path)
            _agree(len(offsets) - 1, counts["pairs"], "sentences")
        return Tokens(flat, offsets)

    def _sentences(self, name: str, side: str) -> list[str]:
        with self._opening(f"{name}.{side}.txt") as path:
            sentences = path.read_bytes().decode().split("\n")[:-1]
            _agree(len(sentences), self.meta["splits"][name]["pairs"], "sentences")
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


def _agree(found: int, expected: int, what: str) -> None:
    if found != expected:
        raise ValueError(f"holds {found} {what} in place of {expected}")


def fingerprint_id(data: "Data", corpus: Corpus) -> str:
    """16 hexadecimal digits: the text and how it is cut into pieces."""
    return digest(corpus.fingerprint, _settings(data))


def digest(fingerprint: dict[str, Any], settings: dict[str, Any]) -> str:
    """What the folder is called whose meta.json says this."""
    identity = {"fingerprint": fingerprint, "settings": settings}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _settings(data: "Data") -> dict[str, Any]:
    return {"tokenizing": TOKENIZING, "vocab_size": data.vocab_size, "source": data.source, "target": data.target}


def prepare(data: "Data", runs: Path, corpus: Corpus | None = None) -> Prepared:
    """The prepared corpus under `runs`, made now unless it is there and whole.

    Safe beside other processes that do the same: the first to finish wins, and what is unfinished has another name.
    Raises an InputError for text that cannot be used, or not in batches of this size, and for a folder that cannot be
    written.
    """
    corpus = corpus or open_corpus(data)
    folder = Path(runs) / "data" / fingerprint_id(data, corpus)
    prepared, is_new = Prepared(folder), not folder.exists()
    if damage := prepared.damage():
        if not is_new:
            warn(damage)
        try:
            _make(folder, data, corpus)
        except OSError as error:
            raise InputError(
                f"{folder.parent}: must be writable, with room for the corpus, but: {error.strerror or error}; "
                f"make room, or choose another folder with --runs"
            ) from None
        prepared = Prepared(folder)
    train = prepared.split("train")
    longer = np.maximum(train.source.lengths, train.target.lengths) + 1
    if longer.min() > min(data.max_length, data.batch_tokens):
        raise nothing_fits_error(longer, data.batch_tokens, data.max_length)
    return prepared


def nothing_fits_error(longer: np.ndarray, batch_tokens: int, max_length: int) -> InputError:
    """longer: of each training pair, the length of its longer side, mark included."""
    return InputError(
        f"data.max_length = {max_length}, data.batch_tokens = {batch_tokens}: some training pair must fit both, "
        f"but the shortest of {len(longer)} has {longer.min(initial=2**62)} pieces (end mark included); raise them"
    )


def _make(folder: Path, data: "Data", corpus: Corpus) -> None:
    unfinished = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    try:
        unfinished.mkdir(parents=True)
        _fill(unfinished, data, corpus)
        try:
            unfinished.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if Prepared(folder).damage():  # else another process was quicker
                _replace(folder, unfinished)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _replace(folder: Path, anew: Path) -> None:
    """Put the files of `anew` in the place of damaged ones, one by one.

    Thus another process may do the same at the same time, and one that has the old files open keeps them.
    """
    for path in sorted(anew.iterdir(), key=lambda path: path.name == "meta.json"):
        path.replace(folder / path.name)


def _fill(folder: Path, data: "Data", corpus: Corpus) -> None:
    """Read everything once, so that a mistake in any text is found before the work begins; then learn and encode."""
    splits = {name: _count(name, corpus) for name in SPLITS}
    every = -(-2 * splits["train"]["pairs"] // BPE_SENTENCES)
    sentences = itertools.chain.from_iterable(itertools.islice(_kept("train", corpus), 0, None, every))
    model = train_bpe(sentences, data.vocab_size)
    (folder / "tokenizer.model").write_bytes(model)
    tokenizer = Tokenizer(model)
    for name in SPLITS:
        splits[name] |= _encode(folder, name, corpus, tokenizer)
    meta = {"fingerprint": corpus.fingerprint, "corpus": corpus.describe, "settings": _settings(data), "splits": splits}
    meta["digests"] = {path.name: sha256(path) for path in folder.iterdir()}
    (folder / "meta.json").write_text(json.dumps(meta, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _kept(name: str, corpus: Corpus) -> Iterator[tuple[str, str]]:
    """A blank side teaches nothing, so training leaves such pairs out; an evaluation set stays whole."""
    return (pair for pair in corpus.pairs(name) if name in EVALUATION or _has_text(pair))


def _has_text(pair: tuple[str, str]) -> bool:
    return bool(pair[0].strip() and pair[1].strip())


def _count(name: str, corpus: Corpus) -> dict[str, int]:
    pairs = blank = 0
    for pair in corpus.pairs(name):
        pairs += 1
        blank += not _has_text(pair)
    kept = pairs if name in EVALUATION else pairs - blank
    if not kept:
        raise InputError(f"{corpus.describe}: {name} must hold a pair with text on both sides, but has none of {pairs}")
    return {"pairs": kept, "blank": blank}


def _encode(folder: Path, name: str, corpus: Corpus, tokenizer: Tokenizer) -> dict[str, int]:
    """Write a split's arrays, and its text if it is for evaluation; the number of pieces on each side."""
    writers = [_Writer(folder, f"{name}.{side}", len(tokenizer), name in EVALUATION) for side in SIDES]
    try:
        pairs = _kept(name, corpus)
        while chunk := list(itertools.islice(pairs, CHUNK)):
            for writer, sentences in zip(writers, zip(*chunk, strict=True), strict=True):
                writer.write(sentences, tokenizer.encode(sentences))
        return {f"{side}_pieces": writer.finish() for side, writer in zip(SIDES, writers, strict=True)}
    finally:
        for writer in writers:
            writer.close()


class _Writer:
    """One side of a split, written as it comes: `.npy` files whose length is known only at the end."""

    def __init__(self, folder: Path, stem: str, vocab_size: int, keep_text: bool):
        self.dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
        self.flat = (folder / f"{stem}.npy").open("wb")
        self.text = (folder / f"{stem}.txt").open("wb") if keep_text else None
        self.offsets_path = folder / f"{stem}.offsets.npy"
        self.lengths: list[np.ndarray] = []
        self._header(0)

    def write(self, sentences: Iterable[str], pieces: list[list[int]]) -> None:
        self.lengths.append(np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces)))
        self.flat.write(np.fromiter(itertools.chain.from_iterable(pieces), dtype=self.dtype).tobytes())
        if self.text:
            self.text.write("".join(f"{sentence}\n" for sentence in sentences).encode())

    def finish(self) -> int:
        offsets = np.concatenate([[0], *self.lengths]).cumsum()
        np.save(self.offsets_path, offsets)
        self._header(int(offsets[-1]))
        self.close()  # here, where a full disk is still heard of
        return int(offsets[-1])

    def _header(self, pieces: int) -> None:
        """numpy leaves room in a header for its first axis to grow, so it can be written anew in place."""
        self.flat.seek(0)
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": (pieces,)}
        np.lib.format.write_array_header_1_0(self.flat, header)

    def close(self) -> None:
        self.flat.close()
        if self.text:
            self.text.close()
