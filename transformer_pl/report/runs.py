"""The rows of runs that were trained elsewhere, of which a file has a line for each.

Runs with equal values in some columns of the file are one row of the table. They are a sample of seeds. What they were
evaluated on is known where a run has a line for each item, such as a question.
"""

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from shlex import quote

import numpy as np

from transformer_pl.plan.shared_options import ONLINE_RUNS, margins
from transformer_pl.report.reading import Runs, codes_of, listed, read_runs, refuse_empty, refuse_twice, words_in
from transformer_pl.report.report_options import MOST_RUNS, RunsReport
from transformer_pl.report.tables import printable, table_of
from transformer_pl.runtime.errors import InputError, collect_errors, shown
from transformer_pl.runtime.terminal import counted
from transformer_pl.table.formats import Table
from transformer_pl.table.notes import FEWEST_SENTENCES
from transformer_pl.table.row import MISSING, About, Facts, Outcome, Row, with_base
from transformer_pl.table.statistics import Sample, by_cluster, difference, estimate, sample

MOST_ROWS = 500  # with more rows, --row surely names a column in which each run has its own value
BASES = ("base", "baseline")  # names that make a row the base where --base names none
FOLDS = {"fold", "folds", "kfold", "split", "splits", "cv"}  # words of a heading that names parts of one dataset
FEW_PAIRS = 5  # which say little of how their differences spread


def runs_report(options: RunsReport) -> tuple[str, Table | Path]:
    """The name of a file of runs, and its table, or the path of its page, in a folder beside the file."""
    file = options.files[0]
    folder = file.with_suffix(".report")
    if str(file).startswith(ONLINE_RUNS):
        folder = Path(f"{file.name}.report")
    table = table_of(*runs_rows(file, options), options.pairs)._replace(label=file.name)
    return file.name, printable(table, file.name, folder, _draw_page, options)


def _draw_page(folder: Path, title: str, table: Table) -> None:
    from transformer_pl.table.figures import forest  # matplotlib takes a second
    from transformer_pl.table.html import write_html

    drawing = forest(table.contrasts, trial="run")
    write_html(folder, title, table, {"differences": drawing} if drawing else {})


def runs_rows(path: Path, options: RunsReport) -> tuple[list[Row], About]:
    """The rows of the runs in a file, and what their table is of. Raises an InputError for what makes no table."""
    runs, notes = read_runs(path, options.row, options.numbers, options.seed, options.item, options.cluster)
    if options.seed or options.spreads or options.item:
        refuse_twice(path, runs, options.seed, options.item)
    rows = (_of_means if options.spreads else _of_runs)(path, runs, options)
    if len(rows) > MOST_ROWS:
        rule = f"must make at most {MOST_ROWS} rows, but make {len(rows):,}"
        raise InputError(f"--row {','.join(options.row)}: {rule}; name columns that runs of one configuration share")
    rows = with_base(rows, options.base or (None if options.pairs else _named_base(path, rows)), is_reference=False)
    if sum(row.name.lower() in BASES for row in rows) == 1:  # else each needs its own name
        rows = [replace(row, own_name="") if row.is_base and row.name.lower() in BASES else row for row in rows]
    rows.sort(key=lambda row: not row.is_base)  # the others in the order of the file
    if options.pairs:
        _refuse_untested(path, rows, options)
    outcomes = [
        Outcome(name, name, _digits(name, rows, options), options.is_lower_better(name)) for name in options.metric
    ]
    margin, facts = margins(options.margin, options.metric), Facts(others=[*notes, *_notes(path, rows, runs, options)])
    about = About(outcomes=outcomes, trial="run", shared="pairs", within="pair", margins=margin, shows_settings=False)
    how = f"name one with --base: {listed([quote(row.name) for row in rows])}"
    return rows, replace(about, unit=_unit(options), facts=facts, how_to_name_base=how)


def _of_runs(path: Path, runs: Runs, options: RunsReport) -> list[Row]:
    """The rows of runs. With --paired they have the seeds by which they are compared with base."""
    by_row: dict[str, list[int]] = {name: [] for name in runs.rows}
    for place in sorted(range(len(runs.rows)), key=runs.seeds.__getitem__):  # rows are compared seed by seed
        by_row[runs.rows[place]].append(place)
    items = _clusters(path, runs, options)
    return [_of_row(path, runs, places, items, options) for places in by_row.values()]


def _clusters(path: Path, runs: Runs, options: RunsReport) -> dict[str, str]:
    """The cluster of each item, sorted by item; empty where there are no items. Raises an InputError for an item in two
    clusters, and for few clusters."""
    clusters, columns = dict[str, str](), ",".join(options.cluster or options.item)
    for line, item, cluster in zip(runs.lines, runs.items, runs.clusters, strict=False):
        if clusters.setdefault(item, cluster) != cluster:
            rule = f"must be of one {columns}, but is of {shown(clusters[item])}, and here of {shown(cluster)}"
            remedy = f"correct it, or name {columns} in --item, too, if each has items of its own"
            raise InputError(f"{path} line {line}: --item {shown(item)}: {rule}; {remedy}")
    if options.item and len(count := {*clusters.values()}) < FEWEST_SENTENCES:
        option = f"--cluster {columns}" if options.cluster else f"--item {columns}"
        rule = f"must tell apart at least {FEWEST_SENTENCES} {_unit(options)}, but has {len(count)}"
        raise InputError(f"{path}: {option}: {rule}; give each run one line, with its mean")
    return dict(sorted(clusters.items()))


