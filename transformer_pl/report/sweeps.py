"""The tables of the grids of sweep files, whose trials are read and never trained."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformer_pl.plan.plan import plan_trials
from transformer_pl.plan.retune import plan_retuning
from transformer_pl.plan.shared_options import TableOptions, margins, other_table, sweep_folder
from transformer_pl.plan.sweep_file import leading_comment, read_sweep
from transformer_pl.report.looks import as_seen, begun_looks, check_looks
from transformer_pl.report.options import SweepReport
from transformer_pl.report.row_names import read_row_names
from transformer_pl.report.rows import Grid
from transformer_pl.report.sweep_notes import notes_of
from transformer_pl.report.sweep_table import rows_and_about
from transformer_pl.report.tables import Draw, table_of
from transformer_pl.runtime.command_line import refuse_options
from transformer_pl.runtime.errors import InputError, warn
from transformer_pl.table.formats import Table
from transformer_pl.table.notes import OF_TEST_SET
from transformer_pl.table.scales import scales_table
from transformer_pl.task import task_of
from transformer_pl.trials.runs_folder import begun_plan, corpus_of_trials, read_plan
from transformer_pl.trials.trial import Trial

REMEDY = "train it: python -m transformer_pl.sweep, with the same options"
ENDED = ("done", "failed", "diverged")


def of_grids(
    files: Sequence[Path], contents: Sequence[dict[str, Any]], options: SweepReport
) -> tuple[Any, Table, Draw]:
    """The sweep of grids, their table, and what writes its page."""
    grids = [read_grid(file, content, options) for file, content in zip(files, contents, strict=True)]
    sweep, names = grids[0].sweep, None
    task = task_of(sweep.base.data)
    if not (options.pairs or options.factors or options.together):
        names = read_row_names(sweep, files[0], options.rows, bool(options.set))
    elif any(grid.sweep.looks for grid in grids):
        rule = "hold for differences from base in the sweep's own table; leave out --pairs, --factors and --together"
        raise InputError(f"{', '.join(map(str, files))}: the levels of its looks {rule}")
    sweep = sweep._replace(name="+".join(dict.fromkeys(grid.sweep.name for grid in grids)))
    rows, about = rows_and_about(
        grids,
        task,
        names=names,
        notes=notes_of(grids, task.unit, sweep_folder(sweep, options)),
        base=options.base,
        paper=options.paper,
        margin=margins(options.margin, (task.measure.name,)).get(task.measure.name),
        split=options.split,
        sort=options.sort,
    )

    def draw_page(folder: Path, title: str, table: Table) -> None:
        from transformer_pl.report.page import write_page  # matplotlib takes a second

        write_page(folder, title, sweep.base, table, rows, comment=leading_comment(files[0]) if len(files) == 1 else "")

    return sweep, table_of(rows, about, options), draw_page


def against(files: Sequence[Path], contents: Sequence[dict[str, Any]], options: SweepReport) -> tuple[Any, Table, Draw]:
    """What the table of a sweep says of that at another scale, as `of_grids` returns it.

    Looks that were taken at the other scale are those of its plan.
    """
    sweep, table, _ = of_grids(files, contents, options)
    first, second = names = Path(sweep.scale).stem, Path(str(options.against)).stem
    if first == second:
        raise InputError(f"--against {options.against}: must be another scale than that of the table; choose one")
    there = replace(options, scale=options.against, against=None)
    looks = begun_looks(sweep_folder(sweep._replace(scale=options.against), there))
    _, other, _ = of_grids(files, contents, replace(there, **looks))

    def draw_page(folder: Path, title: str, made: Table) -> None:
        from transformer_pl.table.figures import scales  # matplotlib takes a second
        from transformer_pl.table.html import write_html

        write_html(folder, title, made, {"scales": scales(table.contrasts, other.contrasts, names)})

    sweep = sweep._replace(name=f"{sweep.name}-against-{second}")
    shown = scales_table(table.contrasts, other.contrasts, names)
    return sweep, shown._replace(notes=[*shown.notes, *[OF_TEST_SET] * (options.split == "test")]), draw_page


def read_grid(file: Path, content: dict[str, Any], options: TableOptions, planned: bool = False) -> Grid:
    """The sweep of a grid's file, and its trials. With --retune each row is at the best of its tried points.

    planned: whether trials may be missing; if tries of --retune are missing, the sweep is that of the tries. A sweep
    that an agent has trained has no looks.
    """
    refuse_options(options, ["storage"], f"is for a search, but {file} has method: grid")
    sweep = read_sweep(file, options.scale, options.seeds, options.set, content, options.looks, options.base_seeds)
    folder = sweep_folder(sweep, options)
    check_looks(file, sweep, folder)
    if sweep.looks and not planned and not begun_plan(folder):
        sweep = sweep.without_looks()
    corpus_of = partial(corpus_of_trials, runs=options.runs)  # results can be read without the text
    plan = partial(plan_trials, runs=options.runs, corpus_of=corpus_of)
    if options.retune:
        tuning = plan_retuning(sweep, options.retune, options.tries, content.get("metric"))
        tries: list[Trial] = plan(tuning.tries(sweep))
        if missing := sum(attempt.state() not in ENDED for attempt in tries):
            if planned:
                return Grid(tuning.tries(sweep), tries)
            rule = "every row must have been tried at every point"
            raise InputError(f"--retune: {rule}, but {missing} of {len(tries)} trials are missing; {REMEDY}")
        sweep = tuning.best(sweep, tries)
    grid = as_seen(sweep, plan(sweep), folder)
    if not planned:
        _warn_of_missing(file, grid, options)
    return grid


def _warn_of_missing(file: Path, grid: Grid, options: TableOptions) -> None:
    """Say how many trials are not trained. Raises an InputError where none is."""
    folders = (options.runs / "sweeps").glob(f"{grid.sweep.name}@*")
    others = {read_plan(folder).get("differs", "") for folder in folders} - {"", other_table(options)}
    known = f"; there are results of this file with {' and with '.join(sorted(others))}" if others else ""
    if not any(trial.folder.exists() for trial in grid.trials):
        raise InputError(f"{file}: must have trials in {options.runs}, but has none yet{known}; {REMEDY}")
    if missing := sum(trial.needs_training() for trial in grid.trials):
        warn(f"{missing} of {len(grid.trials)} trials are missing{known}")
