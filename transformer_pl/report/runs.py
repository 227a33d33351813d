"""The rows of runs that were trained elsewhere, of which a file has a line for each.

Runs with equal values in some columns of the file are one row of the table. They are a sample of seeds. The sentences
that they were evaluated on are not known.
"""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from transformer_pl.plan.options import margins
from transformer_pl.report.options import RunsReport
from transformer_pl.report.reading import BASES, Run, base_of, read_runs
from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import counted
from transformer_pl.table.contrast_tables import MISSING
from transformer_pl.table.rows import About, Measure, Row

MOST_ROWS = 500  # with more rows, --row surely names a column in which each run has its own value
SHOWN = 5  # names of missing runs in a note


def runs_rows(path: Path, options: RunsReport) -> tuple[list[Row], About]:
    """The rows of the runs in a file, and what their table is of. Raises an InputError for what makes no table."""
    runs, notes = read_runs(path, options.row, options.metric, options.seed, options.decimal_comma)
    by_row: dict[str, list[Run]] = {}
    for run in runs:
        by_row.setdefault(run.row, []).append(run)
    if len(by_row) > MOST_ROWS:
        rule = f"must make at most {MOST_ROWS} rows, but make {len(by_row):,}"
        raise InputError(f"--row {','.join(options.row)}: {rule}; name columns that runs of one configuration share")
    base = base_of(path, by_row, options.base)
    names = sorted(by_row, key=lambda name: name != base)  # base first; the others in the order of the file
    rows = [_row(name, by_row[name], options, base) for name in names]
    about = About(
        measures=[Measure(metric, metric, _digits(metric, rows), options.lower_is_better) for metric in options.metric],
        trial="run",
        margins=margins(options.margin, options.metric),
        added=[*notes, *filter(None, (_missing(metric, runs) for metric in options.metric))],
        shows_settings=False,
    )
    return rows, about


def _row(name: str, runs: Sequence[Run], options: RunsReport, base: str | None) -> Row:
    runs = sorted(runs, key=lambda run: run.seed)  # rows are compared seed by seed
    known = {metric: [run.values[metric] for run in runs] for metric in options.metric}
    numbers = {metric: [one for one in values if one is not None] for metric, values in known.items()}
    states = ["done" if any(one is not None for one in run.values.values()) else MISSING for run in runs]
    values = {metric: found for metric, found in numbers.items() if found}
    own_name = "" if name.lower() in BASES else name
    settings = runs[0].settings
    return Row.of_values(name, values, own_name=own_name, is_base=name == base, states=states, settings=settings)


def _digits(metric: str, rows: Sequence[Row]) -> int:
    """As many as the usual spread from run to run has zeros behind the point, and one more."""
    values = [row.values[metric] for row in rows if len(row.values.get(metric, ())) > 1]
    spreads = [spread for of_row in values if (spread := statistics.stdev(of_row))]
    return min(15, max(0, 1 - math.floor(math.log10(statistics.median(spreads))))) if spreads else 3


def _missing(metric: str, runs: Sequence[Run]) -> str:
    """Which runs have no number."""
    missing = [f"{run.row} (line {run.line})" for run in runs if run.values[metric] is None]
    if not missing:
        return ""
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return f"{counted(len(missing), 'run')} without {metric}: {', '.join(missing[:SHOWN])}{more}."
