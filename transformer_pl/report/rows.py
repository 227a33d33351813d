"""The rows of a table: the results of their trials, and everything that a table states about them."""

import itertools
import math
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from transformer_pl.config import CORPUS, SIZE_NAMES, Config, nominal_sizes
from transformer_pl.report import statistics as stats
from transformer_pl.report.published import PublishedRow, PublishedTable
from transformer_pl.report.statistics import RowComparison
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import Measure, task_of
from transformer_pl.trials import convergence
from transformer_pl.trials.convergence import Convergence
from transformer_pl.trials.identity import RESULT_TRAINER_KEYS, same_row
from transformer_pl.trials.result import Result, exemptions
from transformer_pl.trials.trial import Trial

ALPHA = 0.05  # level of significance
FEWEST_SENTENCES = 20  # for intervals and tests: the mean of fewer pseudo-values may be far from normal
LEARNED = 1.0  # a base with a lower score has learned next to nothing, and no row is compared with it
ORDER_IN_PAPER = (*(f"model.{name}" for name in SIZE_NAMES), "model.p_drop", "optim.eps_ls")  # columns of Table 3


class RowResults(NamedTuple):
    """The trials of one configuration, one per seed."""

    config: Config  # its seed has no meaning
    results: list[Result | None]  # by seed; None where the trial is not finished
    states: list[str]  # by seed
    sentences: np.ndarray | None = None  # (finished seeds, sentences, k + 2): the score's numbers, nats, tokens
    endings: Sequence[Convergence | None] = ()  # by seed; None where it is not known
    machines: Sequence[dict[str, Any]] = ()  # of the finished seeds, see `Trial.machine`
    name: str = ""  # what differs from base: `h=4`
    split: str = "val"  # the set that is reported
    title: str = ""  # the user's own name for it; empty: none
    text: Any = None  # identifies the text of this set; None: the keys of the dataset do
    refused: str = ""  # why it was not trained, with --skip-broken

    @property
    def dataset(self) -> Any:
        """What identifies the sentences that the row is evaluated on."""
        keys = ("task", *CORPUS, "source", "target", self.split)
        return self.text or [getattr(self.config.data, key) for key in keys], self.config.data.max_words

    @property
    def shown_name(self) -> str:
        """The user's own name for it, or else what differs from base."""
        return self.title or self.name

    @property
    def done(self) -> list[Result]:
        """The results of the finished seeds."""
        return [result for result in self.results if result]

    @property
    def measure(self) -> Measure:
        """The score that rows are compared by."""
        return task_of(self.config.data).measure

    @property
    def scores(self) -> list[float]:
        """The score of the set, one value per finished seed."""
        return self.values(f"{self.split}/{self.measure.name}")

    @property
    def params(self) -> int | None:
        return self.done[0].params if self.done else None

    @property
    def exempt(self) -> str:
        """The properties that its components break on purpose, with the reasons."""
        return exemptions(self.done)

    @property
    def scored_step(self) -> float | None:
        """The mean of the steps whose weights are scored (`decode.select`)."""
        return mean([result.scored_step for result in self.done])

    @property
    def flops(self) -> float | None:
        """The mean cost of a training."""
        return mean([result.flops for result in self.done])

    def has_tokens_of(self, other: "RowResults") -> bool:
        """Whether the row has the same tokens as another row, as far as that is known."""
        known = {result.vocabulary for row in (self, other) for result in row.done if result.vocabulary}
        return len(known) <= 1

    @property
    def has_learned(self) -> bool:
        """Whether the row is finished and its score is at least LEARNED; for a loss it is enough to be finished."""
        return bool(self.scores) and (self.measure.lower_is_better or (mean(self.scores) or 0.0) >= LEARNED)

    @property
    def convergence(self) -> Convergence | None:
        """How far the loss still fell, as the mean over the seeds; None where it is not known."""
        return convergence.mean_convergence(self.endings)

    @property
    def still_falls(self) -> bool:
        """Whether it is known that the row had not converged."""
        return self.convergence is not None and self.convergence.still_falls

    def values(self, metric: str) -> list[float]:
        """One value of the metric per finished seed."""
        return [result.metrics[metric] for result in self.done if metric in result.metrics]


