"""Writing the page of a sweep, and its figures, into the sweep's folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_pl.experiments.plan import PlannedTrial
from transformer_pl.experiments.sweep_file import Sweep
from transformer_pl.reporting.render import Table
from transformer_pl.runtime.files import write_atomically

if TYPE_CHECKING:
    from transformer_pl.reporting.plots import Drawing


def write_page(sweep: Sweep, planned: Sequence[PlannedTrial], table: Table, folder: Path) -> dict[str, Path]:
    """Write `report.html` and the figures of a grid; return the figures' png files by title.

    Translations and attention are those of the first finished seed of each row.
    """
    from transformer_pl.reporting import sweep_plots  # matplotlib takes a second

    figures = sweep_plots.draw_sweep_plots(sweep, planned, table)
    return write_page_files(sweep, planned, _first_finished_seeds(planned), table, figures, folder)


def write_page_files(
    sweep: Sweep,
    planned: Sequence[PlannedTrial],
    shown: Sequence[PlannedTrial],
    table: Table,
    drawings: "Mapping[str, Drawing]",
    folder: Path,
) -> dict[str, Path]:
    """Write `report.html` and the files of the given figures; return the figures' png files by title.

    shown: the trials whose translations and attention the page has. drawings: by file name.
    """
    from transformer_pl.reporting import html_page, plots  # torch and matplotlib take seconds

    (folder / "figures").mkdir(parents=True, exist_ok=True)
    pngs = {name: plots.save(drawing.figure, folder / "figures" / name) for name, drawing in drawings.items()}
    figures = [
        html_page.PageFigure(drawing.title, drawing.explanation, pngs[name].with_suffix(".svg"))
        for name, drawing in drawings.items()
    ]
    write_atomically(folder / "report.html", html_page.render_page(sweep, planned, shown, table, figures))
    return {drawing.title: pngs[name] for name, drawing in drawings.items()}


def _first_finished_seeds(planned: Sequence[PlannedTrial]) -> list[PlannedTrial]:
    """The first finished trial of each row that has one."""
    first = {one.row: one for one in reversed(planned) if one.trial.result()}
    return [first[row] for row in sorted(first)]
