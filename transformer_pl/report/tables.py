"""The table that is asked for, and its page: of the rows of sweeps and of those of a file of runs alike."""

from collections.abc import Callable, Sequence
from pathlib import Path

from transformer_pl.report.options import FOR_PROGRAMS, TableChoice
from transformer_pl.runtime.files import check_writable
from transformer_pl.table.contrast_tables import factors_table, pairs_table
from transformer_pl.table.formats import Table
from transformer_pl.table.notes import added_notes
from transformer_pl.table.rows import About, Row
from transformer_pl.table.table import make_table

Draw = Callable[[Path, str, Table], object]  # writes the page of a table into a folder, with a title


def table_of(rows: Sequence[Row], about: About, options: TableChoice) -> Table:
    """The table of the rows, or that of their pairs or factors, which says as well how the rows came about."""
    measure = about.measures[0]
    if not (options.pairs or options.factors):
        return make_table(rows, about)
    if options.pairs:
        table = pairs_table(rows, measure, options.format in FOR_PROGRAMS)
    else:
        table = factors_table(rows, measure, about.margins.get(measure.key))
    return table._replace(notes=[*table.notes, *added_notes(about)])


def printable(table: Table, title: str, folder: Path, draw: Draw, options: TableChoice) -> Table | Path:
    """The table with the chosen columns; with --format html the path of its page, which is written into the folder."""
    table = table.chosen(options.columns) if options.columns else table
    is_page = options.format == "html"
    if is_page or getattr(options, "wandb", False):
        check_writable(folder)
        draw(folder, title, table)
    return folder / "report.html" if is_page else table
