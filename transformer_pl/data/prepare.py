"""Text to token arrays, once for each corpus and vocabulary: `runs/data/<id>/`, which prepared.py describes.

The id is a hash of the text and of the tokenizer's settings, so a folder is never out of date. A folder that is damaged
is made again by the next training.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from transformer_pl.config import CLEANING, KEYS, Data
from transformer_pl.data.corpus import Corpus
from transformer_pl.data.encode import LOCK, encode_corpus
from transformer_pl.data.epoch import nothing_fits_error
from transformer_pl.data.prepared import Prepared
from transformer_pl.data.selection import OnProgress, check_counts, no_progress
from transformer_pl.data.sources import open_corpus
from transformer_pl.runtime.crash import crash_point
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.runtime.files import set_aside, sha256, try_lock

TOKENIZING = 1  # raised whenever the same text would give other tokens


def fingerprint_id(data: Data, corpus: Corpus) -> str:
    """The name of the prepared folder: 16 hexadecimal digits for the text and the tokenizer's settings."""
    return digest(corpus.fingerprint, _settings(data))


def digest(fingerprint: dict[str, Any], settings: dict[str, Any]) -> str:
    """Return the name of the folder whose meta.json has this fingerprint and these settings."""
    identity = {"fingerprint": fingerprint, "settings": settings}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _settings(data: Data) -> dict[str, Any]:
    """What decides on the tokens of a text. A key of cleaning at its default is left out: folders stay valid."""
    cleaning = {key: value for key in CLEANING if (value := getattr(data, key)) != KEYS[f"data.{key}"]}
    tokens = {"tokenizing": TOKENIZING, "vocab_size": data.vocab_size, "source": data.source, "target": data.target}
    return tokens | cleaning


def prepare(data: Data, runs: Path, corpus: Corpus | None = None, on_progress: OnProgress = no_progress) -> Prepared:
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
    check_counts(prepared.meta["splits"], data, corpus.description)
    train = prepared.split("train")
    longer = np.maximum(train.source.lengths_with_special, train.target.lengths_with_special)
    if longer.min() > min(data.max_length, data.batch_tokens):
        raise nothing_fits_error(longer, data.batch_tokens, data.max_length)
    return prepared


def _make(folder: Path, data: Data, corpus: Corpus, on_progress: OnProgress) -> None:
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
        with ExitStack() as stack:
            is_held = False
            with suppress(FileNotFoundError):
                file = stack.enter_context((unfinished / LOCK).open("a"))
                if not try_lock(file, fcntl.LOCK_EX):
                    on_progress("waiting for another process that prepares this text", 0, None)
                    fcntl.flock(file, fcntl.LOCK_EX)
                is_held = (unfinished / LOCK).stat().st_ino == os.fstat(file.fileno()).st_ino
            if is_held:
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
                aside = set_aside(old)
                warn(f"{old}: is not what this text gives; it is set aside as {aside.name}")
        path.replace(old)
