"""The table of rows: their comparison, columns, notes and summary. Whoever has arrays of scores can make one:

    from transformer_pl.table.row import About, Outcome, Row
    from transformer_pl.table.table import make_table

    accuracy = Outcome("accuracy", "accuracy", digits=3)
    rows = [
        Row.of_values("base", {"accuracy": [0.912, 0.915, 0.909]}, is_base=True),
        Row.of_values("wide", {"accuracy": [0.926, 0.921, 0.928]}),
    ]
    print(make_table(rows, About(outcomes=[accuracy])).markdown())

The values of a row are those of its seeds, or of other repetitions that are independent of each other.
"""

from collections.abc import Sequence

from transformer_pl.table.columns import columns_of, records_of
from transformer_pl.table.comparison import base_of, compare_as_seen
from transformer_pl.table.formats import Table
from transformer_pl.table.notes import star_meaning, summary_of, table_notes
from transformer_pl.table.row import About, Contrast, Row
from transformer_pl.table.steps import steps_contrasts


def make_table(rows: Sequence[Row], about: About) -> Table:
    """The table of at least one row. Differences are to the row that is base."""
    base, looked_at = base_of(rows, about.score), about.looked_at
    contrasts: dict[str, list[Contrast]] = {}
    for key, outcome in ((outcome.key, outcome) for outcome in about.outcomes):
        contrasts[key] = compare_as_seen(rows, outcome, base, looked_at, about.priors.get(key))
    contrasts |= steps_contrasts(rows, base) if about.loss else {}
    said = summary_of(rows, contrasts, about)
    return Table(
        columns_of(rows, contrasts, about),
        records_of(rows, contrasts, about),
        table_notes(rows, contrasts, about),
        contrasts[about.outcomes[0].key],
        " ".join(said),
        about.headings,
        about.printed,
        [contrasts[outcome.key] for outcome in about.outcomes[1:]],
        " ".join([*said[:1], *star_meaning(contrasts[about.outcomes[0].key], about)]),
    )
