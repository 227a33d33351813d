"""The table of the page: what a reader compares first stands first, everything else folds away."""

from collections.abc import Sequence
from typing import NamedTuple

from transformer_pl.reporting.render import Column, Table


class PageCell(NamedTuple):
    """A cell of the page's table."""

    text: str
    below: str = ""  # a second line, in small print


class PageColumn(NamedTuple):
    """A column of the page's table."""

    heading: PageCell
    cells: list[PageCell]
    meaning: str = ""  # for a reader who knows the paper
    folded: bool = False  # shown only on demand
    is_text: bool = False  # names rather than numbers


def page_columns(table: Table, names: Sequence[str]) -> list[PageColumn]:
    """The columns of a table for the page. Columns without any content are left out.

    names: of the rows of a sweep. The table of a search keeps its own columns, but the drawn settings come last.
    """
    if not table.rows:
        first, *others = table.columns
        ordered = [first, *sorted(others, key=lambda column: column.setting)]
        return [_plain(column)._replace(is_text=column is first) for column in ordered if any(column.cells)]
    settings = [column for column in table.columns if column.setting]
    results = {column.name: column for column in table.columns[1:] if not column.setting}
    title = table.rows[0].results.measure.title
    intervals = {title: f"{title} 95 %", f"Δ {title}": "Δ 95 %"}
    first_names = [name for name in (*intervals, "p", "seeds", "params") if name in results]
    folded = [column for name, column in results.items() if name not in (*first_names, *intervals.values())]
    labels = [row.label if row.label != name else "" for name, row in zip(names, table.rows, strict=True)]
    columns = [
        PageColumn(
            PageCell("row"),
            [PageCell(name, label) for name, label in zip(names, labels, strict=True)],
            "Named by the settings in which it differs from base. Labels such as (A) are the paper's.",
            is_text=True,
        ),
        *(_with_interval(results[name], results.get(intervals.get(name, ""))) for name in first_names),
        *(_plain(column)._replace(folded=True) for column in (*settings, *folded)),
    ]
    return [column for column in columns if any(cell.text for cell in column.cells)]


def _plain(column: Column) -> PageColumn:
    return PageColumn(PageCell(column.name), list(map(PageCell, column.cells)), column.meaning)


def _with_interval(column: Column, interval: Column | None) -> PageColumn:
    """A column with its confidence intervals below the numbers."""
    if interval is None:
        return _plain(column)
    cells = [PageCell(*cell) for cell in zip(column.cells, interval.cells, strict=True)]
    return PageColumn(PageCell(column.name, "95 % interval"), cells, f"{column.meaning} {interval.meaning}")
