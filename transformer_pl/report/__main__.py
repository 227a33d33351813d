"""Print the table of a sweep from its results:  python -m transformer_pl.report FILE... [--format md|tex|...]

It also makes the table of runs that were trained elsewhere, from a CSV file with one line for each run:

    python -m transformer_pl.report runs.csv --row h --metric bleu
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from shlex import join
from typing import Any

from transformer_pl.plan.shared_options import TableOptions, sweep_folder
from transformer_pl.plan.sweep_file import SEARCHES
from transformer_pl.report.options import (
    FOR_PROGRAMS,
    TEXT_FORMATS,
    RunsReport,
    SweepReport,
    TableChoice,
    read_options,
)
from transformer_pl.runtime.command_line import refuse_options, run_command
from transformer_pl.runtime.errors import collect_errors, warn
from transformer_pl.runtime.files import read_yaml
from transformer_pl.runtime.terminal import announce, command_console, for_output, nothing_printed, say, table_width
from transformer_pl.table.formats import Table
from transformer_pl.trials.runs_folder import read_plan


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


def make_reports(options: SweepReport | RunsReport) -> list[tuple[str, Table | Path]]:
    """The title of each file, with its table or the path of its page.

    Formats for programs (json, csv) get one table of all files.
    """
    if isinstance(options, RunsReport):
        from transformer_pl.report.runs import runs_report  # scipy takes half a second

        return [runs_report(options)]
    files = dict.fromkeys(options.files)
    if options.together:
        return [make_report([*files], options)]
    if options.trials:
        records = collect_errors(lambda file: read_records(file, options), files)
        return [("", joined(map(Table.of_records, records.values())))]
    reports = collect_errors(lambda file: make_report([file], options), files)
    if len(reports) > 1 and options.format in FOR_PROGRAMS:
        return [("", joined(table.titled(title) for title, table in reports.values() if isinstance(table, Table)))]
    return [*reports.values()]


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


def make_report(files: Sequence[Path], options: SweepReport) -> tuple[str, Table | Path]:
    """The title and the table of a sweep file, or of several together, or the path of its page."""
    from transformer_pl.report.tables import Draw, printable  # scipy takes half a second

    contents = [read_yaml(file) for file in files]
    if contents[0].get("method") in SEARCHES:
        from transformer_pl.search.table import search_report  # Optuna and torch take seconds

        why = f"is for the rows of a grid, but {files[0]} searches"
        refuse_options(options, ["margin", "pairs", "factors", "rows", "sort", "against"], why)
        made: tuple[Any, Table, Draw] = search_report(files[0], contents[0], options)
    else:
        from transformer_pl.report.sweeps import against, of_grids

        made = (against if options.against else of_grids)(files, contents, options)
    sweep, table, draw_page = made

    def draw(folder: Path, title: str, table: Table) -> None:
        draw_page(folder, title, table)
        if options.wandb:
            from transformer_pl.train.wandb_run import is_disabled, send_report

            if is_disabled():
                warn("--wandb: nothing is sent, because WANDB_MODE is disabled")
            send_report(folder, sweep.name, sweep.project, table, read_plan(folder))

    title = f"{sweep.name} at scale {Path(sweep.scale).stem}"
    return title, printable(table, title, sweep_folder(sweep, options), draw, options)


def read_records(file: Path, options: TableOptions, planned: bool = False) -> list[dict[str, Any]]:
    """A record of each trial of a sweep file: its sweep, row, seed and state, where it differs, and what was measured.

    planned: whether trials may be missing; if tries of --retune are missing, the records are those of the tries. Raises
    an InputError where the sweep cannot be planned.
    """
    content = read_yaml(file)
    if content.get("method") in SEARCHES:
        from transformer_pl.search.table import search_records  # Optuna and torch take seconds

        return search_records(file, content, options, planned)
    from transformer_pl.report.rows import trial_records
    from transformer_pl.report.sweeps import read_grid  # scipy takes half a second

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
        text = report.latex(title, options.caption) if is_latex else TEXT_FORMATS[options.format](report)
        heading = {"md": f"## {title}\n\n", "tex": f"% {title}\n"}.get(options.format, "") if with_title else ""
        print(for_output(heading + text), end="\n" if with_title else "")


if __name__ == "__main__":
    run_command(main)
