"""The table of anyone's runs: a CSV file with a line for each run, such as an export of W&B, MLflow or a spreadsheet.

Runs with equal values in some columns of the file are one row of the table. They are a sample of seeds. The sentences
that they were evaluated on are not known.
"""

import csv
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from transformer_pl.plan.options import ONLINE_RUNS
from transformer_pl.report import cells
from transformer_pl.report.notes import margin_note, significance_note, summary
from transformer_pl.report.render import Column, Table
from transformer_pl.report.statistics import RowComparison, compare_samples, sample_of_seeds
from transformer_pl.runtime.errors import InputError, shown, suggestion
from transformer_pl.runtime.terminal import counted

BASES = ("base", "baseline")  # names that make a row the base where --base names none
MOST_ROWS = 500  # with more rows, --row surely names a column in which each run has its own value
SHOWN = 5  # names of missing runs in a note
MISSING = ("", "nan", "none", "null", "n/a", "na", "-", "inf", "-inf", "+inf", "infinity", "-infinity")
THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?")  # 1,234.5
DECIMAL_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+([eE][-+]?\d+)?")  # 0,5 and 1.234,5


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """What the columns of a file mean."""

    row: tuple[str, ...]  # runs with the same values in these columns are a row
    metric: tuple[str, ...]
    seed: str | None = None
    base: str | None = None  # the name of a row; None: one of BASES
    lower_is_better: bool = False
    margin: Mapping[str, float] = field(default_factory=dict)  # by metric: within it a difference counts as none


class Run(NamedTuple):
    line: int  # of the file
    row: str
    seed: str
    values: dict[str, float | None]  # by metric; None where it is missing


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
    runs = read_runs(path, options)
    by_row: dict[str, list[Run]] = {}
    for run in runs:
        by_row.setdefault(run.row, []).append(run)
    if len(by_row) > MOST_ROWS:
        rule = f"must make at most {MOST_ROWS} rows, but make {len(by_row):,}"
        raise InputError(f"--row {','.join(options.row)}: {rule}; name columns that runs of one configuration share")
    base = _base(by_row, options)
    names = sorted(by_row, key=lambda name: name != base)  # base first; the others in the order of the file
    columns = [
        Column(key="name", values=names),
        Column("row", names, meaning="What the runs of a row share; base comes first.", page=0),
    ]
    tables = [_rows_of(metric, names, by_row, base, options) for metric in options.metric]
    for metric, rows in zip(options.metric, tables, strict=True):
        columns += _columns(metric, rows, by_row, options)
    notes = [significance_note(tables[0])]
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


def read_runs(path: Path, options: RunsOptions) -> list[Run]:
    """Read the runs of a file. Raises an InputError for what cannot be read, and for two runs of one row and seed."""
    header, lines, delimiter = _read_lines(path)
    wanted = [*options.row, *options.metric, *([options.seed] if options.seed else [])]
    if unknown := [name for name in dict.fromkeys(wanted) if name not in header]:
        raise InputError(*(f"{path}: has no column {shown(name)}{suggestion(name, header)}" for name in unknown))
    texts = {name: [cells[header.index(name)].strip() for _, cells in lines] for name in wanted}
    texts |= {name: _spelled_alike(texts[name]) for name in options.row}
    values = {
        name: _numbers(path, name, texts[name], [line for line, _ in lines], delimiter) for name in options.metric
    }
    runs = []
    for place, (line, _) in enumerate(lines):
        parts = [(name, texts[name][place]) for name in options.row]
        row = parts[0][1] if len(parts) == 1 else " ".join(f"{name}={value}" for name, value in parts)
        seed = texts[options.seed][place] if options.seed else ""
        runs.append(Run(line, row or "(empty)", seed, {name: values[name][place] for name in options.metric}))
    if options.seed:
        first: dict[tuple[str, str], int] = {}
        for run in runs:
            if (earlier := first.setdefault((run.row, run.seed), run.line)) != run.line:
                remedy = "add the column in which they differ to --row, or leave one out"
                rule = f"lines {earlier} and {run.line} must differ in row or seed, but both are"
                raise InputError(f"{path}: {rule} {shown(run.row)} with {options.seed} {shown(run.seed)}; {remedy}")
    return runs


