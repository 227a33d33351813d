"""The tables of the grids of sweep files, whose trials are read and never trained."""

import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformer_pl.plan.plan import main_metric, plan_trials
from transformer_pl.plan.retune import plan_retuning
from transformer_pl.plan.shared_options import TableOptions, margins, other_table, report_command, sweep_folder
from transformer_pl.plan.sweep_file import SHIPPED, Sweep, leading_comment, located, read_sweep
from transformer_pl.report.decisions import options_of_looks, read_decisions
from transformer_pl.report.facts import OF_TEST_SET
from transformer_pl.report.published import RowsFile, read_row_names
from transformer_pl.report.report_options import SweepReport
from transformer_pl.report.sweep_rows import Grid
from transformer_pl.report.sweep_table import rows_and_about
from transformer_pl.report.tables import Report, table_of
from transformer_pl.runtime.command_line import DEFAULT_RUNS, refuse_options
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.table.formats import Table
from transformer_pl.table.scales import scales_table
from transformer_pl.task import task_of
from transformer_pl.trials.runs_folder import RunsFolder, begun_looks, begun_plan, corpus_of_trials, read_plan
from transformer_pl.trials.trial import Trial

REMEDY = "train it: python -m transformer_pl.sweep, with the same options"


def archives() -> list[Path]:
    """The files with the trials that ship."""
    return sorted((SHIPPED / "results").glob("*.tar.xz"))


@contextmanager
def with_shipped(options: SweepReport) -> Iterator[SweepReport]:
    """The options with a runs folder of the trials that ship, which is gone afterwards. Raises an InputError."""
    if options.runs != DEFAULT_RUNS:
        raise InputError(f"--runs {options.runs}: is not read with --shipped; leave one of them out")
    with TemporaryDirectory() as folder:
        for archive in archives():
            with tarfile.open(archive) as files:
                files.extractall(folder, filter="data")
        yield replace(options, runs=Path(folder))


def of_grid(file: Path, content: dict[str, Any], options: SweepReport) -> Report:
    """The report of a grid."""
    grid = read_grid(file, content, options)
    sweep, names = grid.sweep, None
    if not options.pairs:
        names = read_row_names(sweep, file, options.rows, bool(options.set))
    elif sweep.looks:
        raise InputError(f"{file}: the levels of its looks hold for differences from base; leave out --pairs")
    margin = margin_of(sweep, options.margin)
    return report_of(file, grid, names, margin, options, options.split, options.pairs)


def margin_of(sweep: Sweep, given: Sequence[tuple[str, float]]) -> float | None:
    """Within which a difference counts as none. Raises an InputError where it is of another metric, or where looks are
    at the loss, and for a metric of the file that tables do not test."""
    metric, is_by_loss = task_of(sweep.base.data).measure.name, main_metric(sweep) == "val/loss"
    if given and sweep.looks and is_by_loss:
        raise InputError(f"--margin {given[0][0]}: must be of what looks are at, which is val/loss; leave it out")
    return margins(given, (metric,)).get(metric)


def report_of(
    file: Path,
    grid: Grid,
    names: RowsFile | None,
    margin: float | None,
    options: TableOptions,
    split: str = "val",
    pairs: bool = False,
) -> Report:
    """The report of a grid whose trials are read. names: what a file says of its rows."""
    sweep, folder = grid.sweep, sweep_folder(grid.sweep, options)
    rows, about = rows_and_about(
        grid, names=names, base=options.base, paper=options.paper, margin=margin, split=split, folder=folder
    )

    def draw_page(folder: Path, title: str, table: Table) -> None:
        from transformer_pl.report.page import write_page  # matplotlib takes a second
        from transformer_pl.table.figures import draw_sweep_plots, draw_tries

        drawings = draw_sweep_plots(table) | ({"tries": draw_tries(sweep.tried)} if sweep.tried else {})
        write_page(folder, title, sweep.base, table, grid.named_trials(rows), drawings, comment=leading_comment(file))

    return Report(sweep.name, sweep.project, sweep.scale, table_of(rows, about, pairs), draw_page)


