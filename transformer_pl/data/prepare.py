"""Text to token arrays, once for each corpus and vocabulary.

    runs/data/<id>/  tokenizer.model  meta.json
                     {train,val,test}.{source,target}.npy and .offsets.npy  {val,test}.{source,target}.txt

The id is a hash of the text and of the tokenizer's settings, so a folder is never out of date. meta.json has the sha256
of every other file. A damaged file is noticed when it is opened, and the next training prepares the text again.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, PositiveInt

from transformer_pl.config import CLEANING, KEYS
from transformer_pl.data.encode import LANGUAGES, LOCK, encode_corpus
from transformer_pl.data.selection import EVALUATION, OnProgress, check_counts, no_progress
from transformer_pl.data.sources import SPLITS, Corpus, open_corpus
from transformer_pl.data.tokenizer import Tokenizer
from transformer_pl.data.tokens import Split, Tokens
from transformer_pl.runtime.crash import crash_point
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.files import check_digest, load_json, set_aside, sha256, try_lock

if TYPE_CHECKING:
    from transformer_pl.config import Data

TOKENIZING = 1  # raised whenever the same text would give other tokens


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
        return Split(*(self._tokens(name, side) for side in LANGUAGES))

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


def fingerprint_id(data: "Data", corpus: Corpus) -> str:
    """The name of the prepared folder: 16 hexadecimal digits for the text and the tokenizer's settings."""
    return digest(corpus.fingerprint, _settings(data))


def digest(fingerprint: dict[str, Any], settings: dict[str, Any]) -> str:
    """Return the name of the folder whose meta.json has this fingerprint and these settings."""
    identity = {"fingerprint": fingerprint, "settings": settings}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _settings(data: "Data") -> dict[str, Any]:
    """What decides on the tokens of a text. A key of cleaning at its default is left out: folders stay valid."""
    cleaning = {key: value for key in CLEANING if (value := getattr(data, key)) != KEYS[f"data.{key}"]}
    tokens = {"tokenizing": TOKENIZING, "vocab_size": data.vocab_size, "source": data.source, "target": data.target}
    return tokens | cleaning


def prepare(data: "Data", runs: Path, corpus: Corpus | None = None, on_progress: OnProgress = no_progress) -> Prepared:
    """Return the prepared corpus under `runs`. Prepares it first unless it is there and undamaged.

    on_progress: is called with the progress of the preparation.

    Several processes may ask for it at the same time: one prepares it, and the others wait. One that is killed leaves
    its work under another name, for the next to continue.
    Raises an InputError for text that cannot be used, for batches that are too small for every pair, and for a folder
    that cannot be written.
    """
    corpus = corpus or open_corpus(data)
    folder = Path(runs) / "data" / fingerprint_id(data, corpus)
    prepared, is_new = Prepared(folder), not folder.exists()
    if damage := prepared.damage():
        if not is_new and not folder.is_dir():
            set_aside(folder)
        if not is_new:
            warn(damage)
        try:
            _make(folder, data, corpus, on_progress)
        except OSError as error:
            raise InputError(
                f"{folder.parent}: must be writable, with room for the corpus, but: {error.strerror or error}; "
                f"make room, or choose another folder with --runs"
            ) from None
        prepared = Prepared(folder)
    check_counts(prepared.meta["splits"], data, corpus.describe)
    train = prepared.split("train")
    longer = np.maximum(train.source.lengths_with_special, train.target.lengths_with_special)
    if longer.min() > min(data.max_length, data.batch_tokens):
        raise nothing_fits_error(longer, data.batch_tokens, data.max_length)
    return prepared


def nothing_fits_error(longer: np.ndarray, batch_tokens: int, max_length: int) -> InputError:
    """longer: the length of the longer sentence of each training pair, with its special token."""
    return InputError(
        f"data.max_length = {max_length}, data.batch_tokens = {batch_tokens}: some training pair must fit both, "
        f"but the shortest of {len(longer)} has {longer.min(initial=2**62)} tokens, EOS included; raise them"
    )


def _make(folder: Path, data: "Data", corpus: Corpus, on_progress: OnProgress) -> None:
    """Prepare the text beside `folder` and rename it. Of several processes one does it, and the others wait.

    What a process that was killed has done is continued. Text that cannot be used, and a full disk, leave nothing.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    with _alone(unfinished, on_progress):
        if not Prepared(folder).damage():  # another process has done it meanwhile
            shutil.rmtree(unfinished, ignore_errors=True)
            return
        try:
            encode_corpus(unfinished, data, corpus, _settings(data), on_progress)
            crash_point("a text: before its folder has its name")
            try:
                (unfinished / LOCK).unlink()
                unfinished.rename(folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                _replace(folder, unfinished)
                shutil.rmtree(unfinished, ignore_errors=True)
        except (InputError, OSError):
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


@contextmanager
def _alone(unfinished: Path, on_progress: OnProgress) -> Iterator[None]:
    """Hold the lock of a folder, which is made if needed. The process that had it may have finished the folder."""
    while True:
        with suppress(FileExistsError):  # also where it was renamed while this looked; a file fails below
            unfinished.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError), (unfinished / LOCK).open("a") as file:
            if not try_lock(file, fcntl.LOCK_EX):
                on_progress("waiting for another process that prepares this text", 0, None)
                fcntl.flock(file, fcntl.LOCK_EX)
            if (unfinished / LOCK).stat().st_ino == os.fstat(file.fileno()).st_ino:
                yield
                return


def _replace(folder: Path, new_files: Path) -> None:
    """Replace the files of a damaged folder one by one. Those that are not as they should be are set aside.

    So another process may do the same at the same time, and a process that has the old files open keeps them.
    """
    for path in sorted(new_files.iterdir(), key=lambda path: path.name == "meta.json"):
        old = folder / path.name
        with suppress(FileNotFoundError):  # it is missing
            if not old.is_file() or sha256(old) != sha256(path):
                aside = set_aside(old, stays=old.is_file())  # so that it is at no moment missing for another process
                warn(f"{old}: is not what this text gives; it is set aside as {aside.name}")
        path.replace(old)
