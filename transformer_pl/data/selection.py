"""Chooses which splits and pairs of a dataset are used: all but training pairs with an empty sentence.

Pairs of two blank lines, which end documents, are used in no split.

`data.max_words` leaves longer pairs out of all splits, and `data.train_pairs` takes the first that remain for training.

In a dataset without sources (see `Task`), all documents but empty ones are used, in every split.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator

from transformer_pl.config import Data, TestSet
from transformer_pl.runtime.errors import InputError, collect_errors, shown
from transformer_pl.task import Corpus, Pair, task_of

COUNTED_EVERY = 10_000  # pairs between two reports of progress
BEGINNINGS = {"train": ("train",), "val": ("val", "dev"), "test": ("test",)}

# `pairs`: those that are used; `blank`: those that are left out; in an evaluation set also LEAKS
Counts = dict[str, int]
LEAKS = {"seen": "also training {unit}s", "equal": "the same text on both sides"}
OnProgress = Callable[[str, int, int | None], None]  # what is being done, how far, and how far in all, if known


def used_pairs(name: str, corpus: Corpus, data: Data, counts: Counts | None = None) -> Iterator[Pair]:
    """The pairs of a split that are used, in their order. Raises an InputError for the first mistake in it.

    counts: here every pair that is read is counted.
    """
    counts = {} if counts is None else counts
    is_train, task = name == "train", task_of(data)
    short = (numbered for numbered in enumerate(corpus.pairs(name), start=1) if _is_short(numbered[1], data))
    for number, pair in itertools.islice(short, data.train_pairs if is_train else None):
        if any("\n" in sentence for sentence in pair):
            place = f"{name}, {task.unit} {number}"
            raise InputError(f"{place}: must have no newline, but is {shown(pair)}; replace it by a blank")
        # What must not be empty
        with_text = pair[1:] if not task.has_source else pair if is_train else ("".join(pair),)
        kind = "pairs" if all(sentence.split() for sentence in with_text) else "blank"
        counts[kind] = counts.get(kind, 0) + 1
        if kind == "pairs":
            yield pair


def used_documents(name: str, corpus: Corpus, data: Data) -> list[int] | None:
    """The document of each used pair of a split, from 0; None where they are not known."""
    documents = [getattr(pair, "document", None) for pair in used_pairs(name, corpus, data)]
    numbers = {document: number for number, document in enumerate(dict.fromkeys(documents))}
    return None if None in numbers else [numbers[document] for document in documents]


def _is_short(pair: Pair, data: Data) -> bool:
    """Whether no sentence has more words than `data.max_words` allows."""
    return data.max_words is None or all(len(sentence.split()) <= data.max_words for sentence in pair)


def count_pairs(corpus: Corpus, data: Data, on_progress: OnProgress) -> dict[str, Counts]:
    """Read a whole dataset and count the pairs of each split. Raises an InputError for a mistake in it."""
    splits: dict[str, Counts] = {name: {"pairs": 0} for name in ("train", *data.evaluated)}
    unseen = {name: Counter[Pair]() for name in data.evaluated}  # pairs that no training pair read so far equals
    for name in (*data.evaluated, "train"):
        counts = splits[name]
        for number, pair in enumerate(used_pairs(name, corpus, data, counts)):
            if number % COUNTED_EVERY == 0:
                on_progress("reading the dataset", number, None)
            if name == "train":
                for pairs in unseen.values():
                    pairs.pop(pair, None)
            else:
                unseen[name][pair] += 1
                counts["equal"] = counts.get("equal", 0) + bool(pair[0].strip() and pair[0] == pair[1])
        _check_counts(name, counts, corpus, data)
        if name in unseen:
            task_of(data).check_references(data, (target for _, target in unseen[name].elements()))
    for name in unseen:
        splits[name]["seen"] = splits[name]["pairs"] - unseen[name].total()
    return splits


def _check_counts(name: str, counts: Counts, corpus: Corpus, data: Data) -> None:
    """Raise an InputError for a split with too few pairs."""
    read = sum(counts.values())
    short = f" of at most data.max_words = {data.max_words} words" if data.max_words else ""
    if name == "train" and data.train_pairs and read < data.train_pairs:
        rule = f"must be at most {read:,}, all {task_of(data).unit}s{short} that there are"
        raise InputError(f"data.train_pairs = {data.train_pairs:,}: {rule}; lower it, or use all of them with None")
    if not counts["pairs"]:
        what = "pair with text on both sides" if task_of(data).has_source else "line with text"
        raise InputError(f"{corpus.description}: {name} must hold a {what}{short}, but has none; add one")


def leaks(counts: dict[str, Counts], unit: str) -> list[str]:
    """A sentence for each kind of evaluation pairs that make a score look too good. unit: what a pair is called."""
    sentences = []
    for name, of_set in counts.items():
        for leak, what in LEAKS.items():
            if count := of_set.get(leak, 0):
                of_all = f"{count:,} of the {of_set['pairs']:,} {name} {unit}s"
                sentences.append(f"{of_all} are {what.format(unit=unit)}")
    return sentences


def choose_splits(
    names: Collection[str], data: Data, place: str, hint: str = "", there: Collection[str] = ()
) -> dict[str, str]:
    """Return the name of each split: the name in `data`, or else the only one with the usual beginning.

    hint: what an error message adds about names. there: what it says is there in place of `names`.
    """

    def choose(role: str) -> str:
        wanted = getattr(data, role)
        candidates = [name for name in names if (name == wanted if wanted else name.startswith(BEGINNINGS[role]))]
        if len(candidates) == 1:
            return candidates[0]
        rule = f"named {wanted}" if wanted else f"that begins with {' or '.join(BEGINNINGS[role])}"
        remedy = "name it as FOLDER:NAME" if isinstance(data, TestSet) else f"name it with data.{role}=NAME"
        holds = shown(", ".join(candidates or there or names) or "nothing")
        raise InputError(f"{place}: must hold one split {rule}, but holds {holds}; {remedy}{hint}")

    return collect_errors(choose, data.splits)
