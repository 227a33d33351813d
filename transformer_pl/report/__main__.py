"""Print the table of a sweep from its results:  python -m transformer_pl.report FILE... [--format md|tex|...]

It also makes the table of runs that were trained elsewhere, from a CSV file with one line for each run:

    python -m transformer_pl.report runs.csv --row h --metric bleu
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from transformer_pl.plan.options import (
    ONLINE_RUNS,
    TableOptions,
    add_sweep_options,
    other_table,
    sweep_file,
    sweep_folder,
)
from transformer_pl.plan.plan import PlannedTrial, plan_trials
from transformer_pl.plan.retune import plan_retuning
from transformer_pl.plan.sweep_file import SEARCHES, Row, Sweep, read_sweep
from transformer_pl.report.render import Table
from transformer_pl.runtime.command_line import CommandParser, must_be, names, refuse_options, run_command
from transformer_pl.runtime.errors import InputError, collect_errors, suggestion, warn
from transformer_pl.runtime.files import check_writable, read_yaml
from transformer_pl.runtime.terminal import command_console, for_output, nothing_printed
from transformer_pl.task import EVALUATION, task_of
from transformer_pl.trials.identity import row_identity, same_row
from transformer_pl.trials.runs_folder import corpus_of_trials, read_plan

TEXT_FORMATS = {"md": Table.markdown, "tex": Table.latex, "csv": Table.csv, "json": Table.json}

OF_RUNS = ("row", "metric", "seed", "decimal_comma", "lower_is_better")  # options that sweep files do not have

REMEDY = "train it: python -m transformer_pl.sweep, with the same options"


@dataclass(frozen=True, kw_only=True)
class ReportOptions(TableOptions):
    """Which files the report is of, what it shows, and in what format."""

    files: tuple[Path, ...]
    format: str = "terminal"
    trials: bool = False  # a line for each trial, not for each row
    row: tuple[str, ...] = ()  # columns of a CSV file: runs with equal values in them are one row
    metric: tuple[str, ...] = ()
    seed: str | None = None
    decimal_comma: bool = False  # whether numbers of the CSV file have a comma in place of the decimal point
    lower_is_better: bool = False
    margin: tuple[tuple[str, float], ...] = ()  # by metric: differences within the margin count as none
    split: str = "val"  # the set whose scores are compared
    columns: tuple[str, ...] = ()  # headings of the columns to show; empty: all that fit
    rows: Path | None = None  # a file of names for the rows; None: the one beside the sweep file, if there is one
    sort: str | None = None  # the order of rows: file, params or score; None: file
    together: bool = False  # one table of several sweep files
    pairs: bool = False  # every row against every other, in place of the usual table
    factors: bool = False  # the effects and interactions of factors, in place of the usual table
    wandb: bool = False  # also send the table and the figures of the page to W&B

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs and self.factors:
            raise InputError("--pairs, --factors: each makes a table of its own; give one of them")
        if self.together and len(self.files) < 2:
            raise InputError("--together: is for several sweep files, but one is given; give more")
        if self.pairs:
            refuse_options(self, ["base", "margin"], "is for differences from base, and not for --pairs")
        if self.split != "val" and (self.format == "html" or self.wandb):
            raise InputError("--split test: the page shows the validation set; leave out --format html and --wandb")
        of_table = ["rows", "columns", "sort", "wandb"]
        if self.together:
            refuse_options(self, ["rows", "trials"], "is for one sweep file, and not for --together")
        if self.trials:
            refuse_options(self, [*of_table, "margin"], "is for the table of rows, and not for --trials")
        if self.pairs or self.factors:
            refuse_options(self, [*of_table, "trials"], "is for the usual table, and not for --pairs or --factors")
            if self.format == "html":
                raise InputError("--format html: the page has the usual table; leave out --pairs and --factors")
        if not any(map(_is_of_runs, self.files)):
            given = "a .csv or .tsv file, or wandb://ENTITY/PROJECT/GROUP"
            refuse_options(self, OF_RUNS, f"is for runs ({given}), which are not given")
            return
        if len(self.files) > 1:
            raise InputError(f"{', '.join(map(str, self.files))}: a CSV file of runs must stand alone; give one file")
        needed = [f"--{name}" for name in ("row", "metric") if not getattr(self, name)]
        if needed:
            how = "--row COLUMN and --metric COLUMN say what its columns mean"
            raise InputError(f"{self.files[0]}: needs {' and '.join(needed)}: {how}")
        if self.split != "val":
            raise InputError("--split: is for sweep files, but a CSV file of runs is given; leave it out")
        of_sweeps = ["sort", "factors", "together", "rows", "trials", "wandb"]
        of_sweeps += ["scale", "set", "seeds", "retune", "storage"]
        refuse_options(self, of_sweeps, "is for sweep files, but a CSV file of runs is given")


EXAMPLES = """\
examples:
  python -m transformer_pl.report sweeps/table3_A.yaml                 the table in the terminal
  python -m transformer_pl.report table3_A --format md > table.md      also tex, csv and json
  python -m transformer_pl.report table3_A --format html               write the page, print its path
  python -m transformer_pl.report table3_A table3_B --scale multi30k   two tables
  python -m transformer_pl.report runs.csv --row model,lr --metric acc --seed seed --base "model=a lr=0.1"
