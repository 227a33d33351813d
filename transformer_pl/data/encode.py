"""The work of preparing a text, in a folder that is not finished yet: select the pairs, learn a vocabulary, encode.

A process that is killed leaves what it has done, and the next one continues: `counts.json` with `train.kept` (which
pairs are used), `tokenizer.model`, and `progress.json`, which says how far the arrays are written. These are removed
when the work is done, except for the tokenizer.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np
from pydantic import BaseModel

from transformer_pl.config import Data
from transformer_pl.data.corpus import SPLITS, Corpus
from transformer_pl.data.selection import EVALUATION, OnProgress, Selection, check_counts, select
from transformer_pl.data.tokenizer import MOST_PAIRS, Tokenizer, VocabularyError, train_bpe, vocabulary_bounds
from transformer_pl.data.tokens import Tokens
from transformer_pl.runtime.crash import crash_point
from transformer_pl.runtime.files import put_in_place, read_json, sha256, write_json

SIDES = ("source", "target")
LOCK = "lock"  # file of an unfinished folder: held by the process that works in it
CHUNK = 10_000  # pairs in memory at a time
SAVED_EVERY = 20  # chunks between two notes of how far the arrays are
BPE_SENTENCES = 4_000_000  # the vocabulary is learned from at most so many, evenly spaced
AGAIN = "the text is prepared from the beginning"


class _Counts(BaseModel, strict=True):
    splits: dict[str, dict[str, int]]


class _Progress(BaseModel, strict=True):
    done: dict[str, dict[str, int]]  # by split that is written: its tokens per language
    pairs: int  # of the split after them
    sizes: dict[str, int]  # bytes of its files


def encode_corpus(folder: Path, data: Data, corpus: Corpus, settings: dict[str, Any], on_progress: OnProgress) -> None:
    """Make all files of a prepared text in `folder`, or continue that.

    All text is read once before the work begins, to find every mistake in it.
    """
    selections = _selected(folder, data, corpus, on_progress)
    tokenizer = _tokenizer(folder, data, corpus, selections["train"], on_progress)
    crash_point("a text: before it is encoded")
    pieces = _encode(folder, corpus, tokenizer, selections, on_progress)
    for name in ("counts.json", "train.kept", "progress.json"):
        (folder / name).unlink(missing_ok=True)
    splits = {name: selections[name].counts | pieces[name] for name in SPLITS}
    meta = {"fingerprint": corpus.fingerprint, "corpus": corpus.description, "settings": settings, "splits": splits}
    meta["digests"] = {path.name: sha256(path) for path in folder.iterdir() if path.name not in (LOCK, "meta.json")}
    write_json(folder / "meta.json", dict(sorted(meta.items())))


def _selected(folder: Path, data: Data, corpus: Corpus, on_progress: OnProgress) -> dict[str, Selection]:
    kept = folder / "train.kept"
    stored = read_json(folder / "counts.json", _Counts, AGAIN)
    if stored and kept.exists() and kept.read_bytes().count(1) == stored["splits"]["train"]["pairs"]:
        flags = {"train": kept.read_bytes()}
        return {name: Selection(stored["splits"][name], (0, 0), flags.get(name)) for name in SPLITS}
    selections = {name: select(name, corpus, data, on_progress) for name in SPLITS}
    check_counts({name: one.counts for name, one in selections.items()}, data, corpus.description)
    kept.write_bytes(selections["train"].kept or b"")
    write_json(folder / "counts.json", {"splits": {name: one.counts for name, one in selections.items()}})
    return selections


def _tokenizer(folder: Path, data: Data, corpus: Corpus, selection: Selection, on_progress: OnProgress) -> Tokenizer:
    path = folder / "tokenizer.model"
    if path.exists():
        return Tokenizer(path)
    pairs = selection.counts["pairs"]
    every = -(-2 * pairs // BPE_SENTENCES)

    def sentences() -> Iterator[str]:
        used = itertools.islice(selection.used(corpus.pairs("train")), 0, None, every)
        return itertools.chain.from_iterable(used)

    on_progress(f"learning a vocabulary of {data.vocab_size:,} tokens", 0, None)
    try:
        model = train_bpe(sentences(), data.vocab_size)
    except VocabularyError as error:
        if pairs > MOST_PAIRS:
            raise
        raise VocabularyError(data.vocab_size, *vocabulary_bounds(list(sentences()))) from error
    unfinished = folder / f".tokenizer.model.{os.getpid()}"
    unfinished.write_bytes(model)
    put_in_place(unfinished, path)
    return Tokenizer(model)


def _encode(
    folder: Path, corpus: Corpus, tokenizer: Tokenizer, selections: dict[str, Selection], on_progress: OnProgress
) -> dict[str, dict[str, int]]:
    """Write the arrays of all splits, and the text of those for evaluation. Returns the tokens per language."""
    progress = _stored_progress(folder) or {"done": {}, "pairs": 0, "sizes": {}}
    total = sum(selection.counts["pairs"] for selection in selections.values())
    before = sum(selections[name].counts["pairs"] for name in progress["done"])
    for name in SPLITS:
        if name in progress["done"]:
            continue
        count = selections[name].counts["pairs"]
        on_progress("encoding the text", before + progress["pairs"], total)

        def note(pairs: int, sizes: dict[str, int], before: int = before, done: Any = progress["done"]) -> None:
            on_progress("encoding the text", before + pairs, total)
            if sizes:
                write_json(folder / "progress.json", {"done": done, "pairs": pairs, "sizes": sizes})

        used = selections[name].used(corpus.pairs(name))
        pieces = _encode_split(folder, name, used, tokenizer, progress["pairs"], progress["sizes"], note)
        before += count
        progress = {"done": progress["done"] | {name: pieces}, "pairs": 0, "sizes": {}}
        write_json(folder / "progress.json", progress)
    return progress["done"]


def _stored_progress(folder: Path) -> dict[str, Any] | None:
    """How far an earlier process came; None if it is not known, or if a file has lost what was written to it."""
    stored = read_json(folder / "progress.json", _Progress, AGAIN)
    sizes = (stored or {}).get("sizes", {})
    complete = all((folder / name).exists() and (folder / name).stat().st_size >= size for name, size in sizes.items())
    return stored if complete else None


def _encode_split(
    folder: Path,
    name: str,
    pairs: Iterator[tuple[str, str]],
    tokenizer: Tokenizer,
    done: int,
    sizes: dict[str, int],
    note: Callable[[int, dict[str, int]], None],
) -> dict[str, int]:
    """Write one split, whose first `done` pairs are written. Returns its tokens per language.

    note: is called after each chunk with the pairs that are done, and at times with the sizes of the files on the disk.
    """
    with ExitStack() as stack:  # closes every file, also where closing one of them finds the disk full
        writers = [
            stack.enter_context(closing(_Writer(folder, f"{name}.{side}", len(tokenizer), name in EVALUATION, sizes)))
            for side in SIDES
        ]
        pairs = itertools.islice(pairs, done, None)
        for number in itertools.count(1):
            chunk = list(itertools.islice(pairs, CHUNK))
            if not chunk:
                break
            for writer, sentences in zip(writers, zip(*chunk, strict=True), strict=True):
                writer.write(sentences, tokenizer.encode(sentences))
            done += len(chunk)
            crash_point("a text: after a chunk of it")
            saved = [writer.saved() for writer in writers] if number % SAVED_EVERY == 0 else []
            note(done, {file: size for files in saved for file, size in files.items()})
        return {f"{side}_pieces": writer.finish() for side, writer in zip(SIDES, writers, strict=True)}


class _Writer:
    """Writes a split in one language as it is read: `.npy` files whose length is known only at the end.

    sizes: the bytes of each file that an earlier process has written; empty: the files are begun.
    """

    def __init__(
        self, folder: Path, stem: str, vocab_size: int, keep_text: bool, sizes: Mapping[str, int] = MappingProxyType({})
    ):
        tokens = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
        self.flat = _Array(folder / f"{stem}.npy", tokens, sizes)
        self.offsets = _Array(folder / f"{stem}.offsets.npy", np.dtype(np.int64), sizes)
        self.text = _open_at(folder / f"{stem}.txt", sizes) if keep_text else None
        if not sizes:
            self.offsets.append(np.zeros(1, np.int64))

    def write(self, sentences: Iterable[str], tokens: Tokens) -> None:
        self.offsets.append(self.flat.length + tokens.offsets[1:])
        self.flat.append(tokens.flat)
        if self.text:
            self.text.write("".join(f"{sentence}\n" for sentence in sentences).encode())

    def saved(self) -> dict[str, int]:
        """Wait until what was written is on the disk; return the bytes of each file."""
        for file in self._files():
            file.flush()
            os.fsync(file.fileno())
        return {Path(file.name).name: file.tell() for file in self._files()}

    def finish(self) -> int:
        """Complete the files and return the number of tokens."""
        self.flat.write_header()
        self.offsets.write_header()
        self.close()  # here, so that a full disk raises an error
        return self.flat.length

    def close(self) -> None:
        with ExitStack() as stack:
            for file in self._files():
                stack.enter_context(closing(file))

    def _files(self) -> list[IO[bytes]]:
        return [self.flat.file, self.offsets.file, *([self.text] if self.text else [])]


class _Array:
    """A `.npy` file of one dimension that grows."""

    def __init__(self, path: Path, dtype: np.dtype, sizes: Mapping[str, int]):
        self.dtype, self.length = dtype, 0
        self.file = _open_at(path, sizes)
        if sizes:
            data = self.file.tell() - self.write_header()
            self.length = data // dtype.itemsize
            self.file.seek(0, os.SEEK_END)
        else:
            self.write_header()

    def append(self, values: np.ndarray) -> None:
        self.length += len(values)
        self.file.write(values.astype(self.dtype, copy=False).tobytes())

    def write_header(self) -> int:
        """Write the header in its place and return its bytes: numpy leaves room in it for a greater length."""
        self.file.seek(0)
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self.file, header)
        return self.file.tell()


def _open_at(path: Path, sizes: Mapping[str, int]) -> IO[bytes]:
    """Open a file for writing behind the bytes that are kept of it."""
    path.touch()
    file = path.open("r+b")
    file.truncate(sizes.get(path.name, 0))
    file.seek(0, os.SEEK_END)
    return file
