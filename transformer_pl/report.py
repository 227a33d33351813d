"""Print the table of a sweep from its results:  python -m transformer_pl.report FILE... [--format md|tex|...]"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_pl.command_line import (
    CommandParser,
    add_beside_option,
    add_sweep_options,
    complete_retune_options,
    folder_name,
    make_folder,
    positive_number,
    refuse_options,
    run_command,
    sweep_file,
    sweep_folder,
)
from transformer_pl.config import is_known_key
from transformer_pl.experiments.plan import PlannedTrial, plan_trials
from transformer_pl.experiments.retune import plan_retuning
from transformer_pl.experiments.sweep_file import SEARCHES, Sweep, read_sweep
from transformer_pl.reporting.compare import compare_folders
from transformer_pl.reporting.cost_table import cost_table
from transformer_pl.reporting.page_files import write_page
from transformer_pl.reporting.publish import forget_other_table
from transformer_pl.reporting.render import Table
from transformer_pl.reporting.rows import read_rows
from transformer_pl.reporting.table import table_of
from transformer_pl.reporting.wandb_report import WandbReport
from transformer_pl.runtime.errors import InputError, collect_errors
from transformer_pl.runtime.terminal import command_console
from transformer_pl.runtime.yaml_file import read_yaml
from transformer_pl.search.page import write_search_page
from transformer_pl.trials.names import trial_id
from transformer_pl.trials.recognise import sweep_plan
from transformer_pl.trials.trial import Trial

PAGES = ("html", "wandb")
TEXT_FORMATS = {"md": Table.markdown, "tex": Table.latex, "csv": Table.csv, "json": Table.json}

EXAMPLES = """\
examples:
  python -m transformer_pl.report sweeps/table3_A.yaml                 the table in the terminal
  python -m transformer_pl.report table3_A --format md > table.md      also tex, csv and json
  python -m transformer_pl.report table3_A --format html               write the page, print its path
  python -m transformer_pl.report table3_A table3_B --scale multi30k   two tables
  python -m transformer_pl.report table3_A --against other/runs        the same rows in two folders
