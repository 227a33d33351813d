"""Print the table of a sweep from its results:  python -m transformer_pl.report FILE... [--format md|tex|...]"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_pl.plan.options import add_sweep_options, complete_sweep_options, sweep_file, sweep_folder
from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.retune import plan_retuning
from transformer_pl.plan.sweep_file import SEARCHES, Sweep, read_sweep
from transformer_pl.report.render import Table
from transformer_pl.runtime.command_line import CommandParser, refuse_options, run_command
from transformer_pl.runtime.errors import InputError, collect_errors
from transformer_pl.runtime.files import check_writable, read_yaml
from transformer_pl.runtime.terminal import command_console

if TYPE_CHECKING:
    from transformer_pl.search.space import Search

TEXT_FORMATS = {"md": Table.markdown, "tex": Table.latex, "csv": Table.csv, "json": Table.json}

EXAMPLES = """\
examples:
  python -m transformer_pl.report sweeps/table3_A.yaml                 the table in the terminal
  python -m transformer_pl.report table3_A --format md > table.md      also tex, csv and json
  python -m transformer_pl.report table3_A --format html               write the page, print its path
  python -m transformer_pl.report table3_A table3_B --scale multi30k   two tables
"""


class Report(NamedTuple):
    """The report of one sweep file."""

    sweep: "Sweep | Search"
    table: Table
    page_folder: Path | None  # only with --format html


def main(argv: list[str]) -> int:
    """Print a report of each sweep file and return the exit code."""
    options = read_options(argv)
    reports = collect_errors(lambda file: make_report(file, options), dict.fromkeys(options.files))
    for report in reports.values():
        print_report(report, options.format, with_title=len(reports) > 1)
    return 0


def read_options(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m transformer_pl.report",
        usage="%(prog)s FILE... [options]",
        description="Print the table of each sweep file from the results on disk. Trains nothing. Give the options\n"
        "with which the sweep ran. Defaults are in parentheses.",
        epilog=EXAMPLES,
    )
    files = "sweep files, or names of those that ship: table3_A"
    parser.add_argument("files", metavar="FILE", nargs="+", type=sweep_file, help=files)
    add_sweep_options(parser)
    table = parser.add_argument_group("what is printed")
    formats, page = ("terminal", *TEXT_FORMATS, "html"), "html writes the page and prints its path (%(default)s)"
    table.add_argument("--format", choices=formats, default="terminal", help=page)
    options = parser.parse_args(argv)
    complete_sweep_options(options)
    if not options.runs.is_dir():
        raise InputError(f"--runs {options.runs}: must be a runs folder of the sweep, but there is no such folder")
    if options.format in ("json", "csv") and len(options.files) > 1:
        raise InputError(f"--format {options.format}: must be of one sweep file, but {len(options.files)} are given")
    return options


def print_report(report: Report, output_format: str, with_title: bool) -> None:
    title = f"{report.sweep.name} at scale {Path(report.sweep.scale).stem}"
    if report.page_folder:
        print(report.page_folder / "report.html")
    elif output_format == "terminal":
        console = command_console()
        console.print(*([title] if with_title else []), report.table.terminal(console.width), sep="\n")
    else:
        title = {"md": f"## {title}\n\n", "tex": f"% {title}\n"}.get(output_format, "")
        text = TEXT_FORMATS[output_format](report.table)
        print(title + text if with_title else text, end="\n" if with_title else "")


def make_report(file: Path, options: argparse.Namespace) -> Report:
    """Make the table of a sweep file, and with --format html also write its page."""
    content = read_yaml(file)
    make = _search_report if content.get("method") in SEARCHES else _grid_report
    return make(file, content, options)


def _page_folder(sweep: "Sweep | Search", options: argparse.Namespace) -> Path | None:
    """The folder of the sweep, which is made, where its page is to be written."""
    if options.format != "html":
        return None
    folder = sweep_folder(sweep, options)
    check_writable(folder)
    return folder


def _grid_report(file: Path, content: dict[str, Any], options: argparse.Namespace) -> Report:
    refuse_options(options, ["storage"], f"is for a search, but {file} has method: grid")
    sweep = read_sweep(file, options.scale, options.seeds, options.set, content)
    if options.retune:
        sweep = _retuned(sweep, content, options)
    planned = plan_trials(sweep, options.runs)
    from transformer_pl.report.table import table_of  # scipy takes half a second

    table = table_of(sweep, planned, options.paper)
    if folder := _page_folder(sweep, options):
        from transformer_pl.report.page import write_page  # matplotlib and torch take seconds

        write_page(sweep, planned, table, folder)
    return Report(sweep, table, folder)


def _retuned(sweep: Sweep, content: dict[str, Any], options: argparse.Namespace) -> Sweep:
    """The sweep with each row at the best of the points that --retune tried."""
    tuning = plan_retuning(sweep, options.retune, options.budget, content.get("metric"))
    planned = plan_trials(tuning.tries(sweep), options.runs)
    ended = ("done", "failed", "diverged")
    missing = sum(one.trial.status()["state"] not in ended for one in planned)
    if missing:
        raise InputError(
            f"--retune: every row must have been tried at every point, but {missing} of {len(planned)} trials "
            "are missing; run the sweep with --retune first"
        )
    return tuning.best(sweep, planned)


def _search_report(file: Path, content: dict[str, Any], options: argparse.Namespace) -> Report:
    from transformer_pl.report.search_table import search_table  # optuna takes a quarter of a second
    from transformer_pl.search.results import SearchResults
    from transformer_pl.search.study import find_study, search_from_options

    refuse_options(options, ["paper"], f"is for the rows of a grid, but {file} searches")
    search = search_from_options(file, content, options)
    study = find_study(search, sweep_folder(search, options), options.storage)
    results = study and SearchResults(search, study, options.runs)
    if not results or not results.records:
        raise InputError(f"{file}: must have trials, but none was drawn yet; run the search first")
    table = search_table(results)
    if folder := _page_folder(search, options):
        from transformer_pl.report.search_page import write_search_page  # matplotlib takes a second

        write_search_page(results, table, folder)
    return Report(search, table, folder)


if __name__ == "__main__":
    run_command(main)
