"""The rows of a sweep, each made once from the results of its trials.

Behind `sweep_rows` nobody sees a config, a trial or a task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from transformer_pl.config import CORPUS, SIZE_NAMES, Config, custom_components, nominal_sizes, sizes
from transformer_pl.config.components import build
from transformer_pl.data.tokens import evenly_spaced
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.runtime.errors import InputError
from transformer_pl.table.columns import differing_keys
from transformer_pl.table.looks import LookedAt
from transformer_pl.table.notes import FEWEST_SENTENCES
from transformer_pl.table.rows import Printed, Row, mean
from transformer_pl.table.statistics import Sample, Score, sample
from transformer_pl.task import Measure
from transformer_pl.trials import convergence
from transformer_pl.trials.identity import RESULT_TRAINER_KEYS, row_identity
from transformer_pl.trials.metrics import LOSS_COLUMNS, SCORE_COLUMNS
from transformer_pl.trials.result import Result, exemptions
from transformer_pl.trials.trial import Trial

ORDER_IN_PAPER = (*(f"model.{name}" for name in SIZE_NAMES), "model.p_drop", "optim.eps_ls")  # columns of Table 3
TRIED_STEPS = 50  # at which learning rates of a longer and a shorter training are compared


class Grid(NamedTuple):
    """A sweep with its trials, but for those that its looks have made needless."""

    sweep: Sweep
    trials: Sequence[Trial]
    looked_at: LookedAt | None = None  # what a table states of the looks, if there were some


class Metric(NamedTuple):
    """A corpus score, and which of the stored numbers of a sentence it needs."""

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


LOSS = Metric(loss, LOSS_COLUMNS, -1)


def of_measure(measure: Measure) -> Metric:
    """The score that a task compares rows by."""
    return Metric(measure.of_sums, slice(None) if measure.of_loss else SCORE_COLUMNS, SCORE_COLUMNS.stop - 1)


def sweep_rows(
    grid: Grid, measure: Measure, split: str = "val", printed: Mapping[str, Printed] | None = None
) -> list[Row]:
    """The rows of a sweep, as far as their results are there.

    measure: that of its task. printed: by name, the numbers that stand beside them.
    """
    rows, base = [], row_identity(grid.sweep.base)
    for place, row in enumerate(grid.sweep.rows):
        made = read_row(row.name, row.configs[0], [one for one in grid.trials if one.place == place], measure, split)
        rows.append(replace(made, is_base=made.identity == base, printed=(printed or {}).get(row.name)))
    return rows


def read_row(name: str, config: Config, trials: Sequence[Trial], measure: Measure, split: str = "val") -> Row:
    """The row of a config, from the results of its trials that are finished. name: what differs from base."""
    row = Row(
        name=name,
        settings=row_settings(config),
        states=[trial.state() for trial in trials],
        refused=next((trial.status().get("why", "") for trial in trials if trial.state() == "refused"), ""),
        identity=row_identity(config),
        dataset=(_dataset(config, trials, split), config.data.max_words),
        vocabulary=(config.data.vocab_size, config.data.tokenizer),
        is_selected=config.decode.select != "last",
        ending=convergence.mean_convergence([*map(convergence.trial_convergence, trials)]),
        ends_anywhere=_ends_anywhere(config),
        watching=[callback.path for callback in config.trainer.callbacks if not callback.in_identity],
        trials=trials,
    )
    finished = [(trial, result) for trial in trials if (result := trial.result())]
    return _with_results(row, config, finished, measure, split) if finished else row


def _with_results(
    row: Row, config: Config, finished: Sequence[tuple[Trial, Result]], measure: Measure, split: str
) -> Row:
    """The row with what its finished trials have measured."""
    done = [result for _, result in finished]
    sentences, samples = _samples(finished, measure, split)
    return replace(
        row,
        values=_values(done),
        samples=samples,
        token_digests=frozenset(filter(None, (result.vocabulary for result in done))),
        params=done[0].params,
        flops=mean([result.flops for result in done]),
        step_flops=mean([result.flops / max(1, result.steps) for result in done]),
        scored_steps=[result.scored_step for result in done],
        # Those of an older result stand in its metrics file alone.
        losses=[result.losses or convergence.validation_losses(trial.metrics()) for trial, result in finished],
        exempt=exemptions(done),
        sentences=sentences,
        signatures=list(dict.fromkeys(result.signature for result in done)),
        machines=[trial.machine() for trial, _ in finished],
        ended_early=[result.steps for result in done if result.stopped_early],
        speed=_speed(done),
    )


def _values(done: Sequence[Result]) -> dict[str, list[float]]:
    """By metric, the value of each seed that has it."""
    metrics = dict.fromkeys(metric for result in done for metric in result.metrics)
    return {name: [one.metrics[name] for one in done if name in one.metrics] for name in metrics}


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


def _speed(done: Sequence[Result]) -> tuple[float, float] | None:
    """The tokens a second, and the share of the peak of the GPU, where it is known."""
    known = [(result.tokens_per_s, result.of_peak) for result in done if result.tokens_per_s and result.of_peak]
    return (fmean(speed for speed, _ in known), fmean(share for _, share in known)) if known else None


def _samples(
    finished: Sequence[tuple[Trial, Result]], measure: Measure, split: str
) -> tuple[int | None, dict[str, Sample]]:
    """How many sentences a row was evaluated on, and its samples by metric: of the score, and of the loss."""
    try:
        sentences = np.stack([trial.sentences(split, measure) for trial, _ in finished])
    except (InputError, ValueError):  # the scores of the sentences are not here
        return None, {}
    weights = [result.weights_id for _, result in finished]
    if (count := sentences.shape[1]) < FEWEST_SENTENCES:
        return count, {}
    metrics = {f"{split}/{measure.name}": of_measure(measure), f"{split}/loss": LOSS}
    found = {name: metric.sample(sentences) for name, metric in metrics.items()}
    return count, {name: one._replace(weights=weights) for name, one in found.items() if one}


def _dataset(config: Config, trials: Sequence[Trial], split: str) -> Any:
    """What identifies the text of a set, whatever the training text is: the digests of its files, so far as known."""
    fingerprints = (trial.identity.inputs.get("data") for trial in trials)
    fingerprint: dict[str, Any] = next(filter(None, fingerprints), {})
    if files := {name: digest for name, digest in fingerprint.get("files", {}).items() if name.startswith(f"{split}.")}:
        return [config.data.task, config.data.source, config.data.target, files]
    return [*(getattr(config.data, key) for key in ("task", *CORPUS, "source", "target")), split]


def row_settings(config: Config) -> dict[str, Any]:
    """The settings that tell rows apart: nominal values in the paper's order, d_k and d_v filled in.

    Seed and hardware (`trainer.*`) are left out, but for the trainer keys that change a result.
    """
    flat = config.flat() | nominal_sizes(config.model)
    keys = dict.fromkeys([*ORDER_IN_PAPER, *flat])
    return {key: flat[key] for key in keys if key in RESULT_TRAINER_KEYS or not key.startswith(("seed", "trainer."))}


def trial_records(grid: Grid) -> list[dict[str, Any]]:
    """A record of each trial of a grid, with the same keys: what it is, where its row differs, and what was measured.

    None: not measured, as the trial has no result.
    """
    sweep, trials, _ = grid
    settings = [row_settings(row.configs[0]) for row in sweep.rows]
    keys, results = differing_keys(settings), [trial.result() for trial in trials]
    metrics = dict.fromkeys(name for result in results if result for name in result.metrics)
    facts = ("params", "steps", "flops", "tokens_per_s", "of_peak", "wall_s")
    return [
        {"sweep": sweep.name, "scale": sweep.scale, "row": sweep.rows[trial.place].name, "seed": trial.config.seed}
        | {"state": trial.state(), "id": trial.id}
        | {key: settings[trial.place].get(key) for key in keys}
        | {key: result and getattr(result, key) for key in facts}
        | {name: result and result.metrics.get(name) for name in metrics}
        for trial, result in zip(trials, results, strict=True)
    ]
