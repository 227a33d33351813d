"""The rows of runs that were trained elsewhere, of which a file has a line for each.

Runs with equal values in some columns of the file are one row of the table. They are a sample of seeds. The sentences
that they were evaluated on are not known.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from transformer_pl.plan.shared_options import ONLINE_RUNS, SHIPPED, margins
from transformer_pl.report.options import MOST_RUNS, RunsReport
from transformer_pl.report.reading import Run, read_runs, refuse_twice
from transformer_pl.report.tables import printable, table_of
from transformer_pl.runtime.errors import InputError, collect_errors, shown
from transformer_pl.runtime.terminal import counted
from transformer_pl.table.contrast_tables import MISSING
from transformer_pl.table.formats import Table
from transformer_pl.table.moderation import variance_of
from transformer_pl.table.rows import About, Measure, Row, with_base
from transformer_pl.table.statistics import difference

MOST_ROWS = 500  # with more rows, --row surely names a column in which each run has its own value
BASES = ("base", "baseline")  # names that make a row the base where --base names none
SHOWN = 5  # names of missing runs in a note


def runs_report(options: RunsReport) -> tuple[str, Table | Path]:
    """The name of a file of runs, and its table, or the path of its page, in a folder beside the file."""
    file = options.files[0]
    folder = file.with_suffix(".report")
    if str(file).startswith(ONLINE_RUNS):
        folder = Path(f"{file.name}.report")
    elif file.is_relative_to(SHIPPED):  # nothing is written there
        folder = Path(folder.name)
    table = table_of(*runs_rows(file, options), options)
    return file.name, printable(table, file.name, folder, _draw_page, options)


def _draw_page(folder: Path, title: str, table: Table) -> None:
    from transformer_pl.table.figures import forest  # matplotlib takes a second
    from transformer_pl.table.html import write_html

    drawing = forest(table.contrasts)
    write_html(folder, title, table, {"differences": drawing} if drawing else {})


def runs_rows(path: Path, options: RunsReport) -> tuple[list[Row], About]:
    """The rows of the runs in a file, and what their table is of. Raises an InputError for what makes no table."""
    runs, notes = read_runs(path, options.row, options.numbers, options.seed, options.decimal_comma)
    if options.seed or options.spreads:
        refuse_twice(path, runs, options.seed)
    rows = _of_means(path, runs, options) if options.spreads else _of_runs(runs, options)
    if len(rows) > MOST_ROWS:
        rule = f"must make at most {MOST_ROWS} rows, but make {len(rows):,}"
        raise InputError(f"--row {','.join(options.row)}: {rule}; name columns that runs of one configuration share")
    rows = with_base(rows, options.base or _named_base(path, rows), is_reference=False)
    rows.sort(key=lambda row: not row.is_base)  # the others in the order of the file
    notes += filter(None, (_missing(metric, runs) for metric in options.metric))
    if options.spreads:
        notes.append(_note_on_means(runs, options))
    if options.paired and rows[0].is_base:
        notes.append(_note_on_pairs(path, rows, runs, options))
    if options.pairs or options.factors:
        _refuse_untested(path, rows, options)
    measures = [Measure(name, name, _digits(name, rows, options), options.lower_is_better) for name in options.metric]
    margin = margins(options.margin, options.metric)
    return rows, About(
        measures=measures, trial="run", shared="seeds", margins=margin, added=notes, shows_settings=False
    )


def _of_runs(runs: Sequence[Run], options: RunsReport) -> list[Row]:
    """The rows of runs. With --paired they have the seeds by which they are compared with base, and with --folds the
    overlap of a `Sample`."""
    by_row: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):  # rows are compared seed by seed
        by_row.setdefault(run.row, []).append(run)
    folds = len({run.seed for run in runs})
    overlap = 1 / (folds - 1) if options.folds and folds > 1 else 0.0
    rows = []
    for name in dict.fromkeys(run.row for run in runs):
        known = {metric: _known(by_row[name], metric) for metric in options.metric}
        states = ["done" if {*run.values.values()} - {None} else MISSING for run in by_row[name]]
        row = _row(by_row[name][0], {metric: [*values] for metric, (_, values) in known.items() if values}, states)
        if options.paired:
            pairs = {key: one._replace(weights=known[key][0], overlap=overlap) for key, one in row.samples.items()}
            row = replace(row, samples=pairs)
        rows.append(row)
    return rows


def _known(runs: Sequence[Run], metric: str) -> tuple[list[str], list[float]]:
    """The seeds of the runs that have a number, and these numbers."""
    known = [(run.seed, value) for run in runs if (value := run.values[metric]) is not None]
    return [seed for seed, _ in known], [value for _, value in known]


def _row(run: Run, values: Mapping[str, Sequence[float]], states: Sequence[str]) -> Row:
    own_name = "" if run.row.lower() in BASES else run.row
    return Row.of_values(run.row, values, own_name=own_name, states=states, settings=run.settings)


def _named_base(path: Path, rows: Sequence[Row]) -> str | None:
    """The row that is base by its name. Raises an InputError for two of them."""
    found = [row.name for row in rows if row.name.lower() in BASES]
    if len(found) > 1:
        which = " and ".join(map(shown, found))
        raise InputError(f"{path}: one row must be the base, but {which} could each be it; name it with --base")
    return found[0] if found else None


def _refuse_untested(path: Path, rows: Sequence[Row], options: RunsReport) -> None:
    """Raise an InputError for rows that cannot be compared with every other one."""
    (metric,) = options.metric
    if wrong := [row.name for row in rows if metric not in row.samples]:
        rule = "must have numbers of two runs or more" + ", and a deviation above 0" * bool(options.spreads)
        raise InputError(f"{path}: {metric} of {_listed(wrong)}: {rule}; correct it, or leave out the row")


# ---------------------------------------------------------------------------------------------------------------------
# Lines with a mean and its deviation


def _of_means(path: Path, lines: Sequence[Run], options: RunsReport) -> list[Row]:
    """A row for each line, of as many runs as it is the mean of, with exactly its mean and its standard deviation.

    Raises an InputError for a number or a deviation that no runs have.
    """
    return [*collect_errors(lambda place: _of_mean(path, lines[place], options), range(len(lines))).values()]


def _of_mean(path: Path, line: Run, options: RunsReport) -> Row:
    count, values = _run_count(path, line, options.n or ""), dict[str, list[float]]()
    pattern = np.linspace(-1, 1, count) if count > 1 else np.zeros(1)  # of mean 0
    unit = pattern.std(ddof=1) if count > 1 else 1.0
    for metric, column in zip(options.metric, options.spreads, strict=True):
        mean, spread = line.values[metric], line.values[column]
        if rule := _mistake_in(spread, count, mean is not None):
            raise InputError(f"{_cell(path, line, column, spread)}: {rule}")
        deviation = (spread or 0.0) * (math.sqrt(count) if options.se else 1)
        if mean is not None:
            values[metric] = (mean + pattern * (deviation / unit)).tolist()
    row = _row(line, values, ["done" if values else MISSING] * count)
    tested = {key: one._replace(has_seeds=False) for key, one in row.samples.items() if np.ptp(one.scores)}
    return replace(row, samples=tested)


def _run_count(path: Path, line: Run, column: str) -> int:
    """Of how many runs a line is the mean. column: of --n, or a number. Raises an InputError for what is no count."""
    n = float(column) if column.isdecimal() else line.values[column]
    if not {*line.values.values()} - {None}:
        return 1  # a row without numbers, which a note names
    if n is None or n % 1 or not 1 <= n <= MOST_RUNS:
        rule = f"must be a whole number from 1 to {MOST_RUNS:,}, because this line is the mean of so many runs"
        raise InputError(f"{_cell(path, line, column, n)}: {rule}; correct it")
    return int(n)


def _mistake_in(spread: float | None, count: int, has_mean: bool) -> str:
    """What is wrong with a deviation or standard error of so many runs, and what to do; empty for none."""
    if spread is None:
        needs = has_mean and count > 1
        return f"must be a number where a line is the mean of {count} runs; add it" if needs else ""
    if spread < 0:
        return "must be at least 0; correct it"
    is_one = "must be empty where a line is one run; empty it, or correct the number of runs"
    return is_one if count == 1 else ""


def _cell(path: Path, line: Run, column: str, value: float | None) -> str:
    return f"{path} line {line.line}: {shown(column)} = {'' if value is None else f'{value:g}'}"


def _note_on_means(lines: Sequence[Run], options: RunsReport) -> str:
    """How means and deviations are read."""
    of = "deviations" if options.std else "errors times sqrt(n)"
    note = f"Computed from means and standard {of}, which are read as those of n - 1. If n stood in its place, "
    note += "intervals are too narrow by sqrt(n / (n - 1))."
    columns, several = [*zip(options.metric, options.spreads, strict=True)], len(options.metric) > 1
    zero = [line.row + f" ({name})" * several for line in lines for name, spread in columns if line.values[spread] == 0]
    return f"{note} A deviation of 0 was rounded, and has no test: {', '.join(zero)}." if zero else note


# ---------------------------------------------------------------------------------------------------------------------
# Pairs


def _note_on_pairs(path: Path, rows: Sequence[Row], runs: Sequence[Run], options: RunsReport) -> str:
    """What a pair is, and which runs of the rows, of which the first is base, have no partner. Raises an InputError for
    rows that are no pairs with base."""
    seed = options.seed or ""
    if unnamed := [run.line for run in runs if not run.seed]:
        raise InputError(f"{path} line {unnamed[0]}: {shown(seed)}: must say of which pair this run is; fill it in")
    several = len(options.metric) > 1
    lacks = {metric: _without_partner(path, rows, metric, seed) for metric in options.metric}
    missing = "; ".join(f"for {metric} " * several + text for metric, text in lacks.items() if text)
    note = f"Pairs, which agree in {seed}, count as independent. Folds of a cross-validation do not: see --folds."
    if options.folds:
        note = (
            f"Each {seed} is one of k = {len({run.seed for run in runs})} folds of a cross-validation, whose training "
            "sets overlap: the variance of the mean of k folds is s² (1/k + 1/(k - 1)) (Nadeau and Bengio 2003)."
        )
    return f"{note} Not compared, because the partner is missing: {missing}." if missing else note


def _without_partner(path: Path, rows: Sequence[Row], metric: str, seed: str) -> str:
    """Which runs of rows have no partner in base, and which of base have none in a row. Raises an InputError for rows
    that have less than two pairs with base, the first of the rows."""
    seeds = {row.name: {*row.samples[metric].weights} if metric in row.samples else set() for row in rows}
    base, of_base = rows[0].name, seeds[rows[0].name]
    rule = f"must have numbers at two or more {shown(seed)} of {shown(base)}; correct them, or leave the row out"
    wrong = [row.name for row in rows if metric in row.values and len(seeds[row.name] & of_base) < 2]
    if wrong:
        raise InputError(*(f"{path}: {shown(name)}: {shown(metric)}: {rule}" for name in wrong))
    lacks = {name: of_base - own for name, own in seeds.items()} | {base: set().union(*seeds.values()) - of_base}
    return "; ".join(f"{name} has no {seed} {_listed(sorted(missing))}" for name, missing in lacks.items() if missing)


# ---------------------------------------------------------------------------------------------------------------------


def _digits(metric: str, rows: Sequence[Row], options: RunsReport) -> int:
    """As many as the usual spread from run to run, or from pair to pair, has zeros behind the point, and one more."""
    samples = [sample for row in rows if (sample := row.samples.get(metric))]
    if options.paired and rows[0].is_base:
        of_each = [(difference(sample, samples[0]).standard_error, sample) for sample in samples[1:]]
    else:
        of_each = [(math.sqrt(variance_of(sample.scores)), sample) for sample in samples]
    spreads = [spread for spread, of in of_each if np.spacing(abs(of.scores).max()) < spread < math.inf]
    return min(15, max(0, 1 - math.floor(math.log10(statistics.median_low(spreads))))) if spreads else 3


def _missing(metric: str, runs: Sequence[Run]) -> str:
    """Which runs have no number."""
    missing = [f"{run.row} (line {run.line})" for run in runs if run.values[metric] is None]
    return f"{counted(len(missing), 'run')} without {metric}: {_listed(missing)}." if missing else ""


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:SHOWN])}{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}"
