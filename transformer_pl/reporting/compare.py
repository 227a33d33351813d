"""The same rows in two runs folders, beside each other."""

from collections.abc import Sequence
from typing import Any

from transformer_pl.reporting import cells
from transformer_pl.reporting.notes import convergence_notes, diverged_notes, read_error_notes, untrained_notes
from transformer_pl.reporting.render import Column, Table
from transformer_pl.reporting.rows import ALPHA, RowResults, TableRow, compare_with_base, mean
from transformer_pl.reporting.table import comparison_record
from transformer_pl.runtime.terminal import counted


def compare_folders(
    names: Sequence[str],
    rows: Sequence[RowResults],
    other_rows: Sequence[RowResults],
    places: tuple[str, str],
    randomise: bool = False,
) -> Table:
    """A table of each row's results in two runs folders. Differences are the first folder minus the second.

    names: of the rows; places: the names of the two folders. p-values are as in build_table.
    """
    measure = rows[0].measure
    table_rows = _compare_pairs(rows, other_rows, randomise)
    columns, records = [Column("row", list(names))], [dict[str, Any](row=name) for name in names]
    for metric, title, cell in (("val/ppl", "PPL", _perplexity), (f"val/{measure.name}", measure.title, cells.score)):
        for place, of_place in zip(places, (rows, other_rows), strict=True):
            texts = [cell(row) or cells.unmeasured(row) for row in of_place]
            columns.append(Column(f"{title} {place}", texts))
            for record, row in zip(records, of_place, strict=True):
                record |= {f"{place}/{metric}.mean": mean(row.values(metric)), f"{place}/{metric}.n": len(row.done)}
    columns += [
        Column(f"Δ {measure.title}", [cells.score_difference(row) for row in table_rows]),
        Column("Δ 95 %", [cells.difference_interval(row.score) for row in table_rows], drop_rank=2),
        Column("p", [cells.p_value(row.score) for row in table_rows], drop_rank=1),
    ]
    for place, of_place in zip(places, (rows, other_rows), strict=True):
        columns.append(Column(f"seeds {place}", [cells.seed_counts(row) for row in of_place]))
    for record, table_row in zip(records, table_rows, strict=True):
        record |= {f"val/{measure.name}.difference": table_row.difference()}
        record |= comparison_record(f"val/{measure.name}", table_row.score)
    tested = sum(row.score is not None and row.score.p_value is not None for row in table_rows)
    test = "approximate randomisation" if randomise else "a t-test (approximate randomisation where rows have one seed)"
    notes = [
        f"Δ {measure.title} is {measure.title} in {places[0]} minus {measure.title} in {places[1]}.",
        *_test_notes(test, tested),
        *dict.fromkeys(
            note
            for place, of_place in zip(places, (rows, other_rows), strict=True)
            for note in convergence_notes(of_place, f" in {place}")
        ),
        *diverged_notes([*rows, *other_rows]),
        *untrained_notes([row for row in table_rows if row.is_untrained], "the other folder"),
        *read_error_notes([*rows, *other_rows]),
    ]
    return Table([column for column in columns if any(column.cells)], records, notes)


def _test_notes(test: str, tested: int) -> list[str]:
    """What p, its mark and the intervals mean, and which rows are not tested."""
    if not tested:
        return []
    return [
        f"{cells.SIGNIFICANT}: p is below {ALPHA:g}. p is by {test}, with Holm's correction for "
        f"{counted(tested, 'row')}. A row with one seed in one folder and several in the other is not tested.",
        "95 %: confidence interval for other seeds and other sentences, or where rows have one seed, for other "
        "sentences alone. It is not corrected for the number of rows.",
    ]


def _perplexity(row: RowResults) -> str:
    text = cells.mean_and_spread(row.values("val/ppl"), ".2f")
    return text + cells.UNCONVERGED if text and row.still_falls else text


def _compare_pairs(rows: Sequence[RowResults], other_rows: Sequence[RowResults], randomise: bool) -> list[TableRow]:
    """Compare each row with the other folder's row, and correct the p-values for the number of rows."""
    from transformer_pl.reporting.stats import correct_p_values  # scipy takes half a second

    pairs = list(zip(rows, other_rows, strict=True))
    comparisons = correct_p_values([compare_with_base([other, row], other, randomise)[1][0] for row, other in pairs])
    return [
        TableRow(row, {}, None, False, other, score, None)
        for (row, other), score in zip(pairs, comparisons, strict=True)
    ]