"""


def main(argv: list[str]) -> int:
    """Print a report of each sweep file and return the exit code."""
    options = read_options(argv)
    with nothing_printed():
        reports = make_reports(options)
    for title, report in reports:
        print_report(title, report, options.format, len(reports) > 1)
    return 0


def make_reports(options: ReportOptions) -> list[tuple[str, Any]]:
    """The title of each file, with its table or the path of its page.

    Formats for programs (json, csv) get one table of all files.
    """
    files = dict.fromkeys(options.files)
    if options.row:
        return [(options.files[0].name, _of_runs(options))]
    if options.together:
        return [make_report([*files], options)]
    if options.trials:
        of_files = collect_errors(lambda file: trial_records(file, options), files)
        return [("", joined(map(Table.of_records, of_files.values())))]
    reports: dict[Path, tuple[str, Any]] = collect_errors(lambda file: make_report([file], options), files)
    if len(reports) > 1 and options.format in ("json", "csv"):
        return [("", joined([table.titled(title) for title, table in reports.values()]))]
    return [*reports.values()]


def _is_of_runs(file: Path) -> bool:
    return file.suffix.lower() in (".csv", ".tsv") or str(file).startswith(ONLINE_RUNS)


def _of_runs(options: ReportOptions) -> Table | Path:
    """The table of a CSV file; with --format html the path of its page, in a folder beside the file."""
    from transformer_pl.report.runs_table import RunsOptions, runs_table  # scipy takes half a second

    file = options.files[0]
    given = {name: getattr(options, name) for name in OF_RUNS}
    table = runs_table(file, RunsOptions(**given, base=options.base, margin=_margins(options, options.metric)))
    if options.pairs:
        from transformer_pl.report.contrast_tables import compared_runs, pairs_table

        if len(options.metric) > 1:
            raise InputError(f"--metric {','.join(options.metric)}: --pairs compares one metric; give one")
        return pairs_table(compared_runs(table.rows), options.format in ("csv", "json"))
    if options.columns:
        table = table.chosen(options.columns)
    if options.format != "html":
        return table
    from transformer_pl.report.figures import forest  # matplotlib takes a second
    from transformer_pl.report.html import write_html

    folder = file.with_suffix(".report") if file.suffix else Path(f"{file.name}.report")
    drawing = forest(table.rows, [None] * len(table.rows))
    check_writable(folder)
    return write_html(folder, file.name, table, {"differences": drawing} if drawing else {})


def _margins(options: ReportOptions, metrics: Sequence[str]) -> dict[str, float]:
    """The given margins by metric. Raises an InputError for a margin of a metric that is not in `metrics`."""
    if unknown := [name for name, _ in options.margin if name not in metrics]:
        rule = f"must be of {' or '.join(metrics)}, which the table compares"
        raise InputError(*(f"--margin {name}: {rule}{suggestion(name, metrics)}" for name in unknown))
    return dict(options.margin)


def _margin(word: str) -> tuple[str, float]:
    """Read a margin such as bleu=0.5."""
    metric, _, text = word.rpartition("=")
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not metric or not 0 < size < math.inf:
        raise must_be(word, "be METRIC=X with X above 0, such as bleu=0.5")
    return metric, size


def read_options(argv: list[str]) -> ReportOptions:
    parser = CommandParser(
        prog="python -m transformer_pl.report",
        usage="%(prog)s FILE... [options]",
        description="Print the table of each sweep file from the results on disk. This trains nothing. Give the same\n"
        "options with which the sweep ran. Defaults are in parentheses.",
        epilog=EXAMPLES,
    )
    files = "sweep files, or names of shipped ones, such as table3_A"
    parser.add_argument("files", metavar="FILE", nargs="+", type=sweep_file, help=files)
    add_sweep_options(parser)
    table = parser.add_argument_group("what is printed")
    formats, page = ("terminal", *TEXT_FORMATS, "html"), "html writes the page and prints its path (%(default)s)"
    table.add_argument("--format", choices=formats, default="terminal", help=page)
    trials = "for --format csv or json: a line for each trial, not for each row"
    table.add_argument("--trials", action="store_true", help=trials)
    table.add_argument("--split", choices=EVALUATION, default="val", help="the set that is compared (%(default)s)")
    table.add_argument(
        "--columns", type=names, metavar="A,B", help="only the columns with these headings, in this order"
    )
    table.add_argument("--sort", choices=("file", "params", "score"), help="the order of rows (file)")
    own = "a file with your names for the rows and headings between them (NAME.rows.yaml beside the sweep file)"
    table.add_argument("--rows", type=Path, metavar="FILE", help=own)
    together = "one table of several files with the same base, with one correction for all of their rows"
    table.add_argument("--together", action="store_true", help=together)
    pairs = "every row against every other, with one correction, in place of the usual table"
    table.add_argument("--pairs", action="store_true", help=pairs)
    factors = "a table of the effects and interactions of two or three factors, whose combinations are the rows"
    table.add_argument("--factors", action="store_true", help=factors)
    margin = "also say which rows are equal to base within this margin, chosen before the results are seen"
    table.add_argument("--margin", type=_margin, action="append", metavar="METRIC=X", help=margin)
    send = "also write the page, and send the table and its figures to W&B, as the sweep command does when it ends"
    table.add_argument("--wandb", action="store_true", help=send)
    runs = parser.add_argument_group("for a CSV file with a line for each run, whatever trained it")
    runs.add_argument("--row", type=names, metavar="COLUMN,...", help="runs with equal values in these are one row")
    runs.add_argument("--metric", type=names, metavar="COLUMN,...", help="columns to compare, each with its own test")
    runs.add_argument("--seed", metavar="COLUMN", help="column of the seed: refuse two runs of one row and seed")
    comma = "numbers are written 0,5 or 1.234,5 in the file, not 0.5"
    runs.add_argument("--decimal-comma", action="store_true", help=comma)
    runs.add_argument("--lower-is-better", action="store_true", help="lower values of the metrics are better")
    options = ReportOptions.read(vars(parser.parse_args(argv)))
    if options.format not in ("json", "csv"):
        refuse_options(options, ["trials"], "is for --format csv or json, which is not given")
    return options


def joined(tables: Iterable[Table]) -> Table:
    """Several tables as one, for programs: each record has the keys of all."""
    tables = list(tables)
    records = [record for table in tables for record in table.records]
    keys = dict.fromkeys(key for record in records for key in record)
    headings = [column._replace(key="") for table in tables for column in table.columns]
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    summary = " ".join(filter(None, (table.summary for table in tables)))
    values = Table.of_records([{key: record.get(key) for key in keys} for record in records]).all_columns
    return Table([*headings, *values], [*notes], summary=summary)


def print_report(title: str, report: Table | Path, output_format: str, with_title: bool) -> None:
    """Print a table, below its title if `with_title`, or the path of a page."""
    label, title = title, title if with_title else ""
    if isinstance(report, Path):
        print(for_output(str(report)))
    elif output_format == "terminal":
        console = command_console()
        console.print(*filter(None, [title]), report.terminal(console.width), sep="\n")
    else:
        heading = {"md": f"## {title}\n\n", "tex": f"% {title}\n"}.get(output_format, "")
        made = report.latex(label) if output_format == "tex" else TEXT_FORMATS[output_format](report)
        text = f"{heading if title else ''}{made}"
        print(for_output(text), end="\n" if title else "")


def make_report(files: Sequence[Path], options: ReportOptions) -> tuple[str, Table | Path]:
    """The title and the table of a sweep file, or of several together.

    With --format html the page is written, and its path is returned in place of the table.
    """
    file = files[0]
    contents, page = [read_yaml(one) for one in files], options.format == "html" or options.wandb
    content = contents[0]
    sweep: Any
    if content.get("method") in SEARCHES:
        from transformer_pl.report.search_table import search_table  # Optuna and torch take seconds

        sweep, results = _search(file, content, options)
        table, folder = search_table(results), sweep_folder(sweep, options)
        if page:
            from transformer_pl.report.search_page import write_search_page

            check_writable(folder)
            write_search_page(results, table, folder)
    else:
        from transformer_pl.report.columns import row_results, table_of
        from transformer_pl.report.row_names import arranged, read_row_names, reordered

        sweep, planned = merged([_grid(one, read, options) for one, read in zip(files, contents, strict=True)])
        folder = sweep_folder(sweep, options)
        measure = task_of(sweep.base.data).measure.name
        margin = _margins(options, [measure]).get(measure)
        if options.pairs or options.factors:
            table = _contrasts(sweep, planned, options, margin)
        else:
            names = read_row_names(sweep, file, options.rows, bool(options.set)) if len(files) == 1 else None
            if names:
                sweep, planned = arranged(sweep, planned, names)
            if options.sort not in (None, "file"):
                sweep, planned = reordered(sweep, planned, _order(row_results(sweep, planned, options.split), options))
            table = table_of(sweep, planned, options.paper, folder, margin, options.split, names)
        if options.columns:
            table = table.chosen(options.columns)
        if page:
            from transformer_pl.report.page import write_page

            check_writable(folder)
            write_page(sweep, planned, table, folder)
    if options.wandb:
        from transformer_pl.train.wandb_run import is_disabled, send_report

        if is_disabled():
            warn("--wandb: nothing is sent, because WANDB_MODE is disabled")
        send_report(folder, sweep.name, sweep.project, table.records, read_plan(folder))
    made = folder / "report.html" if options.format == "html" else table
    return f"{sweep.name} at scale {Path(sweep.scale).stem}", made


def merged(grids: Sequence[tuple[Sweep, list[PlannedTrial]]]) -> tuple[Sweep, list[PlannedTrial]]:
    """Several sweeps as one, with one correction for all of their rows; a row that two of them have is one row.

    Raises an InputError for sweeps that no table can hold together.
    """
    if len(grids) == 1:
        return grids[0]
    first, rows, trials = grids[0][0], list[Row](), list[PlannedTrial]()
    places: dict[str, int] = {}  # by identity
    for sweep, planned in grids:
        if not same_row(sweep.base, first.base) or sweep.base_row is None:
            rule = "must have the same base as a row, at one scale and with the same data and task"
            raise InputError(f"--together: {first.name} and {sweep.name} {rule}")
        for index, row in enumerate(sweep.rows):
            key = row_identity(row.configs[0])
            if key not in places:
                if row.name in [other.name for other in rows]:
                    raise InputError(
                        f"--together: {sweep.name}: another row is named `{row.name}`, too; rename a class"
                    )
                places[key] = len(rows)
                rows.append(row)
                trials += [one._replace(row=places[key]) for one in planned if one.row == index]
    name = "+".join(dict.fromkeys(sweep.name for sweep, _ in grids))
    return first._replace(name=name, rows=rows), trials


def _order(rows: Sequence[Any], options: ReportOptions) -> list[int]:
    """The places of the rows by their parameters, or by their scores, the best first; rows without one come last."""
    by_params = options.sort == "params"
    sign = 1 if by_params or rows[0].measure.lower_is_better else -1
    values = [row.params if by_params else (fmean(row.scores) if row.scores else None) for row in rows]
    keys = [math.inf if value is None else sign * value for value in values]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _contrasts(sweep: Sweep, planned: list[PlannedTrial], options: ReportOptions, margin: float | None) -> Table:
    """The table of --pairs or --factors."""
    from transformer_pl.report.columns import row_results
    from transformer_pl.report.contrast_tables import compared_rows, factors_table, pairs_table

    rows = row_results(sweep, planned, options.split)
    if options.pairs:
        return pairs_table(compared_rows(rows), options.format in ("csv", "json"))
    return factors_table(rows, sweep.reference if sweep.reference is not None else sweep.base_row, margin)


def trial_records(file: Path, options: TableOptions, planned: bool = False) -> list[dict[str, Any]]:
    """A record of each trial of a sweep file: its sweep, row, seed and state, where it differs, and what was measured.

    planned: whether trials may be missing; if tries of --retune are missing, the records are those of the tries. Raises
    an InputError where the sweep cannot be planned.
    """
    content = read_yaml(file)
    if content.get("method") in SEARCHES:
        search, results = _search(file, content, options, planned)
        labels = {"sweep": search.name, "scale": search.scale, "seed": search.seed}
        return [labels | record for record in results.records] if results else []
    from transformer_pl.report.columns import trial_records  # scipy takes half a second

    return trial_records(*_grid(file, content, options, planned))


def _grid(
    file: Path, content: dict[str, Any], options: TableOptions, planned: bool = False
) -> tuple[Sweep, list[PlannedTrial]]:
    """The sweep of a grid's file, and its trials. With --retune each row is at the best of its tried points.

    planned: whether trials may be missing; if tries of --retune are missing, the sweep is that of the tries.
    """
    refuse_options(options, ["storage"], f"is for a search, but {file} has method: grid")
    sweep = read_sweep(file, options.scale, options.seeds, options.set, content).compared_with(options.base)
    corpus_of = partial(corpus_of_trials, runs=options.runs)  # results can be read without the text
    if options.retune:
        tuning = plan_retuning(sweep, options.retune, options.tries, content.get("metric"))
        tries = plan_trials(tuning.tries(sweep), options.runs, corpus_of)
        ended = ("done", "failed", "diverged")
        if missing := sum(attempt.trial.state() not in ended for attempt in tries):
            if planned:
                return tuning.tries(sweep), tries
            rule = "every row must have been tried at every point"
            raise InputError(f"--retune: {rule}, but {missing} of {len(tries)} trials are missing; {REMEDY}")
        sweep = tuning.best(sweep, tries)
    trials = plan_trials(sweep, options.runs, corpus_of)
    if planned:
        return sweep, trials
    folders = (options.runs / "sweeps").glob(f"{sweep.name}@*")
    others = {read_plan(folder).get("differs", "") for folder in folders} - {"", other_table(options)}
    known = f"; there are results of this file with {' and with '.join(sorted(others))}" if others else ""
    if not any(planned_trial.trial.folder.exists() for planned_trial in trials):
        raise InputError(f"{file}: must have trials in {options.runs}, but has none yet{known}; {REMEDY}")
    if missing := sum(planned_trial.trial.needs_training() for planned_trial in trials):
        warn(f"{missing} of {len(trials)} trials are missing{known}")
    return sweep, trials


def _search(file: Path, content: dict[str, Any], options: TableOptions, planned: bool = False) -> tuple[Any, Any]:
    from transformer_pl.search.results import SearchResults  # optuna takes a quarter of a second
    from transformer_pl.search.study import find_study, search_from_options

    of_report = ["margin", "pairs", "factors", "rows", "sort"] if isinstance(options, ReportOptions) else []
    refuse_options(options, ["base", "paper", *of_report], f"is for the rows of a grid, but {file} searches")
    search = search_from_options(file, content, options)
    study = find_study(search, sweep_folder(search, options), options.storage)
    results = study and SearchResults(search, study, options.runs)
    if not planned and not (results and results.records):
        raise InputError(f"{file}: must have trials, but none was drawn yet; {REMEDY}")
    return search, results


if __name__ == "__main__":
    run_command(main)
