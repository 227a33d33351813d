"""The table of a sweep, from the results on disk:  python -m transformer_pl.report FILE... [--format md|tex|...]"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from transformer_pl.config import read_yaml
from transformer_pl.experiments.cli import (
    add_search_options,
    add_sweep_options,
    refuse_options,
    sweep_folder,
)
from transformer_pl.experiments.plan import PlannedTrial, plan_trials
from transformer_pl.experiments.retune import plan_retuning
from transformer_pl.experiments.sweep_file import SEARCHES, Sweep, read_sweep
from transformer_pl.reporting.render import Table
from transformer_pl.reporting.table import RowResults, build_table, compare_folders
from transformer_pl.runtime.command_line import CommandParser, folder_name, run_command
from transformer_pl.runtime.errors import InputError, collect_errors
from transformer_pl.runtime.files import write_atomically

if TYPE_CHECKING:
    from transformer_pl.reporting.plots import Figure
    from transformer_pl.search.results import SearchResults

FORMATS = {"md": Table.markdown, "tex": Table.latex, "csv": Table.csv, "json": Table.json}


def main(argv: list[str]) -> int:
    parser = CommandParser(prog="python -m transformer_pl.report", description="The table of a sweep.")
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path)
    add_sweep_options(parser)
    add_search_options(parser)
    parser.add_argument("--format", choices=("terminal", *FORMATS, "html"), default="terminal")
    parser.add_argument(
        "--test",
        choices=("t", "randomisation"),
        help="of differences (t; of one seed the latter)",
    )
    parser.add_argument(
        "--against", type=folder_name, metavar="DIR", help="another runs folder, to compare the same rows"
    )
    options = parser.parse_args(argv)
    for flag, place in (("--runs", options.runs), ("--against", options.against)):
        if place and not place.is_dir():
            raise InputError(f"{flag} {place}: must be the folder that the sweep was run with, but there is none")
    if options.format == "html" and options.against:
        raise InputError("--format html: the page is of one runs folder; leave --against out, or take another format")
    if options.format in ("json", "csv") and len(options.files) > 1:
        raise InputError(f"--format {options.format}: must be of one sweep file, but {len(options.files)} are given")
    told = collect_errors(lambda file: _of_file(file, options), dict.fromkeys(options.files))
    for title, table in told.values():
        if options.format == "html":
            print(table)
        elif options.format == "terminal":
            Console().print(*([title] if len(told) > 1 else []), table.terminal(), sep="\n")
        else:
            heading = {"md": f"## {title}\n\n", "tex": f"% {title}\n"} if len(told) > 1 else {}
            print(heading.get(options.format, "") + FORMATS[options.format](table), end="\n" if heading else "")
    return 0


def _of_file(file: Path, options: argparse.Namespace) -> tuple[str, Table | Path]:
    """The title and the table of a sweep; for html, the path of its page."""
    content = read_yaml(file)
    if content.get("method") in SEARCHES:
        return _of_search(file, content, options)
    refuse_options(options, ["storage"], f"is for a search, but {file} has method: grid")
    sweep = read_sweep(file, options.scale, options.seeds, options.set)
    if options.retune:
        tuning = plan_retuning(sweep, options.retune, options.budget, content.get("metric"))
        tried = plan_trials(tuning.tries(sweep), options.runs)
        if missing := [one for one in tried if one.trial.status()["state"] not in ("done", "failed", "diverged")]:
            raise InputError(
                f"--retune: every row must have been tried at every point, but {len(missing)} of {len(tried)} trials "
                "are missing; run the sweep with it first"
            )
        sweep = tuning.best(sweep, tried)
    title, planned = f"{sweep.name} at scale {Path(sweep.scale).stem}", plan_trials(sweep, options.runs)
    randomise = options.test == "randomisation"
    if options.against:
        folders = (options.runs, options.against)
        sides = [rows_of(sweep, plan_trials(sweep, folder)) for folder in folders]
        places = tuple(folder.name if len({f.name for f in folders}) > 1 else str(folder) for folder in folders)
        return title, compare_folders([row.name for row in sweep.rows], *sides, places, randomise)
    table = table_of(sweep, planned, randomise)
    if options.format != "html":
        return title, table
    folder = sweep_folder(sweep, options)
    write_page(sweep, planned, table, folder)
    return title, folder / "report.html"


def _of_search(file: Path, content: dict[str, Any], options: argparse.Namespace) -> tuple[str, Table | Path]:
    from transformer_pl.search import storage  # optuna takes a quarter of a second
    from transformer_pl.search.cli import search_from_options
    from transformer_pl.search.results import SearchResults

    refuse_options(options, ["against", "test"], f"is for the rows of a grid, but {file} searches")
    found = search_from_options(file, content, options)
    folder = sweep_folder(found, options)
    outcome = SearchResults(found, storage.find_study(found, folder, options.storage), options.runs)
    title, table = f"{found.name} at scale {Path(found.scale).stem}", outcome.table()
    if options.format != "html":
        return title, table
    write_search_page(outcome, table, folder)
    return title, folder / "report.html"


def table_of(sweep: Sweep, planned: list[PlannedTrial], randomise: bool = False) -> Table:
    """The table of a sweep as far as it is there."""
    table = build_table(rows_of(sweep, planned), sweep.base, randomise=randomise)
    return table._replace(notes=[*table.notes, *sweep.notes])


def rows_of(sweep: Sweep, planned: list[PlannedTrial]) -> list[RowResults]:
    rows = []
    for index, row in enumerate(sweep.rows):
        trials = [one.trial for one in planned if one.row == index]
        results = [trial.result() for trial in trials]
        sentences, unread = [], []
        for trial, result in zip(trials, results, strict=True):
            try:
                sentences += [trial.sentences("val")] if result else []
            except InputError as error:
                unread += error.messages
        states = [trial.status()["state"] for trial in trials]
        rows.append(RowResults(row.configs[0], results, states, None if unread else _stacked(sentences), unread))
    return rows


def write_page(sweep: Sweep, planned: list[PlannedTrial], table: Table, folder: Path) -> dict[str, Path]:
    """`report.html` in the sweep's folder, and its figures as files; returns the pictures by their captions."""
    from transformer_pl.reporting import html_page, sweep_plots  # which take seconds

    pictures = _saved(sweep_plots.draw_sweep_plots(sweep, planned, table), folder)
    write_atomically(
        folder / "report.html",
        html_page.render_page(sweep, planned, html_page.first_seeds(planned), table, _vectors(pictures)),
    )
    return pictures