"""


class Report(NamedTuple):
    """The report of one sweep file."""

    title: str
    table: Table
    page: Path | str | None = None  # only with --format html or wandb: where it is
    elsewhere: Sequence[str] = ()  # results of this sweep with other options, where its own are not complete


def main(argv: list[str]) -> int:
    """Print a report of each sweep file and return the exit code."""
    options = read_options(argv)
    reports = collect_errors(lambda file: make_report(file, options), dict.fromkeys(options.files))
    for report in reports.values():
        print_report(report, options.format, with_title=len(reports) > 1)
        print(*report.elsewhere, sep="\n", end="\n" if report.elsewhere else "", file=sys.stderr)
    return 0


def read_options(argv: list[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m transformer_pl.report",
        usage="%(prog)s FILE... [options]",
        description="Print the table of each sweep file from the results on disk. Trains nothing. Give the options\n"
        "with which the sweep ran. Defaults are in parentheses.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        type=sweep_file,
        help="sweep files, or names of those that ship: table3_A",
    )
    add_sweep_options(parser)
    table = parser.add_argument_group("what is printed")
    table.add_argument(
        "--format",
        choices=("terminal", *TEXT_FORMATS, *PAGES),
        default="terminal",
        help="html prints the page's path; wandb makes a report at W&B and prints its address (%(default)s)",
    )
    add_beside_option(table)
    table.add_argument(
        "--test",
        choices=("t", "randomisation"),
        help="the significance test of differences from base (t; randomisation where rows have one seed)",
    )
    table.add_argument(
        "--against", type=folder_name, metavar="DIR", help="another runs folder, to compare the same rows"
    )
    table.add_argument(
        "--cost",
        type=positive_number,
        metavar="TFLOPS",
        help="the table of test BLEU and training cost, beside the paper's Table 2; TFLOPS: 10^12 operations a second "
        "that one device sustains (the paper takes 9.5 for a P100)",
    )
    options = parser.parse_args(argv)
    complete_retune_options(options)
    for flag, folder in (("--runs", options.runs), ("--against", options.against)):
        if folder and not folder.is_dir():
            raise InputError(f"{flag} {folder}: must be a runs folder of the sweep, but there is no such folder")
    if options.format in PAGES and options.against:
        raise InputError(
            f"--format {options.format}: it is of one runs folder; leave --against out, or take another format"
        )
    if options.cost and (options.against or options.test or options.format in PAGES):
        raise InputError("--cost: its table has no --against, no --test and no page; leave them out")
    if options.beside and options.against:
        raise InputError("--beside: --against compares two runs folders, without the paper; leave one of them out")
    if options.format in ("json", "csv") and len(options.files) > 1:
        raise InputError(f"--format {options.format}: must be of one sweep file, but {len(options.files)} are given")
    return options


def print_report(report: Report, output_format: str, with_title: bool) -> None:
    if report.page:
        print(report.page)
    elif output_format == "terminal":
        console = command_console()
        console.print(*([report.title] if with_title else []), report.table.terminal(console.width), sep="\n")
    else:
        titles = {"md": f"## {report.title}\n\n", "tex": f"% {report.title}\n"} if with_title else {}
        text = TEXT_FORMATS[output_format](report.table)
        print(titles.get(output_format, "") + text, end="\n" if with_title else "")


def make_report(file: Path, options: argparse.Namespace) -> Report:
    """Make the table of a sweep file, and with --format html also write its page."""
    content = read_yaml(file)
    if content.get("method") in SEARCHES:
        return _search_report(file, content, options)
    refuse_options(options, ["storage"], f"is for a search, but {file} has method: grid")
    sweep = read_sweep(file, options.scale, options.seeds, options.set, content)
    if options.retune:
        sweep = _retuned(sweep, content, options)
    title = f"{sweep.name} at scale {Path(sweep.scale).stem}"
    randomise = options.test == "randomisation"
    if options.against:
        return Report(title, _comparison(sweep, (options.runs, options.against), randomise))
    planned = plan_trials(sweep, options.runs)
    if options.cost:
        return Report(title, cost_table(sweep, planned, options.cost, options.beside))
    table = table_of(sweep, planned, randomise, options.beside)
    folder = sweep_folder(sweep, options)
    elsewhere = _results_elsewhere(sweep, planned, folder)
    if options.format == "wandb":
        trials = [one.trial.folder for one in planned]
        return Report(title, table, WandbReport(sweep.project, folder, table, trials).save(), elsewhere)
    if options.format != "html":
        return Report(title, table, elsewhere=elsewhere)
    make_folder(folder)
    forget_other_table(folder, table)
    write_page(sweep, planned, table, folder)
    return Report(title, table, folder / "report.html", elsewhere)


def _results_elsewhere(sweep: Sweep, planned: Sequence[PlannedTrial], folder: Path) -> list[str]:
    """Where there are results of this sweep with other options, and the commands that show them.

    Empty where the table is complete. folder: that of this table.
    """
    missing = sum(one.trial.result() is None and one.trial.diverged_at() is None for one in planned)
    if not missing:
        return []
    lines = []
    for other in sorted(folder.parent.glob("*/plan.json")):
        plan = sweep_plan(other.parent) if other.parent != folder else None
        if plan is None or plan.name != sweep.name:
            continue
        trials = [Trial.at(folder.parents[1], trial_id(name), lambda: "missing") for name in plan.trials]
        if done := sum(trial.result() is not None for trial in trials):
            how = plan.command or "the options that it was made with, which an older version has not kept"
            lines.append(f"  {other.parent.name}: {done} of {len(trials)} trials are finished; {how}")
    heading = f"{missing} of {len(planned)} trials of this table are not finished. Other tables of {sweep.name}:"
    return [heading, *lines] if lines else []


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


def _comparison(sweep: Sweep, folders: tuple[Path, Path], randomise: bool) -> Table:
    """The same rows in two runs folders, which are named by their last part where that tells them apart."""
    first, second = (folder.resolve() for folder in folders)
    if first == second:
        raise InputError(
            f"--against {folders[1]}: must be another runs folder than --runs, but is the same; name another"
        )
    rows, other_rows = (read_rows(sweep, plan_trials(sweep, folder)) for folder in folders)
    places = (first.name, second.name) if first.name != second.name else (str(first), str(second))
    return compare_folders([row.name for row in sweep.rows], rows, other_rows, places, randomise)


def _search_report(file: Path, content: dict[str, Any], options: argparse.Namespace) -> Report:
    from transformer_pl.search import storage  # optuna takes a quarter of a second
    from transformer_pl.search.cli import search_from_options
    from transformer_pl.search.results import SearchResults

    refuse_options(options, ["against", "beside", "cost", "test"], f"is for the rows of a grid, but {file} searches")
    search = search_from_options(file, content, options)
    folder = sweep_folder(search, options)
    results = SearchResults(search, storage.find_study(search, folder, options.storage), options.runs)
    if not results.records:
        raise InputError(f"{file}: must have trials, but none was drawn yet; run the search first")
    title, table = f"{search.name} at scale {Path(search.scale).stem}", results.table()
    if options.format == "wandb":
        trials = [options.runs / "trials" / record["folder"] for record in results.trained]
        keys = [key for key in search.space if is_known_key(key)]  # `variant` is not one of W&B's config
        return Report(title, table, WandbReport(search.project, folder, table, trials, keys, list(search.goals)).save())
    if options.format != "html":
        return Report(title, table)
    make_folder(folder)
    forget_other_table(folder, table)
    write_search_page(results, table, folder)
    return Report(title, table, folder / "report.html")


if __name__ == "__main__":
    run_command(main)
