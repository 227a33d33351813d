"""The rows of runs that were trained elsewhere, of which a file has a line for each.

Runs with equal values in some columns of the file are one row of the table. They are a sample of seeds. The sentences
that they were evaluated on are not known.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from transformer_pl.plan.options import margins
from transformer_pl.report.options import MOST_RUNS, RunsReport
from transformer_pl.report.reading import Run, read_runs, refuse_twice
from transformer_pl.runtime.errors import InputError, collect_errors, shown
from transformer_pl.runtime.terminal import counted
from transformer_pl.table.contrast_tables import MISSING
from transformer_pl.table.rows import About, Measure, Row, with_base
from transformer_pl.table.statistics import difference

MOST_ROWS = 500  # with more rows, --row surely names a column in which each run has its own value
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
            Measure(metric, metric, _digits(metric, rows, options.paired), options.lower_is_better)
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
    name, values = options.n or "", dict[str, list[float | None]]()
    n = float(name) if name.isdecimal() else line.values[name]

    def refuse(column: str, value: float | None, rule: str) -> NoReturn:
        number = "" if value is None else f"{value:g}"
        raise InputError(f"{path} line {line.line}: {shown(column)} = {number}: {rule}")

    if n is None or n % 1 or not 1 <= n <= MOST_RUNS:
        rule = f"must be a whole number from 1 to {MOST_RUNS:,}, because this line is the mean of so many runs"
        refuse(name, n, f"{rule}; correct it")
    pattern = np.linspace(-1, 1, int(n)) if n > 1 else np.zeros(1)  # of mean 0
    unit = pattern.std(ddof=1) if n > 1 else 1.0
    for metric, column in zip(options.metric, options.spreads, strict=True):
        mean, spread = line.values[metric], line.values[column]
        if spread is not None and spread < 0:
            refuse(column, spread, "must be 0 or more; leave out its sign, or correct it")
        if spread is not None and n == 1:
            refuse(column, spread, "must be empty where a line is one run; empty it, or correct the number of runs")
        if spread is None and mean is not None and n > 1:
            refuse(column, spread, f"must be a number where a line is the mean of {n:g} runs; add it")
        deviation = (spread or 0.0) * (math.sqrt(n) if options.se else 1)
        values[metric] = [None] * int(n) if mean is None else (mean + pattern * (deviation / unit)).tolist()
    return [line._replace(values={metric: of[i] for metric, of in values.items()}) for i in range(int(n))]


def _made_note(lines: Sequence[Run], options: RunsReport) -> str:
    """How means and deviations are read."""
    note = "Computed from means and standard "
    note += "deviations, which are" if options.std else "errors, times sqrt(n): this is"
    note += " read as sqrt(sum (x - mean)² / (n - 1)). Where n stood in place of n - 1, intervals are too narrow by "
    note += "sqrt(n / (n - 1))."
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
    note = (
        f"Pairs, which agree in {seed}, count as independent. Folds of one cross-validation are not, and need --folds."
    )
    if options.folds:
        note = (
            f"Each {seed} is one of k = {folds} folds of a cross-validation, whose training sets overlap: the variance "
        )
        note += "of the mean of k folds is s² (1/k + 1/(k - 1)) (Nadeau and Bengio 2003)."
    missing = [f"{name} has no {seed} {', '.join(seeds)}" for name, seeds in lacks.items() if seeds]
    return f"{note} Not compared, because the partner is missing: {'; '.join(missing)}." if missing else note


def _row(name: str, runs: Sequence[Run], options: RunsReport, overlap: float = 0.0) -> Row:
    metrics = options.metric
    runs = sorted(runs, key=lambda run: run.seed)  # rows are compared seed by seed
    known = {metric: [run.values[metric] for run in runs] for metric in metrics}
    numbers = {metric: [one for one in values if one is not None] for metric, values in known.items()}
    states = ["done" if any(one is not None for one in run.values.values()) else MISSING for run in runs]
    values = {metric: found for metric, found in numbers.items() if found}
    own_name = "" if name.lower() in BASES else name
    row = Row.of_values(name, values, own_name=own_name, states=states, settings=runs[0].settings)
    samples = {}
    for metric, sample in row.samples.items():
        pairs = [run.seed for run in runs if run.values[metric] is not None] if options.paired else ()
        if not options.spreads or np.ptp(sample.scores):
            samples[metric] = sample._replace(weights=pairs, overlap=overlap, has_seeds=not options.spreads)
    return replace(row, samples=samples)


def _digits(metric: str, rows: Sequence[Row], paired: bool) -> int:
    """As many as the usual spread from run to run, or from pair to pair, has zeros behind the point, and one more."""
    samples = [sample for row in rows if (sample := row.samples.get(metric))]
    spreads = [float(sample.scores.std(ddof=1)) for sample in samples]
    if paired and rows[0].is_base:
        spreads = [difference(sample, samples[0]).standard_error for sample in samples[1:]]
    spreads = [spread for spread in spreads if spread]
    return min(15, max(0, 1 - math.floor(math.log10(statistics.median_low(spreads))))) if spreads else 3


def _missing(metric: str, runs: Sequence[Run]) -> str:
    """Which runs have no number."""
    missing = [f"{run.row} (line {run.line})" for run in runs if run.values[metric] is None]
    if not missing:
        return ""
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return f"{counted(len(missing), 'run')} without {metric}: {', '.join(missing[:SHOWN])}{more}."
