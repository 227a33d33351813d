"""The table of anyone's runs: a CSV file with a line for each run, such as an export of W&B, MLflow or a spreadsheet.

Runs with equal values in some columns of the file are one row of the table. They are a sample of seeds. The sentences
that they were evaluated on are not known.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from transformer_pl.report import cells
from transformer_pl.report.notes import margin_note, significance_note, summary
from transformer_pl.report.reading import BASES, Run, base_of, read_runs
from transformer_pl.report.render import Column, Table
from transformer_pl.report.statistics import RowComparison, compare_samples, sample_of_seeds
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import counted

MOST_ROWS = 500  # with more rows, --row surely names a column in which each run has its own value
SHOWN = 5  # names of missing runs in a note


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """What the columns of a file mean."""

    row: tuple[str, ...]  # runs with the same values in these columns are a row
    metric: tuple[str, ...]
    seed: str | None = None
    base: str | None = None  # the name of a row; None: one of BASES
    lower_is_better: bool = False
    decimal_comma: bool = False  # whether numbers have a comma in place of the decimal point
    margin: Mapping[str, float] = field(default_factory=dict)  # by metric: within it a difference counts as none


class RunsMetric(NamedTuple):
    """A metric, as cells show it."""

    title: str
    digits: int
    lower_is_better: bool


@dataclass(frozen=True)
class RunsRow:
    """What a table states about a row, in one metric."""

    title: str
    measure: RunsMetric
    scores: Sequence[float]
    is_base: bool
    score: RowComparison | None
    of_base: Sequence[float]
    still_falls: bool = False  # whether runs had converged is not known

    def difference(self) -> float | None:
        if self.is_base or not self.scores or not self.of_base:
            return None
        return statistics.fmean(self.scores) - statistics.fmean(self.of_base)


def runs_table(path: Path, options: RunsOptions) -> Table:
    """The table of the runs in a file. Raises an InputError for a file or options that make no table."""
    runs, left_out = read_runs(path, options.row, options.metric, options.seed, options.decimal_comma)
    by_row: dict[str, list[Run]] = {}
    for run in runs:
        by_row.setdefault(run.row, []).append(run)
    if len(by_row) > MOST_ROWS:
        rule = f"must make at most {MOST_ROWS} rows, but make {len(by_row):,}"
        raise InputError(f"--row {','.join(options.row)}: {rule}; name columns that runs of one configuration share")
    base = base_of(path, by_row, options.base)
    names = sorted(by_row, key=lambda name: name != base)  # base first; the others in the order of the file
    columns = [
        Column(key="name", values=names),
        Column("row", names, meaning="What the runs of a row share; base comes first.", page=0),
    ]
    tables = [_rows_of(metric, names, by_row, base, options) for metric in options.metric]
    for metric, rows in zip(options.metric, tables, strict=True):
        columns += _columns(metric, rows, by_row, options)
    notes = [significance_note(tables[0]), *left_out]
    if len(tables) > 1:
        notes.append("Each metric has a test of its own: p is corrected for the rows, not for the metrics.")
    notes += [note for metric in options.metric if (note := _missing(metric, runs))]
    margins = [(options.margin.get(metric), rows) for metric, rows in zip(options.metric, tables, strict=True)]
    notes += [margin_note(margin, rows) for margin, rows in margins if margin is not None]
    if base is None and len(names) > 1:
        notes.append("There are no differences, because no row is the base: name one with --base.")
    called = "base" if base is None or base.lower() in BASES else f"base ({base})"
    said = " ".join(filter(None, (summary(rows, called) for rows in tables)))
    return Table(columns, notes, tables[0], said)


def _rows_of(
    metric: str, names: Sequence[str], by_row: dict[str, list[Run]], base: str | None, options: RunsOptions
) -> list[RunsRow]:
    """The rows in one metric, compared with base."""
    runs = {name: sorted(by_row[name], key=lambda run: run.seed) for name in names}
    scores = {name: [value for run in runs[name] if (value := run.values[metric]) is not None] for name in names}
    comparisons = compare_samples(
        [sample_of_seeds(scores[name]) for name in names], None if base is None else names.index(base)
    )
    spreads = [spread for values in scores.values() if len(values) > 1 if (spread := statistics.stdev(values))]
    digits = min(6, max(0, 1 - math.floor(math.log10(statistics.median(spreads))))) if spreads else 3
    measure = RunsMetric(metric, digits, options.lower_is_better)
    return [
        RunsRow(name, measure, scores[name], name == base, comparison, scores[base] if base is not None else [])
        for name, comparison in zip(names, comparisons, strict=True)
    ]


def _columns(metric: str, rows: Sequence[RunsRow], by_row: dict[str, list[Run]], options: RunsOptions) -> list[Column]:
    """The columns of one metric. Their keys are those of a sweep's table."""
    margin, records = options.margin.get(metric), [_values(row) for row in rows]
    of_metric = "" if len(options.metric) == 1 else f" of {metric}"
    better = "Lower is better." if options.lower_is_better else "Higher is better."

    def column(name: str, cell: Callable[[RunsRow], str], key: str, meaning: str, **options: Any) -> Column:
        values = [record[key] for record in records]
        return Column(name, [cell(row) for row in rows], f"{metric}.{key}", values, meaning, **options)

    def runs(row: RunsRow) -> str:
        done, total = len(row.scores), len(by_row[row.title])
        return f"{done}" if done == total else f"{done}/{total}"

    spread, alone = f"Mean ± standard deviation. {better}", "The interval is for this row alone."
    together = "Simultaneous intervals: in 95 % of tables all contain the true differences."
    power = "The true difference that these runs find in 80 % of cases."
    columns = [
        column(metric, cells.score, "mean", spread, page=1),
        column(f"{metric} 95 %", cells.row_interval, "low", alone, drop_rank=9, page=1, below=True),
    ]
    if any(row.is_base for row in rows):
        change = "The mean minus base's; *: p < 0.05."
        columns += [
            column(f"Δ {metric}", cells.score_difference, "difference", change, page=2),
            column(
                f"Δ 95 %{of_metric}",
                cells.difference_interval,
                "difference.low",
                together,
                drop_rank=8,
                page=2,
                below=True,
            ),
        ]
        if margin is not None:
            texts = [cells.verdict(margin, row) for row in rows]
            meaning = cells.verdict_meaning(margin)
            columns.append(
                Column(f"within {margin:g}{of_metric}", texts, f"{metric}.within.{margin:g}", texts, meaning, page=4)
            )
        columns += [
            column(
                f"p{of_metric}", cells.p_value, "difference.p", "Corrected for the tested rows.", drop_rank=7, page=3
            ),
            column(f"detectable Δ{of_metric}", cells.detectable, "difference.detectable", power, drop_rank=5),
        ]
    columns.append(column(f"runs{of_metric}", runs, "n", "Runs with a number; 2/3: two of three.", drop_rank=6, page=6))
    place = 10 * options.metric.index(metric)  # on the page the columns of a metric stand together
    columns = [one if one.page is None else one._replace(page=one.page + place) for one in columns]
    shown = {column.key for column in columns}
    rest = [key for key in records[0] if f"{metric}.{key}" not in shown]
    return columns + [Column(key=f"{metric}.{key}", values=[record[key] for record in records]) for key in rest]


def _values(row: RunsRow) -> dict[str, float | None]:
    """What programs get of a row in one metric."""
    change = row.score and row.score.difference
    low, high = row.score.row_mean.interval() if row.score and row.score.row_mean else (None, None)
    least, most = change.interval() if change else (None, None)
    return {
        "mean": statistics.fmean(row.scores) if row.scores else None,
        "sd": statistics.stdev(row.scores) if len(row.scores) > 1 else None,
        "n": len(row.scores),
        "low": low,
        "high": high,
        "difference": row.difference(),
        "difference.low": least,
        "difference.high": most,
        "difference.p": row.score and row.score.p_value,
        "difference.detectable": change and change.detectable,
    }


def _missing(metric: str, runs: Sequence[Run]) -> str:
    """Which runs have no number."""
    missing = [f"{run.row} (line {run.line})" for run in runs if run.values[metric] is None]
    if not missing:
        return ""
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return f"{counted(len(missing), 'run')} without {metric}: {', '.join(missing[:SHOWN])}{more}."