def _unit(options: RunsReport) -> str:
    """What intervals cover beside runs."""
    return "clusters of items" if options.cluster else "items" * bool(options.item)


def _of_row(path: Path, runs: Runs, places: Sequence[int], items: Mapping[str, str], options: RunsReport) -> Row:
    """The row of the runs at these places of the file. items: those that each run has a line for, with their clusters;
    empty: it has one."""
    name, seeds = runs.rows[places[0]], [runs.seeds[place] for place in places]
    numbers = {metric: runs.values[metric][places][:, None] for metric in options.metric}  # (runs, 1)
    if items:
        seeds = [*dict.fromkeys(seeds)]
        numbers = {metric: _of_items(path, runs, metric, places, items) for metric in options.metric}  # (runs, items)
    known = {metric: np.flatnonzero(~np.isnan(of_runs).any(1)) for metric, of_runs in numbers.items()}
    values = {metric: numbers[metric][which].mean(1).tolist() for metric, which in known.items() if len(which)}
    done = len(np.unique(np.concatenate([*known.values()])))
    row = _row(name, runs, values, ["done"] * done + [MISSING] * (len(seeds) - done + runs.unfinished.get(name, 0)))
    samples = dict(row.samples)
    if items:
        samples = {key: _of_clusters(numbers[key][known[key]], [*items.values()]) for key in values}
    if options.paired:
        samples = {key: of._replace(weights=[seeds[run] for run in known[key]]) for key, of in samples.items()}
    return replace(row, samples=samples)


def _of_clusters(numbers: np.ndarray, clusters: Sequence[str]) -> Sample:
    """The mean over the items of the runs of a row (runs, items), whose clusters are a random sample."""
    sums = by_cluster(np.stack([numbers, np.ones_like(numbers)], -1), clusters)  # (runs, clusters, 2)
    return sample(sums, lambda of: of[..., 0] / of[..., 1], np.unique(clusters))


def _of_items(path: Path, runs: Runs, metric: str, places: Sequence[int], items: Collection[str]) -> np.ndarray:
    """The numbers of the runs of a row (runs, items). Raises an InputError for a run that has those of some items."""
    of_runs, columns = codes_of([runs.seeds[place] for place in places]), {item: n for n, item in enumerate(items)}
    numbers = np.full((of_runs.max() + 1, len(items)), np.nan)
    numbers[of_runs, [columns[runs.items[place]] for place in places]] = runs.values[metric][places]
    is_missing = np.isnan(numbers)
    for run in np.flatnonzero(is_missing.any(1) & ~is_missing.all(1)).tolist():
        lacks = listed([item for item, is_lacking in zip(items, is_missing[run], strict=True) if is_lacking])
        place = places[of_runs.tolist().index(run)]
        where = f"{path}: {shown(runs.rows[place])}{f', run {shown(runs.seeds[place])}' if runs.seeds[place] else ''}"
        rule = f"must be a number for each item that another run has, but is none for {lacks}"
        raise InputError(f"{where}: {shown(metric)}: {rule}; add it, or leave these items out of all runs")
    return numbers


def _row(name: str, runs: Runs, values: Mapping[str, Sequence[float]], states: Sequence[str]) -> Row:
    return Row.of_values(name, values, own_name=name, states=states, settings=runs.settings[name])


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
    if wrong := [row.name for row in rows if metric not in row.samples or len(row.samples[metric].scores) < 2]:
        rule = "must have numbers of two runs or more" + ", and a deviation above 0" * bool(options.spreads)
        raise InputError(f"{path}: {metric} of {listed(wrong)}: {rule}; correct it, or leave out the row")


# ---------------------------------------------------------------------------------------------------------------------
# Lines with a mean and its deviation


def _of_means(path: Path, runs: Runs, options: RunsReport) -> list[Row]:
    """The rows of lines that are means."""
    return [*collect_errors(lambda place: _of_mean(path, runs, place, options), range(len(runs.rows))).values()]


def _of_mean(path: Path, runs: Runs, place: int, options: RunsReport) -> Row:
    """The row of a line, of as many runs as it is the mean of, with exactly its mean and its standard deviation.

    Raises an InputError for a number or a deviation that no runs have.
    """
    line, numbers, values = f"{path} line {runs.lines[place]}", runs.numbers(place), dict[str, list[float]]()
    count = _run_count(line, numbers, options.n or "")
    pattern = np.linspace(-1, 1, count) if count > 1 else np.zeros(1)  # of mean 0
    unit, halves = pattern.std(ddof=1) if count > 1 else 1.0, dict[str, tuple[float, float]]()
    for metric, column in zip(options.metric, options.spreads, strict=True):
        mean, spread = numbers[metric], numbers[column]
        if rule := _mistake_in(spread, count, mean is not None):
            raise InputError(f"{_cell(line, column, spread)}: {rule}")
        times = math.sqrt(count) if options.se else 1
        if mean is not None:
            values[metric] = (mean + pattern * ((spread or 0.0) * times / unit)).tolist()
            halves[metric] = _half_unit(runs, metric, place), _half_unit(runs, column, place) * times
    row = _row(runs.rows[place], runs, values, ["done" if values else MISSING] * count)
    known = {key: sample for key, sample in row.samples.items() if np.ptp(sample.scores)}
    tested = {key: of._replace(has_seeds=False, half_units=halves[key]) for key, of in known.items()}
    return replace(row, samples=tested)


