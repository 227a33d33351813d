"""The interface between the framework and a task: what is read, and what is scored.

`data.task` is the import path of a class. There is no registry: a task is a file, anywhere importable.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import index
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from transformer_pl.config import KEYS, Component, Config, Data
from transformer_pl.config.component_sources import task_digest
from transformer_pl.config.components import build_derived, carrying, is_consecutive, unused_hooks
from transformer_pl.config.option_files import file_contents
from transformer_pl.runtime.errors import InputError, described, shown

TOLERANCE = 0.01  # by how much a score may differ from the measure's score of the sums, because of rounding
LOSSES = ("val/ppl", "val/loss")  # metrics of every validation, whatever the task

Pair = tuple[str, str]  # source and target; the source is empty in a task without one


class PairOfDocument(Pair):
    """A pair that knows its document: pairs with equal values are of one document."""

    document: Any = None


def of_document(pair: Pair, document: Any) -> PairOfDocument:
    """The pair, which is of this document."""
    known = PairOfDocument(pair)
    known.document = document
    return known


def by_blank(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Lines of text, where a line that is blank on both sides ends a document."""
    document = 0
    for pair in pairs:
        yield of_document(pair, document)
        document += not any(map(str.strip, pair))


SPLITS = ("train", "val", "test")
BY_SPLIT = ("files", "trees", "splits")  # entries of a fingerprint that are mappings by split


@dataclass(frozen=True)
class Corpus:
    """Pairs of sentences in three splits.

    fingerprint: plain values that identify the pairs, wherever they lie. What it says of each split by itself stands in
        mappings called as in BY_SPLIT, by `test` or `test.de`, so that another test set is no other training.
    description: one line for people.
    pairs: train, val or test -> its sentences (source, target) from the beginning; no sentence holds a newline.
    is_local: whether it can be read without a download.
    is_unchanged: whether the files of its pairs are still those that the fingerprint is of.
    """

    fingerprint: dict[str, Any]
    description: str
    pairs: Callable[[str], Iterator[Pair]]
    is_local: bool = True
    is_unchanged: Callable[[], bool] = lambda: True


