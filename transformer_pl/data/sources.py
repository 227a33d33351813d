"""Where text comes from (Section 5.1): the synthetic corpus, a folder, or a dataset of the hub.

A corpus is read as a stream, as often as needed. An error in it names the file and the line.
"""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from transformer_pl.component_sources import is_own_task, task_digest
from transformer_pl.components import described
from transformer_pl.config import Data
from transformer_pl.data.corpus import Corpus, Pair
from transformer_pl.data.files import folder_corpus
from transformer_pl.data.hub import hub_corpus, local_copy
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import task_of


def open_corpus(data: Data) -> Corpus:
    """Return the corpus that `data` names, as its task reads it. Its text is not read yet.

    The path and the code of a task from outside of the project are part of the fingerprint. Raises an InputError if
    something is missing or ambiguous. `pairs` raises one for text that cannot be read.
    """
    corpus = _of_own_task(data) if is_own_task(data) else task_of(data).corpus(data)
    return corpus if data.train_pairs is None else _shortened(corpus, data.train_pairs)


def parallel_text(data: Data) -> Corpus:
    """Return the sentences in two languages that `data` names: see `open_corpus`."""
    if data.source == data.target:
        raise InputError(f"data.source = {data.source}: must differ from data.target, but does not; set one of them")
    if data.path is not None:
        return folder_corpus(data.path, data)
    if data.hub is None:
        return _synthetic(data)
    copy = local_copy(data)
    return folder_corpus(copy, data) if copy else hub_corpus(data)


def _of_own_task(data: Data) -> Corpus:
    """What a task from outside of the project returns. Any error in its code becomes an InputError."""

    @contextmanager
    def told() -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            place = f"data.task = {data.task}: corpus must return a Corpus that can be read"
            raise InputError(f"{place}, but fails at {described(error)}; fix the task") from None

    def pairs(split: str) -> Iterator[Pair]:
        with told():
            for source, target in corpus.pairs(split):
                if "\n" in source or "\n" in target:
                    raise ValueError(f"a newline is in the pair {source!r}, {target!r}")
                yield source, target

    with told():
        corpus = task_of(data).corpus(data)
        if not isinstance(corpus, Corpus):
            raise TypeError(f"it returns {corpus!r}")
        fingerprint = corpus.fingerprint | {"task": data.task, "code": task_digest(data)["task"]}
        json.dumps(fingerprint)
        return replace(corpus, fingerprint=fingerprint, pairs=pairs)


def _shortened(corpus: Corpus, count: int) -> Corpus:
    """The corpus with only the first `count` pairs of its training split."""

    def pairs(split: str) -> Iterator[Pair]:
        if split != "train":
            yield from corpus.pairs(split)
            return
        number = 0
        for pair in itertools.islice(corpus.pairs(split), count):
            number += 1
            yield pair
        if number < count:
            raise InputError(
                f"data.train_pairs = {count:,}: must be at most the training pairs of the text, but "
                f"{corpus.description} has {number:,}; lower it, or leave it out for all"
            )

    return replace(
        corpus,
        fingerprint=corpus.fingerprint | {"train_pairs": count},
        description=f"the first {count:,} training pairs of {corpus.description}",
        pairs=pairs,
    )


def _synthetic(data: Data) -> Corpus:
    from transformer_pl.data import synthetic

    if {data.source, data.target} != {"en", "de"}:
        raise InputError(
            f"data.source = {data.source}, data.target = {data.target}: must be en and de, the languages of the "
            f"synthetic corpus; name your own text with data.path=FOLDER"
        )

    def pairs(split: str) -> Iterator[Pair]:
        from_german = data.source == "de"
        return ((de, en) if from_german else (en, de) for en, de in synthetic.pairs(split))

    fingerprint = {"corpus": "embedded", "version": synthetic.VERSION}
    return Corpus(fingerprint, f"the synthetic corpus, version {synthetic.VERSION}", pairs)
