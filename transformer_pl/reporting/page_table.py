"""The table of the page: what a reader compares first stands first, everything else folds away."""

from collections.abc import Sequence
from typing import NamedTuple

from transformer_pl.reporting.render import Column, Table


class PageColumn(NamedTuple):
    """A column of the page's table."""

    heading: str
    cells: list[str]
    below: list[str]  # of each cell: a second line, in small print
    below_heading: str = ""
    meaning: str = ""  # for a reader who knows the paper
    folded: bool = False  # shown only on demand
    is_text: bool = False  # names rather than numbers


def page_columns(table: Table, names: Sequence[str]) -> list[PageColumn]:
    """The columns of a table for the page.

    names: of the rows of a sweep. The table of a search keeps its own columns, but the drawn settings come last.
    """
    first, *others = table.columns
    if not table.rows:
        return [_page_column(first, is_text=True), *map(_page_column, sorted(others, key=lambda one: one.setting))]
    results = {column.name: column for column in others if not column.setting}
    title = table.rows[0].results.measure.title
    intervals = {title: f"{title} 95 %", f"Δ {title}": "Δ 95 %"}
    shown = [name for name in (*intervals, "p", "seeds", "params") if name in results]
    folded = [one for one in others if one.setting or one.name not in (*shown, *intervals.values())]
    labels = [row.label if row.label != name else "" for name, row in zip(names, table.rows, strict=True)]
    meaning = "Named by the settings in which it differs from base. Labels such as (A) are the paper's."
    return [
        PageColumn("row", list(names), labels, meaning=meaning, is_text=True),
        *(_page_column(results[name], results.get(intervals.get(name, ""))) for name in shown),
        *(_page_column(column, folded=True) for column in folded),
    ]


def _page_column(
    column: Column, interval: Column | None = None, folded: bool = False, is_text: bool = False
) -> PageColumn:
    """A column, with confidence intervals below the numbers where there are any."""
    if interval is None:
        return PageColumn(column.name, column.cells, [""] * len(column.cells), "", column.meaning, folded, is_text)
    meaning = f"{column.meaning} {interval.meaning}"
    return PageColumn(column.name, column.cells, interval.cells, "95 % interval", meaning)
