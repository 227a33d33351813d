"""The table of the page: what a reader compares first stands first, everything else folds away."""

from collections.abc import Sequence
from typing import NamedTuple

from transformer_pl.reporting.render import Table

FIRST = ("p", "seeds", "params")  # columns that are always shown, beside the score and its difference


class PageColumn(NamedTuple):
    """A column of the page's table."""

    heading: str
    cells: Sequence[str]
    below: Sequence[str] = ()  # of each cell: a second line, in small print
    below_heading: str = ""
    meaning: str = ""  # for a reader who knows the paper
    folded: bool = False  # shown only on demand
    is_text: bool = False  # names rather than numbers


def page_columns(table: Table, names: Sequence[str]) -> list[PageColumn]:
    """The columns of a table for the page, with confidence intervals below the numbers.

    names: of the rows of a sweep. The table of a search keeps its own columns, but the drawn settings come last.
    """
    first, *others = table.columns
    if not table.rows:
        ordered = [first, *sorted(others, key=lambda one: one.setting)]
        return [PageColumn(one.name, one.cells, meaning=one.meaning, is_text=one is first) for one in ordered]
    results = {column.name: column for column in others if not column.setting}
    title = table.rows[0].results.measure.title
    intervals = {title: f"{title} 95 %", f"Δ {title}": "Δ 95 %"}
    labels = [row.label if row.label != name else "" for name, row in zip(names, table.rows, strict=True)]
    meaning = "Named by the settings in which it differs from base. Labels such as (A) are the paper's."
    shown = [PageColumn("row", names, labels, meaning=meaning, is_text=True)]
    for name in (*intervals, *FIRST):
        if column := results.get(name):
            shown.append(PageColumn(name, column.cells, meaning=column.meaning))
            if interval := results.get(intervals.get(name, "")):
                meaning = f"{column.meaning} {interval.meaning}"
                shown[-1] = PageColumn(name, column.cells, interval.cells, "95 % interval", meaning)
    folded = [one for one in others if one.setting or one.name not in (*intervals, *intervals.values(), *FIRST)]
    return shown + [PageColumn(one.name, one.cells, meaning=one.meaning, folded=True) for one in folded]
