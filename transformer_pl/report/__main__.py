"""Print the table of a sweep from its results:  python -m transformer_pl.report FILE... [--format md|tex|...]

It also makes the table of runs that were trained elsewhere, from a CSV file with one line for each run:

    python -m transformer_pl.report runs.csv --row h --metric bleu
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import join
from typing import Any

from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.retune import plan_retuning
from transformer_pl.plan.shared_options import SHIPPED, TableOptions, margins, other_table, sweep_folder
from transformer_pl.plan.sweep_file import SEARCHES, Sweep, leading_comment, read_sweep
from transformer_pl.report.options import (
    FOR_PROGRAMS,
    TEXT_FORMATS,
    RunsReport,
    SweepReport,
    TableChoice,
    read_options,
)
from transformer_pl.runtime.command_line import refuse_options, run_command
from transformer_pl.runtime.errors import InputError, collect_errors, warn
from transformer_pl.runtime.files import check_writable, read_yaml
from transformer_pl.runtime.terminal import announce, command_console, for_output, nothing_printed, say, table_width
from transformer_pl.table.formats import Table
from transformer_pl.task import task_of
from transformer_pl.trials.runs_folder import begun_plan, corpus_of_trials, read_plan
from transformer_pl.trials.trial import Trial

REMEDY = "train it: python -m transformer_pl.sweep, with the same options"


def main(argv: list[str]) -> int:
    """Print a report of each sweep file and return the exit code."""
    options = read_options(argv)
    announce(f"reading {', '.join(map(str, options.files))}")
    with nothing_printed():
        reports = make_reports(options)
    for title, report in reports:
        print_report(title, report, options, len(reports) > 1)
    if options.format == "terminal":
        has_page = not (options.pairs or options.factors) and getattr(options, "split", "val") == "val"
        what, form = ("page", "html") if has_page else ("table for a paper", "tex")
        again = join(["python", "-m", "transformer_pl.report", *argv])
        say(command_console(), f"next, the {what}: {again} --format {form}")
    return 0


def make_reports(options: SweepReport | RunsReport) -> list[tuple[str, Any]]:
    """The title of each file, with its table or the path of its page.

    Formats for programs (json, csv) get one table of all files.
    """
    if isinstance(options, RunsReport):
        return [(options.files[0].name, _of_runs(options))]
    files = dict.fromkeys(options.files)
    if options.together:
        return [make_report([*files], options)]
    if options.trials:
        of_files = collect_errors(lambda file: read_records(file, options), files)
        return [("", joined(map(Table.of_records, of_files.values())))]
    reports: dict[Path, tuple[str, Any]] = collect_errors(lambda file: make_report([file], options), files)
    if len(reports) > 1 and options.format in FOR_PROGRAMS:
        return [("", joined([table.titled(title) for title, table in reports.values()]))]
    return [*reports.values()]


def _of_runs(options: RunsReport) -> Table | Path:
    """The table of a file of runs; with --format html the path of its page, in a folder beside the file."""
    from transformer_pl.report.runs import runs_rows  # scipy takes half a second
    from transformer_pl.table.contrast_tables import factors_table, pairs_table
    from transformer_pl.table.table import make_table

    file = options.files[0]
    rows, about = runs_rows(file, options)
    (measure, *_) = about.measures
    if options.pairs:
        return pairs_table(rows, measure, options.format in FOR_PROGRAMS)
    if options.factors:
        return factors_table(rows, measure, about.margins.get(measure.key))
    table = make_table(rows, about)
    table = table.chosen(options.columns) if options.columns else table
    if options.format != "html":
        return table
    from transformer_pl.table.figures import forest  # matplotlib takes a second
    from transformer_pl.table.html import write_html

    beside = file if file.suffix and not file.is_relative_to(SHIPPED) else Path(file.name)  # nothing is written there
    folder = beside.with_suffix(".report")
    drawing = forest(table.contrasts)
    check_writable(folder)
    return write_html(folder, file.name, table, {"differences": drawing} if drawing else {})


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


def print_report(title: str, report: Table | Path, options: TableChoice, with_title: bool) -> None:
    """Print a table, below its title if `with_title`, or the path of a page."""
    label, title, output_format = title, title if with_title else "", options.format
    if isinstance(report, Path):
        print(for_output(str(report)))
    elif output_format == "terminal":
        console = command_console()
        console.print(*filter(None, [title]), report.terminal(table_width(console)), sep="\n")
    else:
        heading = {"md": f"## {title}\n\n", "tex": f"% {title}\n"}.get(output_format, "")
        made = report.latex(label, options.caption) if output_format == "tex" else TEXT_FORMATS[output_format](report)
        text = f"{heading if title else ''}{made}"
        print(for_output(text), end="\n" if title else "")


def make_report(files: Sequence[Path], options: SweepReport) -> tuple[str, Table | Path]:
    """The title and the table of a sweep file, or of several together.

    With --format html the page is written, and its path is returned in place of the table.
    """
    contents, of_page = [read_yaml(file) for file in files], options.format == "html" or options.wandb
    if contents[0].get("method") in SEARCHES:
        from transformer_pl.search.table import search_report  # Optuna and torch take seconds

        of_grids = f"is for the rows of a grid, but {files[0]} searches"
        refuse_options(options, ["margin", "pairs", "factors", "rows", "sort", "against"], of_grids)
        sweep, table, draw_page = search_report(files[0], contents[0], options)
    else:
        sweep, table, draw_page = _grid_report(files, contents, options)
    table, folder = table.chosen(options.columns) if options.columns else table, sweep_folder(sweep, options)
    title = f"{sweep.name} at scale {Path(sweep.scale).stem}"
    if of_page:
        check_writable(folder)
        draw_page(folder, title, table)
    if options.wandb:
        from transformer_pl.train.wandb_run import is_disabled, send_report

        if is_disabled():
            warn("--wandb: nothing is sent, because WANDB_MODE is disabled")
        send_report(folder, sweep.name, sweep.project, table, read_plan(folder))
    return title, folder / "report.html" if options.format == "html" else table


Report = tuple[Any, Table, Callable[[Path, str, Table], None]]  # the sweep, its table, and what writes its page


def _grid_report(files: Sequence[Path], contents: Sequence[dict[str, Any]], options: SweepReport) -> Report:
    from transformer_pl.report.looks import as_seen
    from transformer_pl.report.row_names import read_row_names
    from transformer_pl.report.sweep_notes import notes_of
    from transformer_pl.report.sweep_table import Choice, rows_and_about
    from transformer_pl.table.contrast_tables import factors_table, pairs_table
    from transformer_pl.table.table import make_table

    grids = [_grid(file, content, options) for file, content in zip(files, contents, strict=True)]
    sweep, _ = grids[0]
    measure = task_of(sweep.base.data).measure.name
    margin = margins(options.margin, (measure,)).get(measure)
    is_usual = not (options.pairs or options.factors or options.together)
    if not is_usual and any(one.looks for one, _ in grids):
        rule = "hold for differences from base in the sweep's own table; leave out --pairs, --factors and --together"
        raise InputError(f"{', '.join(map(str, files))}: the levels of its looks {rule}")
    names = read_row_names(sweep, files[0], options.rows, bool(options.set)) if is_usual else None
    sweep = sweep._replace(name="+".join(dict.fromkeys(one.name for one, _ in grids)))
    choice = Choice(options.base, options.paper, margin, options.split, options.sort, names)
    notes, looked_at = notes_of(grids, sweep_folder(sweep, options)), None
    if len(grids) == 1:
        _, looked_at = as_seen(*grids[0], sweep_folder(sweep, options))
    rows, about = rows_and_about(grids, choice, notes, looked_at)

    if options.against:
        return _against(sweep, make_table(rows, about), files, contents, options)

    def draw_page(folder: Path, title: str, table: Table) -> None:
        from transformer_pl.report.page import write_page

        write_page(folder, title, sweep.base, table, rows, comment=leading_comment(files[0]) if len(files) == 1 else "")

    if options.pairs:
        return sweep, pairs_table(rows, about.measures[0], options.format in FOR_PROGRAMS), draw_page
    if options.factors:
        return sweep, factors_table(rows, about.measures[0], margin), draw_page
    return sweep, make_table(rows, about), draw_page


def _against(
    sweep: Sweep, table: Table, files: Sequence[Path], contents: Sequence[dict[str, Any]], options: SweepReport
) -> Report:
    """What the table of a sweep says of that at another scale."""
    from transformer_pl.table.scales import scales_table

    first, second = (Path(scale).stem for scale in (sweep.scale, str(options.against)))
    if first == second:
        raise InputError(f"--against {options.against}: must be another scale than that of the table; choose one")
    _, other, _ = _grid_report(files, contents, replace(options, scale=options.against, against=None))

    def draw_page(folder: Path, title: str, made: Table) -> None:
        from transformer_pl.table.figures import scales
        from transformer_pl.table.html import write_html

        write_html(folder, title, made, {"scales": scales(table.contrasts, other.contrasts, (first, second))})

    sweep = sweep._replace(name=f"{sweep.name}-against-{second}")
    return sweep, scales_table(table.contrasts, other.contrasts, (first, second)), draw_page


def read_records(file: Path, options: TableOptions, planned: bool = False) -> list[dict[str, Any]]:
    """A record of each trial of a sweep file: its sweep, row, seed and state, where it differs, and what was measured.

    planned: whether trials may be missing; if tries of --retune are missing, the records are those of the tries. Raises
    an InputError where the sweep cannot be planned.
    """
    content = read_yaml(file)
    if content.get("method") in SEARCHES:
        from transformer_pl.search.table import search_records  # Optuna and torch take seconds

        return search_records(file, content, options, planned)
    from transformer_pl.report.rows import trial_records  # scipy takes half a second

    return trial_records(*_grid(file, content, options, planned))


def _grid(
    file: Path, content: dict[str, Any], options: TableOptions, planned: bool = False
) -> tuple[Sweep, Sequence[Trial]]:
    """The sweep of a grid's file, and its trials. With --retune each row is at the best of its tried points.

    planned: whether trials may be missing; if tries of --retune are missing, the sweep is that of the tries.
    """
    from transformer_pl.report.looks import as_seen  # scipy takes half a second

    refuse_options(options, ["storage"], f"is for a search, but {file} has method: grid")
    sweep = _with_looks_of_training(file, content, options, planned)
    corpus_of = partial(corpus_of_trials, runs=options.runs)  # results can be read without the text
    if options.retune:
        tuning = plan_retuning(sweep, options.retune, options.tries, content.get("metric"))
        tries = plan_trials(tuning.tries(sweep), options.runs, corpus_of)
        ended = ("done", "failed", "diverged")
        if missing := sum(attempt.state() not in ended for attempt in tries):
            if planned:
                return tuning.tries(sweep), tries
            rule = "every row must have been tried at every point"
            raise InputError(f"--retune: {rule}, but {missing} of {len(tries)} trials are missing; {REMEDY}")
        sweep = tuning.best(sweep, tries)
    trials: Sequence[Trial] = plan_trials(sweep, options.runs, corpus_of)
    if not options.retune:
        trials, _ = as_seen(sweep, trials, sweep_folder(sweep, options))
    if planned:
        return sweep, trials
    folders = (options.runs / "sweeps").glob(f"{sweep.name}@*")
    others = {read_plan(folder).get("differs", "") for folder in folders} - {"", other_table(options)}
    known = f"; there are results of this file with {' and with '.join(sorted(others))}" if others else ""
    if not any(trial.folder.exists() for trial in trials):
        raise InputError(f"{file}: must have trials in {options.runs}, but has none yet{known}; {REMEDY}")
    if missing := sum(trial.needs_training() for trial in trials):
        warn(f"{missing} of {len(trials)} trials are missing{known}")
    return sweep, trials


def _with_looks_of_training(file: Path, content: dict[str, Any], options: TableOptions, planned: bool) -> Sweep:
    """The sweep of a grid's file; without its looks if an agent has trained it. Raises an InputError for others.

    planned: whether it may be trained later.
    """
    from transformer_pl.report.looks import check_looks

    sweep = read_sweep(file, options.scale, options.seeds, options.set, content, options.looks, options.base_seeds)
    folder = sweep_folder(sweep, options)
    check_looks(file, sweep, folder)
    return sweep.without_looks() if sweep.looks and not planned and not begun_plan(folder) else sweep


if __name__ == "__main__":
    run_command(main)