def training_fingerprint(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """A fingerprint without what is of the test set alone: texts with equal ones give equal trainings."""
    kept = {key: value for key, value in fingerprint.items() if key != "sets"}
    for name in BY_SPLIT:
        if isinstance(by_split := kept.get(name), Mapping):
            kept[name] = {key: value for key, value in by_split.items() if key.partition(".")[0] != "test"}
    if isinstance(learned := kept.get("vocabulary_from"), Mapping):
        kept["vocabulary_from"] = training_fingerprint(learned)
    return kept


class Measure(NamedTuple):
    """The score that a table compares rows by.

    It is a function of sums over sentences, so that statistics can resample the sentences.
    """

    name: str  # in files: `bleu` is val/bleu and test/bleu
    title: str  # in tables, such as BLEU
    numbers: int  # k: how many are stored of each sentence
    of_sums: Callable[[np.ndarray], np.ndarray]  # sums of the numbers of sentences (..., k) -> scores (...)
    of_loss: bool = False  # whether `of_sums` also takes the sums of nats and tokens of the references: (..., k + 2)
    highest: float = 100.0  # of all values; the lowest is 0
    lower_is_better: bool = False
    digits: int = 1  # behind the point in tables, at least

    def score(self, sums: np.ndarray) -> np.ndarray:
        """The scores (...) of what is stored of sentences, summed (..., k + 2): k numbers, nats, tokens."""
        return self.of_sums(sums if self.of_loss else sums[..., : self.numbers])


class Scores(NamedTuple):
    """The scores of a whole set."""

    metrics: dict[str, float]  # by name, the measure's among them
    statistics: list[list[int]]  # k numbers from 0 of each sentence; the last one depends on the reference alone
    signature: str  # how the measure was computed


class Task(ABC):
    """What is read, and what is scored. Source and target are single lines of text, whatever they stand for.

    A task without a source is that of a language model: texts are read as targets, and the model is a decoder alone.
    Its texts are scored by their loss, and `score` gets no hypotheses.
    """

    measure: ClassVar[Measure]
    others: ClassVar[dict[str, str]] = {}  # further metrics, with their titles in tables; higher is better
    described: ClassVar[str]  # what the measure is, for the note under a table
    text: ClassVar[str] = "the task's own dataset"  # for the same note: what is read if no data key names a text
    published: ClassVar[str | None] = None  # the file of report/published with the paper's rows
    has_source: ClassVar[bool] = True
    unit: ClassVar[str] = "pair"  # what an item of the dataset is called

    @abstractmethod
    def corpus(self, data: Data) -> Corpus:
        """The dataset that `data` names. Its pairs are not read yet.

        Raises an InputError if something is missing or ambiguous. Reading the pairs raises one for what cannot be used.
        """

    @abstractmethod
    def score(self, hypotheses: Sequence[str], references: Sequence[str], config: Config) -> Scores:
        """Score the outputs of a whole set against its references, line by line."""

    @property
    def metrics(self) -> list[str]:
        """The names of its scores on the validation set, the measure's first."""
        return [f"val/{name}" for name in (self.measure.name, *self.others)]

    @property
    def sample_metric(self) -> str:
        """The name of the measure of a few sentences during training (`trainer.val_sample`)."""
        return f"val/{self.measure.name}_sample"

    def scoring(self, data: Data) -> str:
        """What the measure is, for the plan. A task whose measure depends on the dataset says more than `described`."""
        return self.described

    def check_references(self, data: Data, references: Iterable[str]) -> None:  # noqa: B027
        """Raise an InputError for the references of an evaluation set that `score` cannot score."""

    def sides(self, data: Data) -> tuple[str, str]:
        """What people call source and target."""
        return data.source, data.target


def best_goal(metric: str, task: Task) -> Literal["minimize", "maximize"]:
    """Whether a lower or a higher value of a validation's metric is better: a loss, or a score of the task."""
    is_lower_better = metric in LOSSES or (task.measure.lower_is_better and metric == task.metrics[0])
    return "minimize" if is_lower_better else "maximize"


@cache
def task_of(data: Data) -> Task:
    """The task that `data.task` names. Raises an InputError for a path that holds none."""
    task = build_derived("data.task", Component(path=data.task), Task)
    if not isinstance(getattr(task, "measure", None), Measure) or not isinstance(getattr(task, "described", None), str):
        raise InputError(
            f"data.task = {data.task}: must have a Measure as `measure` and a text as `described`; add them"
        )
    return task


def check_task(config: Config) -> None:
    """Raise an InputError for a path that holds no task, and for a model that does not fit the task."""
    task, name, N = task_of(config.data), config.data.task, config.model.N_encoder
    mistakes = [f"data.task = {name}: {rule}" for rule in unused_hooks("data.task", task)]
    if not task.has_source:
        if N != 0:
            rule = f"must be 0 for {name}, which has no source for an encoder; set model.N_encoder=0"
            mistakes.append(f"model.N_encoder = {'unset' if N is None else N}: {rule}")
        if config.trainer.val_sample:
            rule = f"must be 0 for {name}, which is scored by the loss of a whole set; leave it out"
            mistakes.append(f"trainer.val_sample = {config.trainer.val_sample}: {rule}")
    unused = ["model.cross_attention"] if N == 0 else []
    unused += ["data.pieces", "decode.stride"] if task.has_source else ["decode.beam", "decode.alpha", "data.bleu"]
    flat = config.flat()
    changed = [f"{key} = {flat[key]}" for key in unused if flat[key] != KEYS[key]]
    without = f"{name}{' and model.N_encoder = 0' * (task.has_source and N == 0)}"
    mistakes += [f"{setting}: changes nothing with {without}; leave it out" for setting in changed]
    mistakes += _mistakes_of_order(config, task)
    if mistakes:
        raise InputError(*mistakes)


def _mistakes_of_order(config: Config, task: Task) -> Iterator[str]:
    """What must hold where a part of the model carries something to the next batch, or batches are consecutive."""
    batches, carry = f"data.batches = {config.data.batches.path}", carrying(config.model)
    consecutive = is_consecutive(config)
    settings = [*(f"model.{slot} = {part.path}" for slot, part in carry.items()), *([batches] if consecutive else [])]
    if task.has_source or config.data.pieces != "joined":
        why = "set data.pieces=joined, as each piece begins anew"
        if task.has_source:
            why = f"leave it out, as {config.data.task} has pairs, of which none goes on with another"
        yield from (f"{setting}: goes on from a piece of a document to the next; {why}" for setting in settings)
    elif carry and not consecutive:
        yield f"{batches}: must say consecutive = True with {settings[0]}, which carries something; name such a class"
    if carry and config.decode.stride is not None:
        why = f"pieces that overlap cannot go on from each other, as {settings[0]} does"
        yield f"decode.stride = {config.decode.stride}: {why}; leave it out"
    if config.decode.memory is not None and not carrying(config.model, "memory"):
        why = "needs a part of the model with carries = True and an option memory"
        yield f"decode.memory = {config.decode.memory}: {why}; name one, or leave it out"


def open_corpus(data: Data) -> Corpus:
    """The corpus of the task that `data` names: see `Task.corpus`. `is_unchanged` hashes a text again.

    The path and the code of a task from outside of the project are part of the fingerprint, and so is the text that the
    tokenizer learns from. Raises an InputError also for any other error of such a task.
    """
    if data.vocabulary_from is not None:
        corpus = open_corpus(data.model_copy(update={"vocabulary_from": None}))
        learned = open_corpus(data.of_vocabulary)
        fingerprint = corpus.fingerprint | {"vocabulary_from": learned.fingerprint}
        of_both = [corpus.is_unchanged, learned.is_unchanged]
        return replace(corpus, fingerprint=fingerprint, is_unchanged=lambda: all(holds() for holds in of_both))
    corpus = _with_sets(_opened(data), data)

    def is_unchanged() -> bool:
        return corpus.is_unchanged() and (
            not corpus.is_local or _with_sets(_opened(data), data).fingerprint == corpus.fingerprint
        )

    return replace(corpus, is_unchanged=is_unchanged)


def _with_sets(corpus: Corpus, data: Data) -> Corpus:
    """The corpus with the further sets as splits. Raises an InputError."""
    heading, further = corpus.fingerprint.get("heading"), dict[str, Corpus]()
    for name, of_set in data.further.items():
        try:
            further[name] = _opened(of_set.model_copy(update={"heading": heading}))
        except InputError as error:
            raise InputError(*(f"data.sets: {name}: {message}" for message in error.messages)) from None
    if not further:
        return corpus
    of_all = [corpus, *further.values()]
    return Corpus(
        corpus.fingerprint | {"sets": {name: of_set.fingerprint for name, of_set in further.items()}},
        "; ".join([corpus.description, *(f"{name}: {of_set.description}" for name, of_set in further.items())]),
        lambda split: further[split].pairs("test") if split in further else corpus.pairs(split),
        corpus.is_local,
        lambda: all(one.is_unchanged() for one in of_all),
    )


def _opened(data: Data) -> Corpus:
    """The corpus of a task, with the code of a task from outside of the project in its fingerprint."""
    task = task_of(data)
    digest = task_digest(data)
    if not digest:  # the core's
        return task.corpus(data)
    try:
        corpus = task.corpus(data)
        json.dumps(corpus.fingerprint)
        own = {"task": data.task, "code": digest["task"]} | file_contents(Component(path=data.task), 0)
        return replace(corpus, fingerprint=corpus.fingerprint | own)
    except InputError:
        raise
    except Exception as error:
        rule = "corpus must return a Corpus whose fingerprint has plain values, as JSON has them"
        raise InputError(f"data.task = {data.task}: {rule}, but fails at {described(error)}; fix it") from None


def checked_scores(hypotheses: Sequence[str], references: Sequence[str], config: Config) -> Scores:
    """What the task's `score` returns, in Python's own numbers. Raises an InputError if it is not as `Scores` says.

    If the measure is of the loss (`of_loss`), its score is not among these metrics: the evaluation adds it.
    """
    measure = task_of(config.data).measure
    scores = task_of(config.data).score(hypotheses, references, config)
    try:
        metrics = {str(name): float(value) for name, value in scores.metrics.items()}
        statistics = [[index(number) for number in row] for row in scores.statistics]
        is_finite = (measure.of_loss or measure.name in metrics) and bool(np.isfinite([*metrics.values()]).all())
        is_right = is_finite and np.shape(statistics) == (len(references), measure.numbers) and np.min(statistics) >= 0
        if is_right and not measure.of_loss:
            score = measure.of_sums(np.sum(statistics, 0))
            is_right = bool(abs(score - metrics[measure.name]) < TOLERANCE)
    except (AttributeError, TypeError, ValueError):
        is_right = False
    if not is_right:
        numbers = (
            f"{measure.numbers} whole numbers from 0 for each line, from whose sums the measure computes the same score"
        )
        form = f"finite metrics with {measure.name}, and {numbers}"
        raise InputError(f"data.task = {config.data.task}: score must return {form}, not {shown(repr(scores))}; fix it")
    return Scores(metrics, statistics, str(scores.signature))
