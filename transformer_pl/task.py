"""The interface between the framework and a task: what is read, and what is scored.

`data.task` is the import path of a class. There is no registry: a task is a file, anywhere importable.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from transformer_pl.components import described, import_component
from transformer_pl.runtime.errors import InputError, shown

if TYPE_CHECKING:
    import numpy as np

    from transformer_pl.config import Config, Data
    from transformer_pl.data.corpus import Corpus


LOWEST, HIGHEST = 0.0, 100.0  # values of every measure
LOSSES = ("val/ppl", "val/loss")  # metrics of every validation, whatever the task


class Measure(NamedTuple):
    """The score that a table compares rows by, from 0 to 100; higher is better.

    It is a function of sums over sentences, so that its statistics know what each sentence contributes.
    """

    name: str  # in files: `bleu` is val/bleu and test/bleu
    title: str  # in tables, such as BLEU
    numbers: int  # k: how many are stored of each sentence
    of_sums: "Callable[[np.ndarray], np.ndarray]"  # sums of the numbers of sentences (..., k) -> scores (...)


class Scores(NamedTuple):
    """The scores of a whole set."""

    metrics: dict[str, float]  # by name, the measure's among them
    statistics: list[list[int]]  # k numbers from 0 of each sentence; the last one depends on the reference alone
    signature: str  # how the measure was computed


class Task(ABC):
    """What is read, and what is scored. Source and target are single lines of text, whatever they stand for."""

    measure: ClassVar[Measure]
    others: ClassVar[dict[str, str]] = {}  # metrics beside it, with their titles in tables; higher is better
    described: ClassVar[str]  # what the measure is, for the note under a table
    text: ClassVar[str] = "the task's own text"  # what is read where the data keys name nothing, for that note
    published: ClassVar[str | None] = None  # the paper's rows: a file of reporting/published

    @abstractmethod
    def corpus(self, data: "Data") -> "Corpus":
        """The pairs of source and target lines that `data` names. Their text is not read yet.

        Raises an InputError if something is missing or ambiguous. Reading the pairs raises one for text that cannot be
        used.
        """

    @abstractmethod
    def score(self, hypotheses: Sequence[str], references: Sequence[str], config: "Config") -> Scores:
        """Score the outputs of a whole set against its references, line by line."""

    @abstractmethod
    def score_one(self, hypothesis: str, reference: str, config: "Config") -> float:
        """The measure of a single sentence."""

    @property
    def metrics(self) -> list[str]:
        """The names of its scores on the validation set, the measure's first."""
        return [f"val/{name}" for name in (self.measure.name, *self.others)]

    @property
    def sample_metric(self) -> str:
        """The name of the measure of a few sentences during training (`trainer.bleu_sample`)."""
        return f"val/{self.measure.name}_sample"

    def sides(self, data: "Data") -> tuple[str, str]:
        """What people call source and target."""
        return data.source, data.target


def best_goal(metric: str) -> Literal["minimize", "maximize"]:
    """Which way a metric of a validation is better: a loss, or a score of the task."""
    return "minimize" if metric in LOSSES else "maximize"


def task_of(data: "Data") -> Task:
    """The task that `data.task` names. Raises an InputError for a path that holds none."""
    return _task_at(data.task)


def check_task(data: "Data") -> list[str]:
    """What is wrong with the task that `data.task` names."""
    try:
        task_of(data)
    except InputError as error:
        return list(error.messages)
    return []


def checked_scores(hypotheses: Sequence[str], references: Sequence[str], config: "Config") -> Scores:
    """What the task's `score` returns, in Python's own numbers. Raises an InputError if it is not as `Scores` says."""
    task = task_of(config.data)
    scores = task.score(hypotheses, references, config)
    place, name = f"data.task = {config.data.task}: score must return", task.measure.name
    if not (isinstance(scores, Scores) and isinstance(scores.metrics, Mapping)):
        raise InputError(f"{place} Scores with a dict of metrics, but returns {shown(repr(scores))}; fix score")
    mistakes = []
    if name not in scores.metrics:
        mistakes.append(f"{place} the metric {name}, its measure, but returns {shown(dict(scores.metrics))}; add it")
    if wrong := {metric: value for metric, value in scores.metrics.items() if not _is_metric(metric, value)}:
        mistakes.append(f"{place} metrics that are finite numbers by name, but returns {shown(wrong)}; fix score")
    statistics = _whole_numbers(scores.statistics)
    if [len(row) for row in statistics] != [task.measure.numbers] * len(references):
        mistakes.append(
            f"{place} statistics of {task.measure.numbers} whole numbers from 0 for each of {len(references)} lines, "
            f"but returns {shown(scores.statistics)}; fix score or measure"
        )
    if not isinstance(scores.signature, str):
        mistakes.append(f"{place} a signature that is text, but returns {shown(scores.signature)}; fix score")
    if mistakes:
        raise InputError(*mistakes)
    return Scores({metric: float(value) for metric, value in scores.metrics.items()}, statistics, scores.signature)


def _is_metric(name: object, value: object) -> bool:
    return isinstance(name, str) and isinstance(value, Real) and math.isfinite(value)


def _whole_numbers(rows: Any) -> list[list[int]]:
    """Rows of whole numbers from 0, as Python's own; nothing if they are anything else."""
    try:
        numbers = [[index(number) for number in row] for row in rows]
    except TypeError:
        return []
    return [] if any(number < 0 for row in numbers for number in row) else numbers


@cache
def _task_at(path: str) -> Task:
    try:
        task = import_component(path)
    except InputError as error:
        raise InputError(*(f"data.task = {message}" for message in error.messages)) from None
    if not issubclass(task, Task):
        raise InputError(f"data.task = {path}: must be a class derived from transformer_pl.task.Task, but is not")
    if missing := sorted(task.__abstractmethods__):
        raise InputError(f"data.task = {path}: must have the method {missing[0]}, but has not; add it")
    for name in ("measure", "described"):
        if not hasattr(task, name):
            raise InputError(f"data.task = {path}: must have the attribute {name}, but has not; add it")
    if not isinstance(task.measure, Measure):
        raise InputError(
            f"data.task = {path}: measure must be a transformer_pl.task.Measure, but is {shown(repr(task.measure))}"
        )
    try:
        made = task()
    except Exception as error:
        raise InputError(
            f"data.task = {path}: must be made without arguments, but fails at {described(error)}"
        ) from None
    try:
        inspect.signature(made.score_one).bind("hypothesis", "reference", "config")
    except TypeError:
        raise InputError(
            f"data.task = {path}: must have the method score_one(self, hypothesis, reference, config), but it takes "
            f"{inspect.signature(made.score_one)}"
        ) from None
    return made
