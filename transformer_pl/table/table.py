"""The table of rows: their comparison, columns, notes and summary. Whoever has arrays of scores can make one:

    from transformer_pl.table.rows import About, Measure, Row
    from transformer_pl.table.table import make_table

    accuracy = Measure("accuracy", "accuracy", digits=3)
    rows = [
        Row.of_values("base", {"accuracy": [0.912, 0.915, 0.909]}, is_base=True),
        Row.of_values("wide", {"accuracy": [0.926, 0.921, 0.928]}),
    ]
    print(make_table(rows, About(measures=[accuracy])).markdown())

The values of a row are those of its seeds, or of other repetitions that are independent of each other.
"""

from collections.abc import Sequence
from dataclasses import replace

from transformer_pl.table.columns import all_columns
from transformer_pl.table.formats import Table
from transformer_pl.table.looks import compare_at_looks
from transformer_pl.table.notes import name_of_base, no_differences, summary, table_notes
from transformer_pl.table.rows import About, Contrast, Measure, Row, base_of, difference
from transformer_pl.table.statistics import compare_samples


def compare(rows: Sequence[Row], measure: Measure, base: Row | None) -> list[Contrast]:
    """Each row beside base, with one correction for all of them. base: one of the rows; None: there are no tests."""
    samples = [row.samples.get(measure.key) for row in rows]
    may = [base is not None and row.dataset == base.dataset for row in rows]
    if measure.of_tokens:
        may = [same and base is not None and row.has_tokens_of(base) for row, same in zip(rows, may, strict=True)]
    place = None if base is None else rows.index(base)
    contrasts = []
    for row, found in zip(rows, compare_samples(samples, place, measure.lowest, measure.highest, may), strict=True):
        value = difference(row, base, measure.key)
        contrasts.append(Contrast(row, measure, value, *(found or ())))
    return contrasts


def _contrasts(rows: Sequence[Row], measure: Measure, base: Row | None, about: About) -> list[Contrast]:
    """As `compare`; of rows that were looked at, by the looks. These hold for one base and one metric: others have
    differences, but no tests."""
    if not about.looked_at or base is None:
        return compare(rows, measure, base)
    if measure.key == about.looked_at.metric and not base.is_reference:
        return compare_at_looks(rows, measure, base, about.looked_at)
    return [replace(one, estimate=None, p_value=None) for one in compare(rows, measure, base)]


def make_table(rows: Sequence[Row], about: About) -> Table:
    """The table of at least one row. Differences are to the row that is base."""
    base = base_of(rows, about.measures[0])
    measures = [*about.measures, *([about.loss] if about.loss else [])]
    contrasts = {measure.key: _contrasts(rows, measure, base, about) for measure in measures}
    said = [summary(contrasts[measure.key], name_of_base(rows)) for measure in about.measures]
    return Table(
        all_columns(rows, contrasts, about),
        table_notes(rows, contrasts, about),
        contrasts[about.measures[0].key],
        " ".join(filter(None, said)) or no_differences(rows, about),
        about.headings,
        about.printed,
    )
