"""Turns sentences into token arrays, once for each corpus and vocabulary, in `runs/data/<id>/` (see prepared.py).

The id is a hash of the corpus and of the tokenizer's settings, so a folder is never out of date.
"""

import itertools
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock

from transformer_pl.config import ALL_PAIRS, Data
from transformer_pl.data.prepared import SIDES, TOKENIZER, Prepared, token_type
from transformer_pl.data.selection import Counts, OnProgress, count_pairs, used_documents, used_pairs
from transformer_pl.data.tokenizer import Tokenizer, build_tokenizer, tokenizer_settings
from transformer_pl.runtime.digests import value_digest
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.files import link, write_json
from transformer_pl.runtime.signals import component_code
from transformer_pl.task import Corpus, Pair, open_corpus, task_of, training_fingerprint

TOKENIZING = 2  # raised whenever the same sentences would give other tokens
CHUNK = 10_000  # pairs in memory at a time
MOST_SENTENCES = 4_000_000  # the vocabulary is learned from at most so many, evenly spaced


class Learned(NamedTuple):
    """A tokenizer that is loaded, and the bytes that it has loaded."""

    tokenizer: Tokenizer
    model: bytes

    @classmethod
    def of(cls, prepared: Prepared) -> "Learned":
        """The tokenizer of a prepared dataset."""
        return cls(prepared.tokenizer, (prepared.folder / TOKENIZER).read_bytes())


def prepared_in(folder: Path, data: Data) -> Prepared:
    """The prepared dataset of a folder, as a training with these keys reads it."""
    return Prepared(folder, None if task_of(data).has_source else data.longest, data.pieces == "joined")


def prepared_dataset(data: Data, runs: Path, corpus: Corpus) -> Prepared:
    """The prepared dataset of a corpus, which need not be prepared yet."""
    return prepared_in(runs / "data" / fingerprint_id(data, corpus), data)


def fingerprint_id(data: Data, corpus: Corpus) -> str:
    """The name of the prepared folder: 16 hexadecimal digits for the corpus and the tokenizer's settings."""
    identity = {"fingerprint": corpus.fingerprint, "settings": _settings(data)}
    return value_digest(identity, 16)