def write_search_page(outcome: "SearchResults", table: Table, folder: Path) -> dict[str, Path]:
    """The same of a search."""
    from transformer_pl.reporting import html_page  # which take seconds
    from transformer_pl.search import plots

    pictures = _saved(plots.draw_search_plots(outcome), folder)
    sweep, planned, shown = plots.as_sweep(outcome, folder.parents[1])
    write_atomically(folder / "report.html", html_page.render_page(sweep, planned, shown, table, _vectors(pictures)))
    return pictures


def _saved(drawn: "dict[str, tuple[str, Figure]]", folder: Path) -> dict[str, Path]:
    """The pictures of figures, by their captions."""
    from transformer_pl.reporting import plots

    (folder / "figures").mkdir(parents=True, exist_ok=True)
    return {caption: plots.save(figure, folder / "figures" / name) for name, (caption, figure) in drawn.items()}


def _vectors(pictures: dict[str, Path]) -> dict[str, Path]:
    return {caption: path.with_suffix(".svg") for caption, path in pictures.items()}


def _stacked(seeds: list[Any]) -> Any:
    """(seeds, sentences, 12); None without any, or where a seed's are of other text."""
    import numpy as np

    if not seeds or any(one.shape != seeds[0].shape for one in seeds):
        return None
    return np.stack(seeds)


if __name__ == "__main__":
    run_command(main)
