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
from transformer_pl.report.reading import Run, read_runs
from transformer_pl.runtime.errors import InputError, shown
from transformer_pl.runtime.terminal import counted
from transformer_pl.table.contrast_tables import MISSING
from transformer_pl.table.rows import About, Measure, Row, with_base

MOST_ROWS = 500  # with more rows, --row surely names a column in which each run has its own value
BASES = ("base", "baseline")  # names that make a row the base where --base names none
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
    rows = [_row(name, of_row, options.metric) for name, of_row in by_row.items()]
    rows = with_base(rows, options.base or _named_base(path, rows), is_reference=False)
    rows.sort(key=lambda row: not row.is_base)  # the others in the order of the file
    about = About(
        measures=[Measure(metric, metric, _digits(metric, rows), options.lower_is_better) for metric in options.metric],
        trial="run",
        margins=margins(options.margin, options.metric),
        added=[*notes, *filter(None, (_missing(metric, runs) for metric in options.metric))],
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


def _row(name: str, runs: Sequence[Run], metrics: Sequence[str]) -> Row:
    runs = sorted(runs, key=lambda run: run.seed)  # rows are compared seed by seed
    known = {metric: [run.values[metric] for run in runs] for metric in metrics}
    numbers = {metric: [one for one in values if one is not None] for metric, values in known.items()}
    states = ["done" if any(one is not None for one in run.values.values()) else MISSING for run in runs]
    values = {metric: found for metric, found in numbers.items() if found}
    own_name = "" if name.lower() in BASES else name
    return Row.of_values(name, values, own_name=own_name, states=states, settings=runs[0].settings)


def _digits(metric: str, rows: Sequence[Row]) -> int:
    """As many as the usual spread from run to run has zeros behind the point, and one more."""
    values = [row.values[metric] for row in rows if len(row.values.get(metric, ())) > 1]
    spreads = [spread for of_row in values if (spread := statistics.stdev(of_row))]
    return min(15, max(0, 1 - math.floor(math.log10(statistics.median_low(spreads))))) if spreads else 3


def _missing(metric: str, runs: Sequence[Run]) -> str:
    """Which runs have no number."""
    missing = [f"{run.row} (line {run.line})" for run in runs if run.values[metric] is None]
    if not missing:
        return ""
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return f"{counted(len(missing), 'run')} without {metric}: {', '.join(missing[:SHOWN])}{more}."