def _half_unit(runs: Runs, column: str, place: int) -> float:
    """Half a unit of the last digit of a number, by which it may have been rounded; 0 where there is none."""
    is_known = not np.isnan(runs.values[column][place])
    return 0.5 * 10.0 ** int(Decimal(runs.texts[column][place]).as_tuple().exponent) if is_known else 0.0


def _run_count(line: str, numbers: Mapping[str, float | None], column: str) -> int:
    """Of how many runs a line is the mean. column: of --n, or a number. Raises an InputError for what is no count."""
    n = float(column) if column.isdecimal() else numbers[column]
    if not {*numbers.values()} - {None}:
        return 1  # a row without numbers, which a note names
    if n is None or n % 1 or not 1 <= n <= MOST_RUNS:
        rule = f"must be a whole number from 1 to {MOST_RUNS:,}, because this line is the mean of so many runs"
        raise InputError(f"{_cell(line, column, n)}: {rule}; correct it")
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


def _cell(line: str, column: str, value: float | None) -> str:
    return f"{line}: {shown(column)} = {'' if value is None else f'{value:g}'}"


def _note_on_means(runs: Runs, options: RunsReport) -> str:
    """How means and deviations are read."""
    of = "deviations" if options.std else "errors times sqrt(n)"
    note = f"Computed from means and standard {of}, which are read as those of n - 1."
    several = len(options.metric) > 1
    columns, places = [*zip(options.metric, options.spreads, strict=True)], range(len(runs.rows))
    zero = [runs.rows[n] + f" ({name})" * several for n in places for name, of in columns if runs.values[of][n] == 0]
    return f"{note} A deviation of 0 was rounded, and has no test: {', '.join(zero)}." if zero else note


# ---------------------------------------------------------------------------------------------------------------------
# Pairs


def _note_on_pairs(path: Path, rows: Sequence[Row], runs: Runs, options: RunsReport) -> str:
    """What a pair is, and which runs of the rows, of which the first is base, have no partner. Raises an InputError for
    rows that are no pairs with base."""
    seed = options.seed or ""
    refuse_empty(path, runs.lines, seed, runs.seeds, "pair this run is")
    several = len(options.metric) > 1
    lacks = {metric: _without_partner(path, rows, metric, seed) for metric in options.metric}
    missing = "; ".join(f"for {metric} " * several + text for metric, text in lacks.items() if text)
    note = f"Pairs, which agree in {seed}, count as independent."
    if FOLDS.intersection(words_in(seed)):
        note = f"Pairs agree in {seed}. Folds of a dataset share their training data, so that p is too small."
    if len({*runs.seeds}) <= FEW_PAIRS:
        note += " So few find less than the same runs would without --paired, unless those of a pair agree closely."
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
    return "; ".join(f"{name} has no {seed} {listed(sorted(missing))}" for name, missing in lacks.items() if missing)


# ---------------------------------------------------------------------------------------------------------------------


def _digits(metric: str, rows: Sequence[Row], options: RunsReport) -> int:
    """As many as the usual spread from run to run, or from pair to pair, has zeros behind the point, and one more."""
    samples = [sample for row in rows if (sample := row.samples.get(metric))]
    if options.paired and rows[0].is_base:
        of_each = [difference(sample, samples[0]).standard_error for sample in samples[1:]]
    else:
        of_each = [estimate(of).standard_error * math.sqrt(len(of.scores)) for of in samples]
    spreads = [spread for spread in of_each if 0 < spread < math.inf]
    return min(15, max(0, 1 - math.floor(math.log10(statistics.median_low(spreads))))) if spreads else 3


def _notes(path: Path, rows: Sequence[Row], runs: Runs, options: RunsReport) -> Iterator[str]:
    """What is said of the runs below the table of their rows, of which base is the first."""
    yield from filter(None, (_missing(metric, runs) for metric in options.metric))
    if options.spreads:
        yield _note_on_means(runs, options)
    if options.paired and rows[0].is_base:
        yield _note_on_pairs(path, rows, runs, options)


def _missing(metric: str, runs: Runs) -> str:
    """Which runs have no number."""
    places = np.flatnonzero(np.isnan(runs.values[metric])).tolist()
    which = "{0} ({1})" if runs.items else "{0} (line {2})"
    missing = dict.fromkeys(which.format(runs.rows[n], runs.seeds[n], runs.lines[n]) for n in places)
    return f"{counted(len(missing), 'run')} without {metric}: {listed([*missing])}." if missing else ""
