"""The rows of a sweep, each made once from the results of its trials.

A row holds numbers and names. What else a table says of the trials is in `facts.py`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import numpy as np

from transformer_pl.config import CORPUS, SIZE_NAMES, Config, custom_components, nominal_sizes, sizes
from transformer_pl.config.components import build
from transformer_pl.data.selection import used_documents
from transformer_pl.data.tokens import evenly_spaced
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.runtime.digests import value_digest
from transformer_pl.runtime.errors import InputError
from transformer_pl.table.columns import differing_keys
from transformer_pl.table.notes import FEWEST_SENTENCES
from transformer_pl.table.row import LookedAt, Printed, Row, mean
from transformer_pl.table.statistics import Sample, Score, by_cluster, sample
from transformer_pl.task import Measure, Task, task_of
from transformer_pl.trials import convergence
from transformer_pl.trials.identity import RESULT_TRAINER_KEYS
from transformer_pl.trials.metrics import LOSS_COLUMNS, SCORE_COLUMNS
from transformer_pl.trials.result import Result, exemptions
from transformer_pl.trials.trial import Trial
from transformer_pl.trials.trial_folder import TrialFolder

ORDER_IN_PAPER = (*(f"model.{name}" for name in SIZE_NAMES), "model.p_drop", "optim.eps_ls")  # columns of Table 3
TRIED_STEPS = 50  # at which learning rates of a longer and a shorter training are compared


class Grid(NamedTuple):
    """A sweep with its trials, but for those that its looks have made needless."""

    sweep: Sweep
    trials: Sequence[Trial]
    looked_at: LookedAt | None = None  # what a table states of the looks, if there were some

    @property
    def task(self) -> Task:
        """That of all rows."""
        return task_of(self.sweep.base.data)

    @property
    def results(self) -> list[Result]:
        """Those of the trials that are finished."""
        return [result for trial in self.trials if (result := trial.folder.result())]

    @property
    def further(self) -> list[str]:
        """The names of the further sets, of all rows."""
        return list(dict.fromkeys(name for row in self.sweep.rows for name in row.configs[0].data.further))

    @property
    def is_selected(self) -> bool:
        """Whether a row is scored after the step of its best validation."""
        return any(row.configs[0].decode.select != "last" for row in self.sweep.rows)

    def of_row(self, place: int) -> list[Trial]:
        """The trials of a row, by its place in the sweep."""
        return [trial for trial in self.trials if trial.place == place]

    def named_trials(self, rows: Sequence[Row]) -> list[tuple[str, Trial]]:
        """The trials in the order of the rows of a table, each with the name that the row has there."""
        return [(row.shown_name, trial) for row in rows for trial in self.trials if self.name_of(trial) == row.name]

    def name_of(self, trial: Trial) -> str:
        """What the row of a trial is called."""
        return self.sweep.rows[trial.place].name


class CorpusScore(NamedTuple):
    """A score of a whole set, and which of the stored numbers of a sentence it needs."""

    score: Score
    columns: slice
    reference_column: int  # its numbers depend on the references alone: if they differ, the sentences do

    def sample(self, sentences: np.ndarray) -> Sample | None:
        """The sample of a row, from the stored numbers (S, n, k); None for a sentence alone, or for infinite ones."""
        numbers = sentences[..., self.columns]
        if sentences.shape[1] < 2 or not np.isfinite(numbers).all():
            return None
        return sample(numbers, self.score, sentences[0, :, self.reference_column])


def loss(sums: np.ndarray) -> np.ndarray:
    """Nats per token, the logarithm of perplexity. sums (..., 2): nats, tokens."""
    return sums[..., 0] / sums[..., 1]


LOSS = CorpusScore(loss, LOSS_COLUMNS, -1)


def of_measure(measure: Measure) -> CorpusScore:
    """The score that a task compares rows by."""
    return CorpusScore(measure.of_sums, slice(None) if measure.of_loss else SCORE_COLUMNS, SCORE_COLUMNS.stop - 1)


def sweep_rows(
    grid: Grid, measure: Measure, split: str = "val", printed: Mapping[str, Printed] | None = None
) -> list[Row]:
    """The rows of a sweep, as far as their results are there.

    measure: that of its task. printed: by name, the numbers that stand beside them.
    """
    base, rows = grid.sweep.base_row, []
    for place, row in enumerate(grid.sweep.rows):
        made = read_row(row.name, row.configs[0], grid.of_row(place), measure, split)
        rows.append(replace(made, is_base=place == base, printed=(printed or {}).get(row.name)))
    references = [_references(grid.of_row(place), split) for place in range(len(rows))]
    if None in references:  # the text of some row is not here: its files tell
        return rows
    tasks = [row.configs[0].data.task for row in grid.sweep.rows]
    return [replace(row, dataset=known) for row, *known in zip(rows, tasks, references, strict=True)]


def _references(trials: Sequence[Trial], split: str) -> str | None:
    """The digest of the references of a set; None where they are not here."""
    with suppress(InputError):
        return value_digest(trials[0].prepared.text(split)[1]) if trials else None
    return None


def read_row(name: str, config: Config, trials: Sequence[Trial], measure: Measure, split: str = "val") -> Row:
    """The row of a config, from the results of its trials that are finished.

    name: what differs from base. split: whose score is the main one; those of further sets stand behind it.
    """
    ending = row_convergence(trials)
    row = Row(
        name=name,
        settings=row_settings(config),
        states=[trial.folder.state() for trial in trials],
        dataset=(_dataset(config, trials, split), config.data.max_words),
        vocabulary=(config.data.vocab_size, config.data.tokenizer),
        objective={
            key: value for key, value in config.flat().items() if key.startswith(("optim.loss", "optim.eps_ls"))
        },
        still_falls=bool(ending and ending.still_falls),
        ends_anywhere=_ends_anywhere(config),
        more={"val/loss.fall": ending and ending.fall, "val/loss.fall.noise": ending and ending.noise},
    )
    finished = [(trial.folder, result) for trial in trials if (result := trial.folder.result())]
    of_sets = [_samples(trials, measure, name) for name in (split, *config.data.further)]
    return replace(_with_results(row, finished), samples=reduce(or_, of_sets)) if finished else row


def row_convergence(trials: Sequence[Trial]) -> convergence.Convergence | None:
    """How the trainings of a row ended, on the mean of its seeds; None where it is not known."""
    return convergence.mean_convergence([convergence.trial_convergence(trial.folder.result()) for trial in trials])


def _with_results(row: Row, finished: Sequence[tuple[TrialFolder, Result]]) -> Row:
    """The row with what its finished trials have measured, but for the numbers of sentences."""
    done = [result for _, result in finished]
    before = [result.flops_before for result in done if result.flops_before is not None]
    costs = [(result.steps - result.steps_before, result.flops) for result in done if result.flops is not None]
    return replace(
        row,
        values=_values(done),
        token_digests=frozenset(filter(None, (result.vocabulary for result in done))),
        params=done[0].params,
        flops=mean([flops for _, flops in costs]) if len(costs) == len(done) else None,
        flops_before=mean(before) if len(before) == len(done) else None,
        steps_before=sum(result.steps_before for result in done) / len(done),
        trunks=_trunks(done),
        step_flops=mean([flops / max(1, steps) for steps, flops in costs]) if len(costs) == len(done) else None,
        scored_steps=[result.scored_step for result in done],
        # Those of an older result stand in its metrics file alone.
        losses=[result.losses or convergence.validation_losses(folder.metrics()) for folder, result in finished],
        exempt=exemptions(done),
    )


def _trunks(done: Sequence[Result]) -> frozenset[str]:
    """The ids of the weights that all of several trials have begun with."""
    shared = frozenset.intersection(*(frozenset(result.starts) for result in done))
    return shared if len(done) > 1 else frozenset()


def _values(done: Sequence[Result]) -> dict[str, list[float]]:
    """By metric, the value of each seed that has it."""
    metrics = dict.fromkeys(metric for result in done for metric in result.metrics)
    return {name: [result.metrics[name] for result in done if name in result.metrics] for name in metrics}


def items_of(task: Task, documents: Sequence[int] | None) -> str:
    """What intervals on an evaluation set cover. documents: of its sentences; None: not known."""
    return "documents" if documents else "sentences" if task.has_source else "lines"


def documents_of(trials: Sequence[Trial], split: str) -> list[int] | None:
    """The document of each sentence of a set, as a finished trial or else the text says; None: not known."""
    for trial in trials:
        if trial.folder.result():
            with suppress(InputError):  # the scores of the sentences are not here
                found = trial.folder.documents(split)
                if found is None and trial.corpus.is_local:
                    found = used_documents(split, trial.corpus, trial.config.data)
                return found if found and max(found) > 0 else None  # else lines count as independent
    return None


def _ends_anywhere(config: Config) -> bool:
    """Whether the learning rate of each step is the same in a training of half the steps."""
    if "schedule" not in custom_components(config.optim):
        return True  # equation (3); its class needs torch
    rates, half = [], max(1, config.steps // 2)
    for steps in (config.steps, half):
        optim = config.optim.model_copy(update={"max_steps": steps, "duration": 1.0})
        schedule = build(optim.schedule, sizes(config.model, config.data.vocab_size), optim)
        rates.append([float(schedule(1 + step)) for step in evenly_spaced(half, TRIED_STEPS)])
    return rates[0] == rates[1]


def _samples(trials: Sequence[Trial], measure: Measure, split: str) -> dict[str, Sample]:
    """By metric, the samples of a row: of the score, and of the loss. None for a few sentences, or documents."""
    finished = [trial.folder for trial in trials if trial.folder.result()]
    try:
        sentences = np.stack([folder.sentences(split, measure) for folder in finished])
        sentences = by_cluster(sentences, documents_of(trials, split))
    except (InputError, ValueError):  # the scores of the sentences are not here
        return {}
    if sentences.shape[1] < FEWEST_SENTENCES:
        return {}
    weights = [folder.weights_id for folder in finished]
    scores = {f"{split}/{measure.name}": of_measure(measure), f"{split}/loss": LOSS}
    found = {name: score.sample(sentences) for name, score in scores.items()}
    return {name: sample._replace(weights=weights) for name, sample in found.items() if sample}


def _dataset(config: Config, trials: Sequence[Trial], split: str) -> Any:
    """What identifies the references of a set, whatever the sources and the training text are, so far as it is known.

    That is the digest of their file, or of the file that has both sides.
    """
    fingerprints, data = (trial.identity.inputs.get("data") for trial in trials), config.data
    fingerprint: dict[str, Any] = next(filter(None, fingerprints), {})
    of_split = {name: files for name, files in fingerprint.get("files", {}).items() if name.startswith(f"{split}.")}
    if target := of_split.get(f"{split}.{data.target}"):
        return [data.task, target]
    if of_split:
        return [data.task, data.target, of_split]
    return [*(getattr(data, key) for key in ("task", *CORPUS, "source", "target")), split]


def row_settings(config: Config) -> dict[str, Any]:
    """The settings that tell rows apart: nominal values in the paper's order, d_k and d_v filled in.

    Seed and hardware (`trainer.*`) are left out, but for the trainer keys that change a result.
    """
    flat = config.flat() | nominal_sizes(config.model)
    keys = dict.fromkeys([*ORDER_IN_PAPER, *flat])
    flat["data.sets"] = "+".join(config.data.further)
    return {key: flat[key] for key in keys if key in RESULT_TRAINER_KEYS or not key.startswith(("seed", "trainer."))}


def trial_records(grid: Grid) -> list[dict[str, Any]]:
    """A record of each trial of a grid, with the same keys: what it is, where its row differs, and what was measured.

    None: not measured, as the trial has no result.
    """
    sweep, trials, _ = grid
    settings = [row_settings(row.configs[0]) for row in sweep.rows]
    keys, results = differing_keys(settings), [trial.folder.result() for trial in trials]
    metrics = dict.fromkeys(name for result in results if result for name in result.metrics)
    facts = ("params", "steps", "flops", "tokens_per_s", "of_peak", "wall_s")
    return [
        {"sweep": sweep.name, "scale": sweep.scale, "row": sweep.rows[trial.place].name, "seed": trial.config.seed}
        | {"state": trial.folder.state(), "id": trial.id}
        | {key: settings[trial.place].get(key) for key in keys}
        | {key: result and getattr(result, key) for key in facts}
        | {name: result and result.metrics.get(name) for name in metrics}
        for trial, result in zip(trials, results, strict=True)
    ]
