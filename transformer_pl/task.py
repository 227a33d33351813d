"""The interface between the framework and a task: what is read, and what is scored.

`data.task` is the import path of a class. There is no registry: a task is a file, anywhere importable.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import index
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from transformer_pl.config import Component, Config, Data
from transformer_pl.config.component_sources import task_digest
from transformer_pl.config.components import build_derived
from transformer_pl.config.option_files import file_contents
from transformer_pl.runtime.errors import InputError, described, shown

TOLERANCE = 0.01  # by how much a score may differ from the measure's score of the sums, because of rounding
LOSSES = ("val/ppl", "val/loss")  # metrics of every validation, whatever the task

Pair = tuple[str, str]  # source and target; the source is empty in a task without one
SPLITS = ("train", "val", "test")
EVALUATION = ("val", "test")  # the splits that keep every pair, and whose sentences are stored beside their tokens


@dataclass(frozen=True)
class Corpus:
    """Pairs of sentences in three splits.

    fingerprint: plain values that identify the pairs, wherever they lie.
    description: one line for people.
    pairs: train, val or test -> its sentences (source, target) from the beginning; no sentence holds a newline.
    is_local: whether it can be read without a download.
    """

    fingerprint: dict[str, Any]
    description: str
    pairs: Callable[[str], Iterator[Pair]]
    is_local: bool = True


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
    mistakes = []
    if task.has_source and N == 0:
        other = "data.task=transformer_pl.tasks.language_model.LanguageModel"
        mistakes.append(f"model.N_encoder = 0: must be at least 1 for {name}, which reads a source; or set {other}")
    if not task.has_source:
        if N != 0:
            rule = f"must be 0 for {name}, which has no source for an encoder; set model.N_encoder=0"
            mistakes.append(f"model.N_encoder = {'unset' if N is None else N}: {rule}")
        if config.trainer.val_sample:
            rule = f"must be 0 for {name}, which is scored by the loss of a whole set; leave it out"
            mistakes.append(f"trainer.val_sample = {config.trainer.val_sample}: {rule}")
        unused = {f"decode.{key}": getattr(config.decode, key) for key in ("beam", "alpha")}
        unused["model.cross_attention"] = config.model.cross_attention.path
        defaults = Config().flat()
        changed = [f"{key} = {value}" for key, value in unused.items() if value != defaults[key]]
        mistakes += [f"{setting}: changes nothing with {name}; leave it out" for setting in changed]
    if mistakes:
        raise InputError(*mistakes)


def open_corpus(data: Data) -> Corpus:
    """The corpus of the task that `data` names: see `Task.corpus`.

    The path and the code of a task from outside of the project are part of the fingerprint, and so is the text that the
    tokenizer learns from. Raises an InputError also for any other error of such a task.
    """
    if data.vocabulary_from is not None:
        corpus = open_corpus(data.model_copy(update={"vocabulary_from": None}))
        learned = {"vocabulary_from": open_corpus(data.of_vocabulary).fingerprint}
        return replace(corpus, fingerprint=corpus.fingerprint | learned)
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
