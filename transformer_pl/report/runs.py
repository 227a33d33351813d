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

from transformer_pl.plan.shared_options import margins
from transformer_pl.report.options import MOST_RUNS, RunsReport
from transformer_pl.report.reading import Run, read_runs, refuse_twice
from transformer_pl.runtime.errors import InputError, collect_errors, shown
from transformer_pl.runtime.terminal import counted
from transformer_pl.table.contrast_tables import MISSING
from transformer_pl.table.rows import About, Measure, Row, with_base
from transformer_pl.table.statistics import difference

MOST_ROWS = 500  # with more rows, --row surely names a column in which each run has its own value
MOST_SPREAD = 1e100  # squares of larger ones are no numbers
BASES = ("base", "baseline")  # names that make a row the base where --base names none
SHOWN = 5  # names of missing runs in a note


def runs_rows(path: Path, options: RunsReport) -> tuple[list[Row], About]:
    """The rows of the runs in a file, and what their table is of. Raises an InputError for what makes no table."""
    count = [options.n] if options.n and not options.n.isdecimal() else []
    numbers = [*options.metric, *options.spreads, *count]
    runs, notes = read_runs(path, options.row, numbers, options.seed, options.decimal_comma)
    added = [*notes, *filter(None, (_missing(metric, runs) for metric in options.metric))]
    if options.spreads:
        added.append(_made_note(runs, options))
        runs = _runs_of_means(path, runs, options)
    by_row: dict[str, list[Run]] = {}
    for run in runs:
        by_row.setdefault(run.row, []).append(run)
    if len(by_row) > MOST_ROWS:
        rule = f"must make at most {MOST_ROWS} rows, but make {len(by_row):,}"
        raise InputError(f"--row {','.join(options.row)}: {rule}; name columns that runs of one configuration share")
    folds = len({run.seed for run in runs})
    overlap = 1 / (folds - 1) if options.folds and folds > 1 else 0.0
    rows = [_row(name, of_row, options, overlap) for name, of_row in by_row.items()]
    rows = with_base(rows, options.base or _named_base(path, rows), is_reference=False)
    rows.sort(key=lambda row: not row.is_base)  # the others in the order of the file
    if options.paired and rows[0].is_base:
        added.append(_pairs_note(path, rows[0].name, by_row, options, folds))
    about = About(
        measures=[
            Measure(metric, metric, _digits(metric, rows, options), options.lower_is_better)
            for metric in options.metric
        ],
        trial="run",
        shared="seeds",
        margins=margins(options.margin, options.metric),
        added=added,
        shows_settings=False,
    )
    return rows, about


def _named_base(path: Path, rows: Sequence[Row]) -> str | None:
    """The row that is base by its name. Raises an InputError for two of them."""
    found = [row.name for row in rows if row.name.lower() in BASES]
    if len(found) > 1:
        which = " and ".join(map(shown, found))
        raise InputError(f"{path}: one row must be the base, but {which} could each be it; name it with --base")
    return found[0] if found else None


def _runs_of_means(path: Path, lines: Sequence[Run], options: RunsReport) -> list[Run]:
    """As many runs as each line is the mean of, with exactly its mean and its standard deviation.

    Raises an InputError for a number or a deviation that no runs have.
    """
    refuse_twice(path, lines)
    made = collect_errors(lambda place: _made(path, lines[place], options), range(len(lines)))
    return [run for runs in made.values() for run in runs]


def _made(path: Path, line: Run, options: RunsReport) -> list[Run]:
    """The runs that a line is the mean of."""
    count, values = _run_count(path, line, options.n or ""), dict[str, list[float | None]]()
    pattern = np.linspace(-1, 1, count) if count > 1 else np.zeros(1)  # of mean 0
    unit = pattern.std(ddof=1) if count > 1 else 1.0
    for metric, column in zip(options.metric, options.spreads, strict=True):
        mean, spread = line.values[metric], line.values[column]
        if rule := _mistake_in(spread, count, mean is not None):
            raise InputError(f"{_cell(path, line, column, spread)}: {rule}")
        deviation = (spread or 0.0) * (math.sqrt(count) if options.se else 1)
        values[metric] = [None] * count if mean is None else (mean + pattern * (deviation / unit)).tolist()
    return [line._replace(values={metric: of[i] for metric, of in values.items()}) for i in range(count)]


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
    if not 0 <= spread <= MOST_SPREAD:
        return f"must be from 0 to {MOST_SPREAD:g}; correct it"
    is_one = "must be empty where a line is one run; empty it, or correct the number of runs"
    return is_one if count == 1 else ""


