"""The table of a sweep, in the columns of the paper's Table 3 and beside the numbers that the paper printed.

A row shows where it differs from base, in the paper's numbers whatever the scale. A value that was not measured is
never shown as a number: the cell reads `diverged`, `failed`, or `-` for a row that is not finished.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformer_pl.config import Config, without_section
from transformer_pl.data.selection import leaks
from transformer_pl.plan.plan import PlannedTrial, tested_by
from transformer_pl.plan.sweep_file import Sweep
from transformer_pl.report import cells
from transformer_pl.report.notes import change_note, summary, table_notes
from transformer_pl.report.published import PublishedRow, PublishedTable, paper_table
from transformer_pl.report.render import Column, Table
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


def table_of(
    sweep: Sweep, planned: Sequence[PlannedTrial], with_paper: bool | None = None, folder: Path | None = None
) -> Table:
    """The table of a sweep from the results that are there, beside the paper's (see `paper_table`).

    folder: the sweep's, which knows what was planned when its training started.
    """
    trials = [[one.trial for one in planned if one.row == place] for place in range(len(sweep.rows))]
    rows = [read_row(row.configs[0], of_row, row.name) for row, of_row in zip(sweep.rows, trials, strict=True)]
    paper = paper_table(sweep.base.data, sweep.name, with_paper)
    changed = change_note(read_plan(folder).get("tested"), tested_by(sweep)) if folder else ""
    leaking: dict[str, None] = {}  # evaluation pairs that make a score look too good
    for prepared in dict.fromkeys(one.prepared for one in planned):
        with suppress(InputError):  # it is not here
            leaking |= dict.fromkeys(f"{leak[0].upper()}{leak[1:]}." for leak in leaks(prepared.meta["splits"]))
    return build_table(rows, sweep.base, paper, [*sweep.notes, *leaking, changed])


def build_table(
    rows: Sequence[RowResults],
    base: Config | None = None,
    paper: PublishedTable | None = None,
    added: Sequence[str] = (),
) -> Table:
    """The table of at least one row. Differences are to `base`, if that is among the rows.

    paper: the printed table that stands beside it. added: further sentences for its notes.
    """
    table_rows = make_table_rows(rows, base, paper)
    keys = _differing_keys([row.settings for row in table_rows])
    columns = [column for column in _columns(table_rows, keys, paper) if any(column.cells)]
    metrics = dict.fromkeys(["val/ppl", f"val/{rows[0].measure.name}"])
    metrics |= dict.fromkeys(metric for row in rows for result in row.done for metric in result.metrics)
    records = [_record(row, keys, list(metrics), paper) for row in table_rows]
    return Table(columns, records, table_notes(table_rows, base, paper, added), table_rows, summary(table_rows))


def trial_records(sweep: Sweep, planned: Sequence[PlannedTrial]) -> list[dict[str, Any]]:
    """A record of each trial of a grid, with the same keys: what it is, where its row differs, and what was measured.

    None: not measured, as the trial has no result.
    """
    settings = [row_settings(row.configs[0]) for row in sweep.rows]
    keys, results = _differing_keys(settings), [one.trial.result() for one in planned]
    metrics = dict.fromkeys(name for result in results if result for name in result.metrics)
    return [
        {"sweep": sweep.name, "scale": sweep.scale, "row": sweep.rows[one.row].name, "seed": one.config.seed}
        | {"state": one.trial.state(), "id": one.identity.trial}
        | {key: settings[one.row].get(key) for key in keys}
        | {key: result and getattr(result, key) for key in ("params", "steps", "flops", "wall_s")}
        | {name: result and result.metrics.get(name) for name in metrics}
        for one, result in zip(planned, results, strict=True)
    ]


def _differing_keys(settings: Sequence[dict[str, Any]]) -> list[str]:
    """The keys in which not all rows agree."""
    keys = dict.fromkeys(key for values in settings for key in values)
    return [key for key in keys if any(values.get(key, ...) != settings[0].get(key, ...) for values in settings)]


def _columns(rows: list[TableRow], keys: list[str], paper: PublishedTable | None) -> list[Column]:
    """All columns of a table, also those that stay empty."""

    def column(name: str, cell: Callable[[TableRow], str], meaning: str = "", rank: int | None = None) -> Column:
        return Column(name, [cell(row) for row in rows], meaning=meaning, drop_rank=rank)

    def measured(name: str, cell: Callable[[TableRow], str], meaning: str, rank: int | None = None) -> Column:
        return column(name, lambda row: cell(row) or cells.unmeasured(row.results), meaning, rank)

    def mean_of(name: str, metric: str, meaning: str, rank: int | None = None) -> Column:
        """An empty column where no row has the metric."""
        if not any(row.results.values(metric) for row in rows):
            return Column(name, [])
        return measured(name, lambda row: cells.number(mean(row.results.values(metric)), ".1f"), meaning, rank)

    def printed(name: str, cell: Callable[[PublishedRow], str], meaning: str = "", rank: int | None = None) -> Column:
        return column(f"paper {name}", lambda row: cell(row.published) if row.published else "", meaning, rank)

    task, measure = task_of(rows[0].results.config.data), rows[0].results.measure
    differs = "What differs from base; an empty cell is as base. (A) to (E) are the paper's labels, and its sizes."
    title, star, dagger = measure.title, cells.SIGNIFICANT, cells.UNCONVERGED
    signatures = " and ".join(dict.fromkeys(result.signature for row in rows for result in row.results.done))
    tokenised = "BLEU of Moses tokens, compounds split at their hyphens: as the paper's authors computed it."
    unconverged, significant = f"{dagger}: training had not converged.", f"{star}: p < {ALPHA:g}."
    likelihood = f"Perplexity per token of the validation set; lower is better. {significant} {unconverged}"
    scored = (
        f"{task.described} on the validation set ({signatures}): mean ± standard deviation over seeds. {unconverged}"
    )
    still_moves = f"{title} minus base's. {significant} {dagger}: their losses were still changing at different rates."
    tested = sum(row.score is not None and row.score.p_value is not None for row in rows)
    chance = f"How probable such a difference is if no row differs, corrected for the {tested} tested rows."
    together = "Simultaneous 95 % intervals: in 95 % of tables all contain the true differences."
    compares = any(row.difference() is not None for row in rows)
    power = "The true difference that this row's seeds would find in 80 % of cases."
    titles = {key: "P_drop" if key == "model.p_drop" else without_section(key) for key in keys}
    columns = [
        column("row", lambda row: cells.marked(row.title, row.results.exempt), differs),
        *(Column(titles[key], cells.setting_cells(key, rows), drop_rank=0, setting=True) for key in keys),
        Column("params", cells.params(rows), drop_rank=8, meaning="Trained weights of the model."),
        measured("PPL", cells.perplexity, likelihood, 10),
        *(mean_of(name, f"val/{key}", "Higher is better.", 6) for key, name in task.others.items()),
        measured(title, cells.score, scored),
        mean_of("BLEU tok.", "val/bleu_tokenised", tokenised, 7),
        column(f"{title} 95 %", lambda row: cells.interval(row.score and row.score.row_mean), "For this row alone.", 9),
    ]
    if paper and paper.split == "test":
        columns.append(mean_of(f"test {title}", f"test/{measure.name}", "Of the test set."))
        columns.append(mean_of("test BLEU tok.", "test/bleu_tokenised", tokenised, 7))
    if paper and any(row.flops for row in paper.rows):
        columns.append(
            measured("FLOPs", lambda row: cells.short(row.results.flops), "Of the matrix products of a training.")
        )
    columns += [
        column(f"Δ {title}", lambda row: cells.score_difference(row) if compares else "", still_moves),
        column("Δ 95 %", lambda row: cells.interval(row.score and row.score.difference, "+z"), together, 13),
        column("p", lambda row: cells.p_value(row.score and row.score.p_value), chance, 12),
        column("detectable Δ", cells.detectable, power, 6),
        column("seeds", lambda row: cells.seed_counts(row.results), "Finished trainings; 2/3: two of three.", 11),
    ]
    if not paper:
        return columns
    source, number = f"The paper's number for the same row: {paper.source}.", cells.number
    others = ", ".join(f"{row.label} {row.score:g}" for row in paper.others)
    of_score, difference = f"test {title}" if paper.split == "test" else title, paper.difference
    return [
        *columns,
        printed("PPL", lambda row: number(row.ppl, ".2f"), f"{source} It is per wordpiece.", 3),
        printed(of_score, lambda row: number(row.score, ".1f"), source + (f" Others: {others}." if others else ""), 5),
        printed(f"Δ {title}", lambda row: number(difference(row), "+z.1f"), "Minus the paper's base.", 4),
        printed("params", lambda row: cells.short(row.params and row.params * 1e6), rank=1),
        printed(
            "FLOPs", lambda row: cells.short(row.flops), "Training time, times GPUs, times their sustained rate.", 2
        ),
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Records: the lines of the CSV file, with numbers at full precision


def _record(row: TableRow, keys: list[str], metrics: list[str], paper: PublishedTable | None) -> dict[str, Any]:
    results, published, score = row.results, row.published, row.results.measure.name
    record: dict[str, Any] = {"name": results.name, "row": row.label} | {key: row.settings.get(key) for key in keys}
    record |= {"seeds": len(results.results), "done": len(results.done)}
    record |= {state: results.states.count(state) for state in ("failed", "diverged")}
    record |= {"params": results.params, "flops": results.flops, "exempt": results.exempt or None}
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
    for metric, comparison in ((f"val/{score}", row.score), ("val/loss", row.loss)):
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
        f"paper/{score}.difference": published and paper and paper.difference(published),
        "paper/params": round(published.params * 1e6) if published and published.params else None,
        "paper/flops": published and published.flops,
    }
