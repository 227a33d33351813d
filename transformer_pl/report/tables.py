"""The table that is asked for, and its page: of the rows of sweeps and of those of a file of runs alike."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_pl.report.report_options import TableChoice
from transformer_pl.runtime.files import check_writable
from transformer_pl.table.formats import Table
from transformer_pl.table.pairs import pairs_table
from transformer_pl.table.row import About, Row
from transformer_pl.table.table import make_table

Draw = Callable[[Path, str, Table], object]  # writes the page of a table into a folder, with a title


class Report(NamedTuple):
    """What is printed of a grid or a search, whose name, project at W&B and scale these are."""

    name: str
    project: str
    scale: str
    table: Table
    draw: Draw

    @property
    def title(self) -> str:
        return f"{self.name} at scale {Path(self.scale).stem}"


def table_of(rows: Sequence[Row], about: About, pairs: bool = False) -> Table:
    """The table of the rows, or that of their pairs, which says as well how the rows came about."""
    if not pairs:
        return make_table(rows, about)
    main = about.outcomes[0]
    table = pairs_table(rows, main, about.priors.get(main.key))
    return table._replace(notes=[*table.notes, *about.facts.others])


def printable(table: Table, title: str, folder: Path, draw: Draw, options: TableChoice) -> Table | Path:
    """The table with the chosen columns; with --format html the path of its page, which is written into the folder."""
    table = table.chosen(options.columns) if options.columns else table
    if options.draws_page:
        check_writable(folder)
        draw(folder, title, table)
    return folder / "report.html" if options.format == "html" else table
