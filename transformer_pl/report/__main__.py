"""Print the table of a sweep from its results:  python -m transformer_pl.report FILE... [--format md|tex|...]

It also makes the table of runs that were trained elsewhere, from a CSV file with one line for each run:

    python -m transformer_pl.report runs.csv --row h --metric bleu
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from shlex import join
from typing import Any

from transformer_pl.plan.shared_options import TableOptions, sweep_folder
from transformer_pl.plan.sweep_file import SEARCHES, located
from transformer_pl.report.report_options import (
    FOR_PROGRAMS,
    TEXT_FORMATS,
    RunsReport,
    SweepReport,
    TableChoice,
    read_options,
)
from transformer_pl.report.runs import runs_report
from transformer_pl.report.sweep_rows import trial_records
from transformer_pl.report.sweeps import against, of_grid, read_grid, with_shipped
from transformer_pl.report.tables import Report, printable
from transformer_pl.runtime.command_line import refuse_options, run_command
from transformer_pl.runtime.errors import collect_errors, warn
from transformer_pl.runtime.files import read_yaml
from transformer_pl.runtime.terminal import (
    announce,
    command_console,
    for_output,
    nothing_printed,
    say_next,
    table_width,
)
from transformer_pl.table.formats import Table
from transformer_pl.train.wandb_run import is_disabled, send_report
from transformer_pl.trials.runs_folder import read_plan


def main(argv: list[str]) -> int:
    """Print a report of each sweep file and return the exit code."""
    options = read_options(argv)
    announce(f"reading {', '.join(map(str, options.files))}")
    with nothing_printed(), ExitStack() as stack:
        if isinstance(options, SweepReport) and options.shipped:
            options = stack.enter_context(with_shipped(options))
        reports = make_reports(options)
    for title, report in reports:
        print_report(title, report, options, len(reports) > 1)
    if options.format == "terminal":
        what, form = ("page", "html") if options.has_page else ("table for a paper", "tex")
        again = join(["python", "-m", "transformer_pl.report", *argv])
        say_next(command_console(), f"the {what}: {again} --format {form}")
    return 0


def make_reports(options: SweepReport | RunsReport) -> list[tuple[str, Table | Path]]:
    """The title of each file, with its table or the path of its page.

    Formats for programs (json, csv) get one table of all files.
    """
    if isinstance(options, RunsReport):
        return [runs_report(options)]
    files = dict.fromkeys(options.files)
    if options.trials:
        records = collect_errors(lambda file: read_records(file, options), files)
        return [("", Table(records=joined(records.values())))]
    reports = collect_errors(lambda file: printed_report(make_report(file, options), options), files)
    if len(reports) > 1 and options.format in FOR_PROGRAMS:
        tables = [table.titled(title) for title, table in reports.values() if isinstance(table, Table)]
        columns = [column for table in tables for column in table.all_columns]  # of which JSON has the meanings
        notes = dict.fromkeys(note for table in tables for note in table.notes)
        summary = " ".join(filter(None, (table.summary for table in tables)))
        return [("", Table(columns, joined(table.records for table in tables), [*notes], summary=summary))]
    return [*reports.values()]


def joined(tables: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The records of several tables: each has the keys of all."""
    records = [record for table in tables for record in table]
    keys = dict.fromkeys(key for record in records for key in record)
    return [{key: record.get(key) for key in keys} for record in records]


def make_report(file: Path, options: SweepReport) -> Report:
    """The report of a sweep file."""
    content = read_yaml(located(file))
    if content.get("method") not in SEARCHES:
        return (against if options.against else of_grid)(file, content, options)
    from transformer_pl.search.table import find_results, search_report  # Optuna and torch take seconds

    why = f"is for the rows of a grid, but {file} searches"
    refuse_options(options, ["margin", "pairs", "rows", "against", *["split"] * (options.split != "val")], why)
    results = find_results(file, content, options)
    assert results  # without any it raises an InputError
    return search_report(results)


def printed_report(report: Report, options: SweepReport) -> tuple[str, Table | Path]:
    """The title of a report, and its table or the path of its page, which W&B gets, too, where that is asked for."""

    def draw(folder: Path, title: str, table: Table) -> None:
        report.draw(folder, title, table)
        if options.wandb:
            if is_disabled():
                warn("--wandb: nothing is sent, because WANDB_MODE is disabled")
            send_report(folder, report.name, report.project, table, read_plan(folder))

    folder = sweep_folder(report, options)
    table = report.table._replace(label=folder.name)
    return report.title, printable(table, report.title, folder, draw, options)


def read_records(file: Path, options: TableOptions, planned: bool = False) -> list[dict[str, Any]]:
    """A record of each trial of a sweep file: its sweep, row, seed and state, where it differs, and what was measured.

    planned: whether trials may be missing; if tries of --retune are missing, the records are those of the tries. Raises
    an InputError where the sweep cannot be planned.
    """
    content = read_yaml(located(file))
    if content.get("method") in SEARCHES:
        from transformer_pl.search.table import search_records  # Optuna and torch take seconds

        return search_records(file, content, options, planned)
    return trial_records(read_grid(file, content, options, planned))


def print_report(title: str, report: Table | Path, options: TableChoice, with_title: bool) -> None:
    """Print a table, below its title if `with_title`, or the path of a page."""
    shown_title = title if with_title else ""
    if isinstance(report, Path):
        print(for_output(str(report)))
    elif options.format == "terminal":
        console = command_console()
        console.print(*filter(None, [shown_title]), report.terminal(table_width(console)), sep="\n", crop=False)
    else:
        is_latex = options.format == "tex"
        text = report.latex(options.caption) if is_latex else TEXT_FORMATS[options.format](report)
        heading = {"md": f"## {title}\n\n", "tex": f"% {title}\n"}.get(options.format, "") if with_title else ""
        print(for_output(heading + text), end="\n" if with_title else "")


if __name__ == "__main__":
    run_command(main)