def _cell(path: Path, line: Run, column: str, value: float | None) -> str:
    return f"{path} line {line.line}: {shown(column)} = {'' if value is None else f'{value:g}'}"


def _made_note(lines: Sequence[Run], options: RunsReport) -> str:
    """How means and deviations are read."""
    note = (
        f"Computed from means and standard {'deviations' if options.std else 'errors times sqrt(n)'}, which are read "
    )
    note += "as those of n - 1. If n stood in its place, intervals are too narrow by sqrt(n / (n - 1))."
    zero = dict.fromkeys(line.row for line in lines if 0 in (line.values[spread] for spread in options.spreads))
    return f"{note} A deviation of 0 was rounded, and has no test: {', '.join(zero)}." if zero else note


def _pairs_note(path: Path, base: str, by_row: Mapping[str, Sequence[Run]], options: RunsReport, folds: int) -> str:
    """What a pair is, and which runs have no partner. Raises an InputError for rows that are no pairs with base."""
    seed, lacks = options.seed or "", dict[str, dict[str, None]]()
    if unnamed := [run.line for runs in by_row.values() for run in runs if not run.seed]:
        raise InputError(f"{path} line {unnamed[0]}: {shown(seed)}: must say of which pair this run is; fill it in")
    for metric in options.metric:
        of_rows = {name: [run.seed for run in runs if run.values[metric] is not None] for name, runs in by_row.items()}
        for name, seeds in of_rows.items():
            if seeds and len({*seeds} & {*of_rows[base]}) < 2:
                rule = f"must have numbers at two or more {shown(seed)} of {shown(base)}"
                raise InputError(f"{path}: {shown(name)}: {shown(metric)}: {rule}; correct them, or leave the row out")
            for one, other in ((name, base), (base, name)):
                lacks.setdefault(one, {}).update(dict.fromkeys(s for s in of_rows[other] if s not in of_rows[one]))
    missing = "; ".join(f"{name} has no {seed} {_listed([*seeds])}" for name, seeds in lacks.items() if seeds)
    note = _what_a_pair_is(seed, folds if options.folds else 0)
    return f"{note} Not compared, because the partner is missing: {missing}." if missing else note


def _what_a_pair_is(seed: str, folds: int) -> str:
    """folds: of a cross-validation; 0 for pairs that are independent."""
    if not folds:
        return f"Pairs, which agree in {seed}, count as independent. Folds of a cross-validation do not: see --folds."
    return (
        f"Each {seed} is one of k = {folds} folds of a cross-validation, whose training sets overlap: the variance of "
        "the mean of k folds is s² (1/k + 1/(k - 1)) (Nadeau and Bengio 2003)."
    )


def _row(name: str, runs: Sequence[Run], options: RunsReport, overlap: float) -> Row:
    """The row of some runs. overlap: as that of a `Sample`."""
    runs = sorted(runs, key=lambda run: run.seed)  # rows are compared seed by seed
    values = {metric: numbers for metric in options.metric if (numbers := _numbers(runs, metric))}
    states = ["done" if {*run.values.values()} - {None} else MISSING for run in runs]
    own_name = "" if name.lower() in BASES else name
    row = Row.of_values(name, values, own_name=own_name, states=states, settings=runs[0].settings)
    samples = {}
    for metric, sample in row.samples.items():
        pairs = [run.seed for run in runs if run.values[metric] is not None] if options.paired else []
        if not options.spreads or np.ptp(sample.scores):
            samples[metric] = sample._replace(weights=pairs, overlap=overlap, has_seeds=not options.spreads)
    return replace(row, samples=samples)


def _numbers(runs: Sequence[Run], metric: str) -> list[float]:
    """The values of a metric that are known, run by run."""
    return [value for run in runs if (value := run.values[metric]) is not None]


def _digits(metric: str, rows: Sequence[Row], options: RunsReport) -> int:
    """As many as the usual spread from run to run, or from pair to pair, has zeros behind the point, and one more."""
    samples = [sample for row in rows if (sample := row.samples.get(metric))]
    spreads = [float(np.std(sample.scores, ddof=1)) for sample in samples]
    if options.paired and rows[0].is_base:
        spreads = [difference(sample, samples[0]).standard_error for sample in samples[1:]]
    spreads = [spread for spread in spreads if 0 < spread < math.inf]
    return min(15, max(0, 1 - math.floor(math.log10(statistics.median_low(spreads))))) if spreads else 3


def _missing(metric: str, runs: Sequence[Run]) -> str:
    """Which runs have no number."""
    missing = [f"{run.row} (line {run.line})" for run in runs if run.values[metric] is None]
    return f"{counted(len(missing), 'run')} without {metric}: {_listed(missing)}." if missing else ""


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:SHOWN])}{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}"