def _read_lines(path: Path) -> tuple[list[str], list[tuple[int, list[str]]], str]:
    """The headings, the other lines with their line numbers, and the delimiter between cells."""
    if (address := str(path)).startswith(ONLINE_RUNS):
        from transformer_pl.train.wandb_run import runs_online  # wandb takes a second

        runs = runs_online(address.removeprefix(ONLINE_RUNS))
        header = list(dict.fromkeys(key for run in runs for key in run))
        lines_ = [(line, [str(run.get(key, "")) for key in header]) for line, run in enumerate(runs, start=1)]
        return header, lines_, "\t"
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; give the path of a CSV file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: must be a CSV file in UTF-8, but: {error}; save it as such") from None
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(text.splitlines(keepends=True), delimiter=delimiter)
    lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    if len(lines) < 2:
        raise InputError(
            f"{path}: must have a line of headings and a line for each run, but has {len(lines)}; export it"
        )
    header = [cell.strip() for cell in lines[0][1]]
    for line, cells_ in lines[1:]:
        if len(cells_) != len(header):
            rule = f"must have {len(header)} cells as the headings, but has {len(cells_)}"
            raise InputError(f"{path} line {line}: {rule}; put text with {shown(delimiter)} in it into quotes")
    return header, lines[1:], delimiter


def _numbers(path: Path, name: str, texts: Sequence[str], lines: Sequence[int], delimiter: str) -> list[float | None]:
    """The numbers of a column; None where one is missing. Raises an InputError for a text that is no number.

    All commas are decimal commas if every number with a comma can be read so. One exception: if commas also divide the
    cells, and every such number can be read with commas between thousands, they are commas between thousands.
    """
    with_comma = [text for text in texts if "," in text]
    is_decimal = bool(with_comma) and all(map(DECIMAL_COMMA.fullmatch, with_comma))
    is_decimal &= delimiter != "," or not all(map(THOUSANDS.fullmatch, with_comma))
    numbers: list[float | None] = []
    for text, line in zip(texts, lines, strict=True):
        if text.lower() in MISSING:
            numbers.append(None)
            continue
        plain = text.replace(".", "").replace(",", ".") if is_decimal and "," in text else text
        plain = plain.replace(",", "") if THOUSANDS.fullmatch(plain) else plain
        try:
            numbers.append(float(plain))
        except ValueError:
            raise InputError(
                f"{path} line {line}: {name} = {shown(text)}: must be a number; leave it empty where there is none"
            ) from None
    if not any(number is not None for number in numbers):
        raise InputError(f"{path}: {name}: must have numbers, but has none in {counted(len(lines), 'run')}")
    return numbers


def _spelled_alike(texts: Sequence[str]) -> list[str]:
    """The texts, with equal numbers spelled as the first of them: 0.1 and 1e-1 are one value."""
    first: dict[Any, str] = {}

    def value(text: str) -> Any:
        try:
            return float(text)
        except ValueError:
            return text

    return [first.setdefault(value(text), text) for text in texts]


def _base(by_row: dict[str, list[Run]], options: RunsOptions) -> str | None:
    if options.base is None:
        return next((name for name in by_row if name.lower() in BASES), None)
    if options.base not in by_row:
        raise InputError(f"--base {shown(options.base)}: is no row{suggestion(options.base, by_row)}")
    return options.base


def _rows_of(
    metric: str, names: Sequence[str], by_row: dict[str, list[Run]], base: str | None, options: RunsOptions
) -> list[RunsRow]:
    """The rows in one metric, compared with base."""
    scores = {name: [value for run in by_row[name] if (value := run.values[metric]) is not None] for name in names}
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