def against(file: Path, content: dict[str, Any], options: SweepReport) -> Report:
    """What the table of a sweep says of that at another scale.

    Looks that were taken at the other scale are those of its plan.
    """
    report, scale = of_grid(file, content, options), str(options.against)
    first, second = names = Path(report.scale).stem, Path(scale).stem
    if first == second:
        raise InputError(f"--against {scale}: must be another scale than that of the table; choose one")
    there = replace(options, scale=scale, against=None)
    begun = begun_looks(sweep_folder(report._replace(scale=scale), there))
    looks = next(filter(None, begun.values()), None)
    other = of_grid(file, content, replace(there, **options_of_looks(looks)))
    both = report.table.of_score, other.table.of_score, names

    def draw_page(folder: Path, title: str, made: Table) -> None:
        from transformer_pl.table.figures import scales  # matplotlib takes a second
        from transformer_pl.table.html import write_html

        write_html(folder, title, made, {"scales": scales(*both)})

    table = scales_table(*both)
    table = table._replace(notes=[*table.notes, *[OF_TEST_SET] * (options.split == "test")])
    return report._replace(name=f"{report.name}-against-{second}", table=table, draw=draw_page)


def read_grid(file: Path, content: dict[str, Any], options: TableOptions, planned: bool = False) -> Grid:
    """The sweep of a grid's file, and its trials. With --retune each row is at the best of its tried points.

    planned: whether trials may be missing; if tries of --retune are missing, the sweep is that of the tries. A sweep
    that an agent has trained has no looks.
    """
    refuse_options(options, ["storage"], f"is for a search, but {file} has method: grid")
    sweep = read_sweep(file, options.scale, options.seeds, options.set, content, options.looks, options.base_seeds)
    folder = sweep_folder(sweep, options)
    if sweep.looks and not planned and not begun_looks(folder):
        sweep = sweep.without_looks()
    runs = RunsFolder(options.runs)
    if not planned and _has_none(sweep, folder, runs):
        raise InputError(_without_trials(file, sweep, options))
    corpus_of = partial(corpus_of_trials, runs=runs)  # results can be read without the text
    plan = partial(plan_trials, runs=runs, corpus_of=corpus_of)
    if options.retune:
        tuning = plan_retuning(sweep, options.retune, options.tries, content.get("metric"))
        tuning, tries, missing = tuning.as_far_as_known(sweep, plan)
        if missing and planned:
            return Grid(tuning.tries(sweep), tries)
        if missing:
            rule = f"must have been tried at every point, but {len(missing)} of {len(tries)} trials are missing"
            raise InputError(f"--retune: every row {rule}; {REMEDY}")
        sweep = tuning.best(sweep, tries)
    trials: list[Trial] = plan(sweep)
    decisions = read_decisions(file, sweep, trials, folder)
    grid = Grid(sweep, decisions.trials if decisions else trials)
    if planned:
        return grid
    _warn_of_missing(file, grid, options)
    return grid._replace(looked_at=decisions.looked_at()) if decisions else grid


def _has_none(sweep: Sweep, folder: Path, runs: RunsFolder) -> bool:
    """Whether no trial of a sweep can be there, as is known without its text: nothing was trained, or none of it.

    Of a dataset of the hub nothing was where no command has begun the sweep, and no finished trial names that dataset.
    """
    hubs = {config.data.hub for config in sweep.configs if config.data.path is None}
    if not hubs or None in hubs or begun_plan(folder):
        return not runs.trials
    return hubs.isdisjoint(result.config.get("data.hub") for _, result in runs.finished())


def _without_trials(file: Path, sweep: Sweep, options: TableOptions) -> str:
    """The error for a sweep without trials, which names what there is instead."""
    is_shipped = isinstance(options, SweepReport) and options.shipped
    rule = f"{file}: must have trials {'that ship' if is_shipped else f'in {options.runs}'}, but has none yet"
    ships = located(file).parent == SHIPPED and any(one.name.startswith(f"{sweep.scale}.") for one in archives())
    command = report_command(file, options, "--shipped", runs=DEFAULT_RUNS)
    others = f"see those that ship: {command}; or " if ships and not is_shipped else ""
    return f"{rule}{_elsewhere(sweep, options)}; {others}{REMEDY}"


def _elsewhere(sweep: Sweep, options: TableOptions) -> str:
    """Which other options there are results of a file with."""
    folders = (options.runs / "sweeps").glob(f"{sweep.name}@*")
    others = {read_plan(folder).get("differs", "") for folder in folders} - {"", other_table(options)}
    return f"; there are results of this file with {' and with '.join(sorted(others))}" if others else ""


def _warn_of_missing(file: Path, grid: Grid, options: TableOptions) -> None:
    """Say how many trials are not trained. Raises an InputError where none is."""
    if not any(trial.folder.path.exists() for trial in grid.trials):
        raise InputError(_without_trials(file, grid.sweep, options))
    if missing := sum(trial.needs_training() for trial in grid.trials):
        warn(f"{missing} of {len(grid.trials)} trials are missing{_elsewhere(grid.sweep, options)}")
