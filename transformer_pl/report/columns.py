"""The table of a sweep, in the columns of the paper's Table 3 and beside the numbers that a paper printed.

A row shows the settings in which it differs from base, with the paper's sizes at every scale. A value that was not
measured is never shown as a number: the cell reads `diverged`, `failed`, or `-` for a row that is not finished.
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from transformer_pl.config import Config, without_section
from transformer_pl.data.selection import leaks
from transformer_pl.plan.plan import PlannedTrial, tested_by
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.report import cells
from transformer_pl.report.notes import (
    SETS,
    change_note,
    margin_note,
    no_differences,
    selected_note,
    summary,
    table_notes,
)
from transformer_pl.report.published import PublishedTable, paper_table
from transformer_pl.report.render import Column, Table
from transformer_pl.report.row_names import RowNames, headings_of, printed_table
from transformer_pl.report.rows import (
    ALPHA,
    RowResults,
    TableRow,
    make_table_rows,
    mean,
    read_row,
    row_settings,
    standard_deviation,
)
from transformer_pl.runtime.errors import InputError
from transformer_pl.task import task_of
from transformer_pl.trials.runs_folder import read_plan
from transformer_pl.trials.trial import Trial

Cell = Callable[[TableRow], str]


def table_of(
    sweep: Sweep,
    planned: Sequence[PlannedTrial],
    with_paper: bool | None = None,
    folder: Path | None = None,
    margin: float | None = None,
    split: str = "val",
    names: RowNames | None = None,
) -> Table:
    """The table of a sweep from the results that are there, beside a printed one.

    names: the file of row names, by which the sweep is arranged; if it has printed numbers, they are that table, or
    else the task's is (`paper_table`).
    with_paper: False for none. folder: the sweep's folder, which says what was planned when the training started.
    """
    rows = row_results(sweep, planned, split)
    if names and any(entry.published for entry in names.rows):
        paper = None if with_paper is False else printed_table(sweep, names, split)
    else:
        paper = paper_table(sweep.base.data, sweep.name, with_paper)
    if paper and paper.split != split and split == "test":
        paper = None  # its scores are of the validation set
    changed = change_note(read_plan(folder).get("tested"), tested_by(sweep)) if folder else ""
    unit = task_of(sweep.base.data).unit
    leaking: dict[str, None] = {}  # evaluation pairs that make a score look too good
    for prepared in dict.fromkeys(trial.prepared for trial in planned):
        with suppress(InputError):  # the dataset is not on this machine
            leaking |= dict.fromkeys(f"{leak[0].upper()}{leak[1:]}." for leak in leaks(prepared.meta["splits"], unit))
    table = build_table(rows, sweep.base, paper, [*sweep.notes, *leaking, changed], sweep.reference, margin)
    return table._replace(headings=headings_of(sweep, names)) if names else table


def row_results(sweep: Sweep, planned: Sequence[PlannedTrial], split: str = "val") -> list[RowResults]:
    """The results of each row of a sweep, as far as they are there."""
    trials: list[list[Trial]] = [[] for _ in sweep.rows]
    for planned_trial in planned:
        trials[planned_trial.row].append(planned_trial.trial)
    return [
        read_row(row.configs[0], seeds, row.name, split)._replace(title=row.title)
        for row, seeds in zip(sweep.rows, trials, strict=True)
    ]


def build_table(
    rows: Sequence[RowResults],
    base: Config | None = None,
    paper: PublishedTable | None = None,
    added: Sequence[str] = (),
    reference: int | None = None,
    margin: float | None = None,
) -> Table:
    """The table of at least one row. Differences are to `base`, if that is among the rows.

    paper: the printed table that stands beside it. added: further sentences for its notes. reference: the row that
    differences are to in place of base. margin: within which a difference counts as none.
    """
    table_rows = make_table_rows(rows, base, paper, reference)
    columns = _columns(table_rows, paper, margin)
    if rows[0].split == "test":
        added = [*added, "Scores, differences and tests are of the test set."]
    if margin is not None:
        added = [*added, margin_note(margin, table_rows)]
    return Table(
        columns,
        table_notes(table_rows, base, paper, added),
        table_rows,
        summary(table_rows, _name_of_base(table_rows)) or no_differences(table_rows),
    )


def _name_of_base(rows: Sequence[TableRow]) -> str:
    """What a sentence calls the row that differences are to."""
    base = next((row for row in rows if row.is_base), None)
    if base and base.is_reference:
        return base.results.shown_name
    return f"base ({base.results.title})" if base and base.results.title else "base"


def trial_records(sweep: Sweep, planned: Sequence[PlannedTrial]) -> list[dict[str, Any]]:
    """A record of each trial of a grid, with the same keys: what it is, where its row differs, and what was measured.

    None: not measured, as the trial has no result.
    """
    settings = [row_settings(row.configs[0]) for row in sweep.rows]
    keys, results = _differing_keys(settings), [trial.trial.result() for trial in planned]
    metrics = dict.fromkeys(name for result in results if result for name in result.metrics)
    return [
        {"sweep": sweep.name, "scale": sweep.scale, "row": sweep.rows[trial.row].name, "seed": trial.config.seed}
        | {"state": trial.trial.state(), "id": trial.identity.trial}
        | {key: settings[trial.row].get(key) for key in keys}
        | {
            key: result and getattr(result, key)
            for key in ("params", "steps", "flops", "tokens_per_s", "of_peak", "wall_s")
        }
        | {name: result and result.metrics.get(name) for name in metrics}
        for trial, result in zip(planned, results, strict=True)
    ]


def _differing_keys(settings: Sequence[dict[str, Any]]) -> list[str]:
    """The keys in which not all rows agree."""
    keys = dict.fromkeys(key for values in settings for key in values)
    return [key for key in keys if any(values.get(key, ...) != settings[0].get(key, ...) for values in settings)]


def _columns(rows: list[TableRow], paper: PublishedTable | None, margin: float | None = None) -> list[Column]:
    """All columns of a table; those without a heading are for programs alone."""
    task, measure = task_of(rows[0].results.config.data), rows[0].results.measure
    split = rows[0].results.split
    metrics = dict.fromkeys([f"{split}/ppl", f"{split}/{measure.name}"])
    metrics |= dict.fromkeys(name for row in rows for result in row.results.done for name in result.metrics)
    settings = _differing_keys([row.settings for row in rows])
    records = [_values(row, settings, list(metrics), paper) for row in rows]

    def values(key: str) -> list[Any]:
        return [record[key] for record in records]

    def column(name: str, cell: Cell, key: str, meaning: str = "", rank: int | None = None, **options: Any) -> Column:
        """name: the heading. cell: gives the text of a row. key: of the values in records. rank: the `drop_rank`."""
        return Column(name, [cell(row) for row in rows], key, values(key), meaning, rank, **options)

    def measured(name: str, cell: Cell, *about: Any, **options: Any) -> Column:
        """A cell without a number says why."""
        return column(name, lambda row: cell(row) or cells.unmeasured(row.results), *about, **options)

    def mean_of(name: str, metric: str, meaning: str = "Higher is better.", rank: int | None = None) -> list[Column]:
        """The mean of a metric over the seeds; no column where no row has it."""
        text = partial(cells.mean_of, metric)
        return [measured(name, text, f"{metric}.mean", meaning, rank)] if metric in metrics else []

    def setting(key: str) -> Column:
        name = "P_drop" if key == "model.p_drop" else without_section(key)
        return Column(name, cells.setting_cells(key, rows), key, values(key), drop_rank=0)

    title, main, difference = measure.title, f"{split}/{measure.name}", f"{split}/{measure.name}.difference"
    differs = "What differs from base; an empty cell is as base. Sizes and labels such as (A) are the paper's."
    star, dagger = f"{cells.SIGNIFICANT}: p < {ALPHA:g}.", f"{cells.UNCONVERGED}: training had not converged."
    signatures = " and ".join(dict.fromkeys(result.signature for row in rows for result in row.results.done))
    better = " Lower is better." if measure.lower_is_better else ""
    scored = f"{task.described} on the {SETS[split]} ({signatures}): mean ± standard deviation over seeds."
    scored = f"{scored}{better} {dagger}"
    likelihood = f"Perplexity per token of the {SETS[split]}; lower is better. {star} {dagger}"
    tested = sum(row.score is not None and row.score.p_value is not None for row in rows)
    chance = f"How probable such a difference is if no row differs, corrected for the {tested} tested rows."
    together = "Simultaneous 95 % intervals: in 95 % of tables all contain the true differences."
    power = "The true difference that this row's seeds would find in 80 % of cases."
    compares = any(row.difference() is not None for row in rows)
    params = Column("params", cells.params(rows), "params", values("params"), "Trained weights.", 8)
    columns = [
        Column(key="name", values=values("name")),
        column("row", cells.title, "row", differs, page=0),
        *map(setting, settings),
        params,
        measured("PPL", cells.perplexity, f"{split}/ppl.mean", likelihood, 10, page=5),
        *itertools.chain.from_iterable(mean_of(name, f"{split}/{key}", rank=6) for key, name in task.others.items()),
        measured(title, cells.score, f"{main}.mean", scored, page=1),
        column(
            f"{title} 95 %",
            cells.row_interval,
            f"{main}.low",
            "The 95 % interval is for this row alone.",
            9,
            page=1,
            below=True,
        ),
    ]
    if paper and paper.split == "test" and split != "test":
        columns += mean_of(f"test {title}", f"test/{measure.name}", "Of the test set.")
        for key, name in task.others.items():
            columns += mean_of(f"test {name}", f"test/{key}", rank=7)
    if paper and any(row.flops for row in paper.rows):
        columns.append(measured("FLOPs", cells.flops, "flops", "Of a training; only matrix products count."))
    if selected_note(rows):
        meaning = "The step whose weights are scored: the mean over seeds."
        columns.append(column("step", cells.scored_step, "scored_step", meaning, 7))
    verdicts = []
    if margin is not None:
        key = f"{difference}.within.{margin:g}"
        texts = [cells.verdict(margin, row) for row in rows]
        verdicts = [Column(f"within {margin:g}", texts, key, texts, cells.verdict_meaning(margin), page=4)]
    if compares:
        columns += [
            column(f"Δ {title}", cells.score_difference, difference, f"{title} minus base's. {star}", page=2),
            column("Δ 95 %", cells.difference_interval, f"{difference}.low", together, 13, page=2, below=True),
            *verdicts,
            column("p", cells.p_value, f"{difference}.p", chance, 12, page=3),
            column("detectable Δ", cells.detectable, f"{difference}.detectable", power, 6),
        ]
    columns.append(column("seeds", cells.seed_counts, "seeds", "Finished trainings; 2/3: two of three.", 11, page=6))
    if paper:
        source, others = f"The paper's number for the same row: {paper.source}.", paper.others
        also = f" Others: {', '.join(f'{row.label} {row.score:g}' for row in others)}." if others else ""
        cost, of_test = "Training time, times the number of GPUs, times their sustained rate.", paper.split == "test"
        score, key = (f"paper test {title}", f"test/{measure.name}") if of_test else (f"paper {title}", measure.name)
        printed, of_base, change = cells.printed, "The paper's row minus its base.", f"paper/{measure.name}.difference"
        columns += [
            column("paper PPL", printed("ppl", ".2f"), "paper/ppl", source, 3),
            column(score, printed("score", f".{paper.decimals}f"), f"paper/{key}", source + also, 5),
            column(f"paper Δ {title}", partial(cells.printed_difference, paper), change, of_base, 4, page=4),
            column("paper params", printed("weights"), "paper/params", rank=1),
            column("paper FLOPs", printed("flops"), "paper/flops", cost, 2),
        ]
    shown = {entry.key for entry in columns}
    return columns + [Column(key=key, values=values(key)) for key in records[0] if key not in shown]


def _values(row: TableRow, keys: list[str], metrics: list[str], paper: PublishedTable | None) -> dict[str, Any]:
    """Everything that programs get of a row, at full precision."""
    results, published, score = row.results, row.published, row.results.measure.name
    record: dict[str, Any] = {"name": results.name, "row": row.label} | {key: row.settings.get(key) for key in keys}
    record |= {"seeds": len(results.results), "done": len(results.done)}
    record |= {state: results.states.count(state) for state in ("failed", "diverged", "refused")}
    record |= {"params": results.params, "flops": results.flops, "exempt": results.exempt or None}
    record |= {"scored_step": results.scored_step}
    for metric in metrics:
        values = results.values(metric)
        record |= {
            f"{metric}.mean": mean(values),
            f"{metric}.sd": standard_deviation(values),
            f"{metric}.n": len(values),
            f"{metric}.difference": row.difference(metric),
        }
    converged = results.convergence
    record |= {"val/loss.fall": converged and converged.fall, "val/loss.fall.noise": converged and converged.noise}
    for metric, comparison in ((f"{results.split}/{score}", row.score), (f"{results.split}/loss", row.loss)):
        of_row, difference = (comparison.row_mean, comparison.difference) if comparison else (None, None)
        record[f"{metric}.low"], record[f"{metric}.high"] = of_row.interval() if of_row else (None, None)
        ends = difference.interval() if difference else (None, None)
        record[f"{metric}.difference.low"], record[f"{metric}.difference.high"] = ends
        record[f"{metric}.difference.p"] = comparison and comparison.p_value
        record[f"{metric}.difference.detectable"] = difference and difference.detectable
    printed_score = f"paper/test/{score}" if paper and paper.split == "test" else f"paper/{score}"
    return record | {
        "paper/ppl": published and published.ppl,
        printed_score: published and published.score,
        f"paper/{score}.difference": paper and paper.difference(published, row.printed_base),
        "paper/params": published and published.weights,
        "paper/flops": published and published.flops,
    }
