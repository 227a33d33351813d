"""What stands in the notes of a sweep's table and is known from its trials alone: how they were trained, how training
ended, on what and where rows were evaluated, and what was planned.

A new note is a sentence that one of these functions yields.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from transformer_pl.config import SIZE_NAMES, STACKS, Config, nominal_sizes
from transformer_pl.data.selection import leaks
from transformer_pl.plan.plan import tested_by
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.report.published import read_published
from transformer_pl.report.sweep_rows import Grid, documents_of, items_of, row_convergence
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import counted
from transformer_pl.table.cells import UNCONVERGED
from transformer_pl.table.notes import FEWEST_SENTENCES, change_note, machines_note, signature_note
from transformer_pl.table.row import SETS, Facts, Row
from transformer_pl.table.statistics import by_cluster
from transformer_pl.task import task_of
from transformer_pl.trials.runs_folder import read_plan

OF_RATE = ("optim.lr_scale", "optim.warmup", "optim.schedule", "optim.optimizer")  # keys begin so
OF_TEST_SET = "Scores and differences are of the test set."


def facts_of(grid: Grid, rows: Sequence[Row] = (), split: str = "val", folder: Path | None = None) -> Facts:
    """The sentences on a sweep, by the paragraph of the notes that they stand in.

    rows: those of its table, in their order. folder: that of the sweep, which says what was planned.
    """
    training = [*_training(grid), *_early(grid), *_speed(grid, rows)]
    others = [*_refused(grid, rows), *_evaluation(grid, rows, split), *_trials(grid), *_planned(grid, folder)]
    return Facts(training, [*_convergence(grid, split)], [*others, *[OF_TEST_SET] * (split == "test")])


def _training(grid: Grid) -> Iterator[str]:
    """How the rows were trained, and how far that is from the paper."""
    config, most = grid.sweep.base, "at most " if any(result.stopped_early for result in grid.results) else ""
    model, data, task = config.model, config.data, task_of(config.data)
    paper = read_published(task.published) if task.published else None
    papers, ours = nominal_sizes((paper.rows[0].config if paper else Config()).model), nominal_sizes(model)
    sizes = [f"{name} {ours[key]}" for name in (*SIZE_NAMES, *STACKS) if ours[key := f"model.{name}"] != papers[key]]
    factors = [f"{name} {getattr(model, name):g}" for name in ("width", "depth") if getattr(model, name) != 1]
    text = data.path or data.hub or task.text
    note = f"Trained for {most}{config.steps:,} steps of {data.batch_tokens:,} tokens on {text}, "
    note += f"with the paper's sizes{' but for ' if sizes else ''}{', '.join(sizes)}"
    note += f", times {' and '.join(factors)}" if factors else ""
    yield note + (f"; the last {config.averaged} checkpoints are averaged." if config.averaged > 1 else ".")


def _early(grid: Grid) -> Iterator[str]:
    """Which trials a callback has ended early."""
    results = grid.results
    if steps := sorted(result.steps for result in results if result.stopped_early):
        when = " to ".join(dict.fromkeys(f"{step:,}" for step in (steps[0], steps[-1])))
        yield f"A callback ended {len(steps)} of {counted(len(results), 'trial')} early, after {when} steps."


def _speed(grid: Grid, rows: Sequence[Row]) -> Iterator[str]:
    """How fast the first row was trained, if the peak of its GPU is known."""
    results = [trial.folder.result() for trial in grid.trials if rows and grid.name_of(trial) == rows[0].name]
    of_all = [(result.tokens_per_s, result.of_peak) for result in results if result]
    known = [(speed, share) for speed, share in of_all if speed and share]
    if known:
        speed, share = (sum(numbers) / len(known) for numbers in zip(*known, strict=True))
        yield f"{rows[0].title} was trained on {speed:,.0f} target tokens a second, {share:.0%} of the peak of its GPU."


def _convergence(grid: Grid, split: str) -> Iterator[str]:
    """Which finished rows had converged, and how the step was chosen whose weights are scored."""
    by_row = [grid.of_row(place) for place in range(len(grid.sweep.rows))]
    finished = [trials for trials in by_row if any(trial.folder.result() for trial in trials)]
    known = [ending for trials in finished if (ending := row_convergence(trials))]
    falls = [ending.share for ending in known if ending.still_falls]
    if unknown := len(finished) - len(known):
        yield f"Whether {counted(unknown, 'row')} had converged is not known: lower trainer.val_every."
    if falls:
        fell = " to ".join(dict.fromkeys(f"{share:.1%}" for share in (min(falls), max(falls))))
        yield f"{UNCONVERGED} training had not converged, in {counted(len(falls), 'row')}: validation loss was still"
        yield f"falling at the last step (perplexity by {fell} over the last 20% of the steps)."
    elif known:
        whole = "All rows" if len(finished) == len(by_row) else "All finished rows"
        yield f"{counted(len(known), 'row') if unknown else whole} had converged."
    if grid.is_selected:
        yield "Where decode.select is best, the validation with the lowest loss is scored, and a row has also converged"
        yield "if it lies before the last 10% of the steps."
        if split == "test":
            yield "The sentences of the validation set have chosen the step; those of the test set have not."
        else:
            yield "The same sentences have chosen the step and are scored: --split test scores others."


def _refused(grid: Grid, rows: Sequence[Row]) -> Iterator[str]:
    names = {row.name: row.shown_name for row in rows}
    refused = [trial for trial in grid.trials if trial.folder.state() == "refused"]
    why = {grid.name_of(trial): trial.folder.status().get("why", "").partition("; ")[0] for trial in refused}
    yield from (f"{names.get(row, row)} was refused: {reason}." for row, reason in why.items() if reason)


def _evaluation(grid: Grid, rows: Sequence[Row], split: str) -> Iterator[str]:
    """Why nothing is known of the sentences of an evaluation set."""
    task, name = grid.task, SETS[split]
    sizes, without = list[int](), {row.name for row in rows if row.values and not row.samples}
    documents = documents_of(grid.trials, split) if without else None
    for trial in grid.trials:
        if grid.name_of(trial) in without and trial.folder.result():
            with suppress(InputError):  # the scores of the sentences are not here
                sentences = trial.folder.sentences(split, task.measure)
                sizes.append(by_cluster(sentences[None], documents).shape[1])
    if without and not sizes and not any(row.samples for row in rows):
        yield f"There are no tests and no intervals: the scores of the sentences of the {name} are not here."
    if sizes and min(sizes) < FEWEST_SENTENCES:
        yield f"A {name} of {min(sizes)} {items_of(task, documents)} is too small for intervals and tests: at least"
        yield f"{FEWEST_SENTENCES} are needed; add lines, or divide long ones."


def _trials(grid: Grid) -> Iterator[str]:
    """How machines and scores differ, and which callbacks the user has declared to change no result."""
    yield machines_note([trial.folder.machine() for trial in grid.trials if trial.folder.result()])
    yield signature_note(result.signature for result in grid.results)
    callbacks = (callback for row in grid.sweep.rows for callback in row.configs[0].trainer.callbacks)
    if watching := dict.fromkeys(callback.path for callback in callbacks if not callback.in_identity):
        yield f"Declared to change no result (in_identity: false): {', '.join(watching)}."


def _rates(sweep: Sweep) -> Iterator[str]:
    """Which rows have the learning rate of base, and that it was chosen for none of them."""
    if sweep.tried and any(key.startswith(OF_RATE) for key in sweep.tried[0][1]):
        return
    base, *rates = (
        {key: value for key, value in config.flat().items() if key.startswith(OF_RATE)}
        for config in (sweep.base, *(row.configs[0] for row in sweep.rows))
    )
    others, count = sum(rate != base for rate in rates), len(rates)
    if others + 1 < count:  # one of them is base
        which = f"Every row but {others} has" if others else "Every row has"
        yield f"{which} base's learning rate (schedule, warm-up, lr_scale), which may not be the best for it."


def _planned(grid: Grid, folder: Path | None) -> list[str]:
    """What the sweep file, the dataset and the plan have to say."""
    notes, unit = [*grid.sweep.notes, *_rates(grid.sweep)], grid.task.unit
    for trial in {trial.config.data: trial for trial in grid.trials}.values():
        with suppress(InputError):  # the dataset is not on this machine
            found = leaks(trial.prepared.meta["splits"], unit)  # evaluation pairs that make a score look too good
            notes += [f"{leak[0].upper()}{leak[1:]}" for leak in found]
    if folder:
        plan = read_plan(folder)
        notes += [*plan.get("notes", ()), change_note(plan.get("tested"), tested_by(grid.sweep))]
    return [f"{note.removesuffix('.')}." for note in dict.fromkeys(notes) if note]