def _training_id(fingerprint: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """A hash of what decides on the tokens of a corpus but for its test set."""
    return value_digest({"fingerprint": training_fingerprint(fingerprint), "settings": settings}, 16)


def _settings(data: Data) -> dict[str, Any]:
    """What decides on the tokens of a corpus."""
    settings = {"tokenizing": TOKENIZING, "vocab_size": data.vocab_size, "source": data.source, "target": data.target}
    chosen = {key: value for key in ALL_PAIRS if (value := getattr(data, key))}
    chosen |= {"pieces": data.pieces} if data.pieces != "apart" else {}
    return settings | chosen | tokenizer_settings(data)


def prepare(
    data: Data, runs: Path, corpus: Corpus | None = None, on_progress: OnProgress = lambda *_: None
) -> Prepared:
    """Return the prepared corpus under `runs`. Prepares it first unless it is there.

    Several processes may ask for it at the same time: one prepares it, and the others wait. Raises an InputError for a
    dataset that cannot be used, for lengths that no training pair keeps, and for a folder that cannot be written.
    """
    corpus = corpus or open_corpus(data)
    prepared = prepared_dataset(data, runs, corpus)
    if not prepared.is_counted():
        try:
            _make(prepared.folder, data, corpus, on_progress)
        except OSError as error:
            remedy = "make room, or choose another folder with --runs"
            place = prepared.folder.parent
            raise InputError(f"{place}: cannot be written: {error.strerror or error}; {remedy}") from None
    for name in data.evaluated:  # `data` may say another score than when this was prepared
        task_of(data).check_references(data, prepared.text(name)[1])
    shortest = prepared.split("train").longer.min()
    if shortest > data.longest:
        keys = f"data.max_length = {data.max_length}, data.batch_tokens = {data.batch_tokens}"
        raise InputError(f"{keys}: must be at least {shortest}, the tokens of the shortest training pair; raise them")
    return prepared


def _make(folder: Path, data: Data, corpus: Corpus, on_progress: OnProgress) -> None:
    """Prepare a dataset in a folder beside `folder`, and rename it. If that is stopped, no part of it remains."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    lock = folder.with_name(f".{folder.name}.lock")
    folder.parent.mkdir(parents=True, exist_ok=True)
    if lock.exists():
        on_progress("waiting for another process that prepares this dataset", 0, None)
    with FileLock(lock):
        try:
            if not folder.exists():  # otherwise another process has prepared it meanwhile
                shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
                unfinished.mkdir()
                _write_all(unfinished, data, corpus, on_progress)
                if not corpus.is_unchanged():
                    rule = "must not change while it is prepared, but has changed; start the same command again"
                    raise InputError(f"{corpus.description}: {rule}")
                unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            lock.unlink(missing_ok=True)  # while it is held, as `filelock` allows


def _write_all(folder: Path, data: Data, corpus: Corpus, on_progress: OnProgress) -> None:
    """Write all files of a prepared dataset, after the corpus has been read once to find mistakes in it.

    From a dataset that differs in its test set alone, the tokens of the others are taken.
    """
    splits = count_pairs(corpus, data, on_progress)
    if same := with_same_training(folder.parent, data, corpus):
        learned = Learned.of(same)
        for name in ("train", "val"):
            splits[name] = same.meta["splits"][name]
            for path in same.files(name):
                link(path, folder / path.name)
    else:
        on_progress(f"learning a vocabulary of {data.vocab_size:,} tokens", 0, None)
        learned = learn_vocabulary(data, corpus, splits["train"]["pairs"])
    write_tokens(folder, data, corpus, learned, splits, on_progress)
    for name in ("train", *data.evaluated) if data.pieces == "joined" else data.evaluated:
        documents, path = used_documents(name, corpus, data), folder / f"{name}.documents"
        if documents and not path.exists():
            path.write_bytes(np.array(documents, np.int32).tobytes())


def with_same_training(folders: Path, data: Data, corpus: Corpus) -> Prepared | None:
    """A prepared dataset that differs from that of a corpus in its test set alone; None where none can be read."""
    wanted = _training_id(corpus.fingerprint, _settings(data))
    for path in sorted(folders.glob("[!.]*/meta.json")):
        prepared = prepared_in(path.parent, data)
        with suppress(InputError):
            if _training_id(prepared.meta["fingerprint"], prepared.meta["settings"]) == wanted:
                return prepared
    return None


def learn_vocabulary(data: Data, corpus: Corpus, count: int) -> Learned:
    """The tokenizer with the vocabulary that it learns from a corpus of so many training pairs.

    Raises an InputError where that has not data.vocab_size tokens.
    """
    learned, text = data.of_vocabulary, corpus
    if learned != data:
        text = open_corpus(learned)
        count = sum(1 for _ in used_pairs("train", text, learned))
    step = max(1, -(-2 * count // MOST_SENTENCES))
    found = learn_tokenizer(data, lambda: itertools.islice(used_pairs("train", text, learned), 0, None, step))
    if (size := len(found.tokenizer)) != data.vocab_size:  # plans, costs and checks go by data.vocab_size
        rule = f"must be {size}, as many as {data.tokenizer.path} has for this dataset"
        raise InputError(f"data.vocab_size = {data.vocab_size}: {rule}; set it")
    return found


def learn_tokenizer(data: Data, pairs: Callable[[], Iterable[Pair]]) -> Learned:
    """The tokenizer of `data` with the vocabulary that it learns from these pairs."""
    tokenizer = build_tokenizer(data.tokenizer)
    with component_code():
        model = tokenizer.train(pairs, data.vocab_size)
        tokenizer.load(model)
    return Learned(tokenizer, model)


def write_tokens(
    folder: Path, data: Data, corpus: Corpus, learned: Learned, splits: dict[str, Counts], on_progress: OnProgress
) -> None:
    """Write all files of a prepared dataset.

    folder: an empty folder. data: the keys that the corpus and the tokenizer are made from.
    splits: by split, the counts of pairs. The counts of tokens are added to them.
    on_progress: called with what is being done, how much is done, and how much there is.
    """
    (folder / TOKENIZER).write_bytes(learned.model)
    total = sum(counts["pairs"] for counts in splits.values())
    done = 0
    for name, counts in splits.items():
        if (folder / f"{name}.target.lengths").exists():
            continue  # they are those of another dataset
        pairs = used_pairs(name, corpus, data)
        while chunk := list(itertools.islice(pairs, CHUNK)):
            on_progress("encoding the dataset", done, total)
            done += len(chunk)
            for side, sentences in zip(SIDES, zip(*chunk, strict=True), strict=True):
                tokens = learned.tokenizer.encode(sentences, side)
                counts[f"{side}_pieces"] = counts.get(f"{side}_pieces", 0) + len(tokens.flat)
                _append(folder / f"{name}.{side}.tokens", tokens.flat.astype(token_type(data.vocab_size)).tobytes())
                _append(folder / f"{name}.{side}.lengths", tokens.lengths.tobytes())
                if name != "train":
                    _append(folder / f"{name}.{side}.txt", "".join(f"{line}\n" for line in sentences).encode())
    meta = {"corpus": corpus.description, "fingerprint": corpus.fingerprint, "settings": _settings(data)}
    write_json(folder / "meta.json", meta | {"splits": splits})


def _append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)