@dataclass(frozen=True)
class TableRow:
    """What a table states about a row. Cells, the record in the CSV file and notes are all made from it."""

    results: RowResults
    settings: dict[str, Any]  # by config key
    published: PublishedRow | None  # the same row in the paper
    is_base: bool
    base: RowResults | None  # what differences are to; None where there is no base that has learned
    score: RowComparison | None
    loss: RowComparison | None
    printed_base: PublishedRow | None = None  # what the paper's differences are to
    is_reference: bool = False  # whether it is the base because --base names it

    @property
    def measure(self) -> Measure:
        """The score that rows are compared by."""
        return self.results.measure

    @property
    def scores(self) -> list[float]:
        """The score of the set, one value per finished seed."""
        return self.results.scores

    @property
    def still_falls(self) -> bool:
        """Whether it is known that the row had not converged."""
        return self.results.still_falls

    @property
    def label(self) -> str:
        """The paper's label as the paper prints it, such as (A). Base is always `base`."""
        label = self.published.label if self.published else ""
        printed = f"({label})" if len(label) == 1 else label
        return f"base {printed}".strip() if self.is_base and not self.is_reference and label != "base" else printed

    @property
    def title(self) -> str:
        """The name of the row, after its letter in the paper's table: `(A) h=4`; or the paper's word for it: `big`."""
        label = self.label
        if self.results.title:
            return self.results.title + (" (reference)" if self.is_reference else "")
        if self.is_reference:
            return f"{label if label[:1] == '(' else ''} {self.results.name} (reference)".strip()
        return label if self.is_base or (label and label[0] != "(") else f"{label} {self.results.name}".strip()

    def difference(self, metric: str | None = None) -> float | None:
        """Mean minus base's mean, of the score or of a metric.

        None where one of them is missing or was measured on another dataset.
        """
        metric = metric or f"{self.results.split}/{self.results.measure.name}"
        if self.is_base or self.base is None or self.results.dataset != self.base.dataset:
            return None
        value, of_base = mean(self.results.values(metric)), mean(self.base.values(metric))
        return None if value is None or of_base is None else value - of_base


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of no values."""
    return statistics.fmean(values) if values else None


def standard_deviation(values: Sequence[float]) -> float | None:
    """sqrt(sum (x - mean)^2 / (n - 1)); None of fewer than two values, and where one is infinite."""
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


def read_row(config: Config, trials: Sequence[Trial], name: str = "", split: str = "val") -> RowResults:
    """Read the results of a row's trials, as far as they are finished. name: what differs from base."""
    results, measure, sentences = [trial.result() for trial in trials], task_of(config.data).measure, None
    with suppress(InputError):  # the scores of the sentences are not here
        of_seeds = [trial.sentences(split, measure) for trial, done in zip(trials, results, strict=True) if done]
        sentences = np.stack(of_seeds) if of_seeds else None
    endings = [convergence.trial_convergence(trial) for trial in trials]
    machines = [trial.machine() for trial, done in zip(trials, results, strict=True) if done]
    states, text = [trial.state() for trial in trials], _text_of(config, trials, split)
    why = next((trial.status().get("why", "") for trial in trials if "refused" in states), "")
    return RowResults(config, results, states, sentences, endings, machines, name, split, text=text, refused=why)


def _text_of(config: Config, trials: Sequence[Trial], split: str) -> Any:
    """What identifies the text of a set, whatever the training text is; empty if digests of its files are not known."""
    fingerprint: dict[str, Any] = next(
        (inputs["data"] for trial in trials if "data" in (inputs := trial.identity_inputs())), {}
    )
    files = {name: digest for name, digest in fingerprint.get("files", {}).items() if name.startswith(f"{split}.")}
    return files and [config.data.task, config.data.source, config.data.target, files]


def make_table_rows(
    rows: Sequence[RowResults], base: Config | None, paper: PublishedTable | None, reference: int | None = None
) -> list[TableRow]:
    """Compare every row with base and find it in the paper's table; the arguments are those of `build_table`."""
    configs = [row.config for row in rows]
    compared = base if reference is None else configs[reference]
    are_base = [compared is not None and same_row(config, compared) for config in configs]
    index = next((i for i, row in enumerate(rows) if are_base[i] and row.has_learned), None)
    base_row = None if index is None else rows[index]
    of_base = next(itertools.compress(rows, are_base), None)
    same_dataset = [of_base is not None and row.dataset == of_base.dataset for row in rows]
    same_tokens = [
        same and of_base is not None and row.has_tokens_of(of_base)
        for row, same in zip(rows, same_dataset, strict=True)
    ]
    weights = [[result.weights_id for result in row.done] for row in rows]
    enough = [row.sentences is not None and row.sentences.shape[1] >= FEWEST_SENTENCES for row in rows]
    sentences = [row.sentences if is_enough else None for row, is_enough in zip(rows, enough, strict=True)]
    scores = stats.compare_rows(sentences, index, stats.of_measure(rows[0].measure), same_dataset, weights)
    losses = stats.compare_rows(sentences, index, stats.LOSS, same_tokens, weights)
    published = paper.find_all(configs, [row.name for row in rows], base) if paper else [None] * len(rows)
    printed_base = None  # there are no differences between numbers of another set than ours
    if paper and paper.split == rows[0].split:
        printed_base = paper.base if reference is None else published[reference]
    return [
        TableRow(
            row,
            row_settings(row.config),
            printed,
            is_base,
            base_row,
            score,
            loss,
            printed_base,
            is_base and reference is not None,
        )
        for row, printed, is_base, score, loss in zip(rows, published, are_base, scores, losses, strict=True)
    ]


def row_settings(config: Config) -> dict[str, Any]:
    """The settings that tell rows apart: nominal values in the paper's order, d_k and d_v filled in.

    Seed and hardware (`trainer.*`) are left out, but for the trainer keys that change a result.
    """
    flat = config.flat() | nominal_sizes(config.model)
    keys = dict.fromkeys([*ORDER_IN_PAPER, *flat])
    return {key: flat[key] for key in keys if key in RESULT_TRAINER_KEYS or not key.startswith(("seed", "trainer."))}
