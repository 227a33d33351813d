"""Another table of rows: every row against every other (`--pairs`)."""

from collections.abc import Mapping, Sequence

from transformer_pl.runtime.errors import InputError
from transformer_pl.runtime.terminal import counted
from transformer_pl.table import cells
from transformer_pl.table.columns import difference_record
from transformer_pl.table.comparison import is_flattered
from transformer_pl.table.formats import Column, Table
from transformer_pl.table.moderation import Prior
from transformer_pl.table.notes import FEWEST_SENTENCES
from transformer_pl.table.row import ALPHA, MISSING, Contrast, Outcome, Row
from transformer_pl.table.statistics import Sample, differences_of_pairs

MOST_ROWS = 40  # the most rows that --pairs compares


def pairs_table(rows: Sequence[Row], outcome: Outcome, of_scale: Prior | None = None) -> Table:
    """Every row against every other, with one correction for all pairs: a triangle, and a record of each pair.

    of_scale: the prior of rows which are too few to make one.

    Raises an InputError that names the rows that cannot be compared.
    """
    if not 2 <= len(rows) <= MOST_ROWS:
        raise InputError(f"--pairs: must be of 2 to {MOST_ROWS} rows, not {len(rows)}")
    contrasts = compare_pairs(rows, outcome, of_scale)
    found = sum(contrast.is_found for contrast in contrasts.values())
    tested = sum(contrast.p_value is not None for contrast in contrasts.values())
    said = f"A difference in {outcome.title} is found for {found} of {counted(tested, 'pair')} of rows."
    flattered = sum(contrast.is_flattered for contrast in contrasts.values())
    if constant := len(contrasts) - tested - flattered:
        said += f" {counted(constant, 'more pair')} cannot be tested: there the difference does not vary."
    if flattered:
        why = "the better row has lost trainings, and the others may be lucky"
        said += f" No test of {counted(flattered, 'pair')}: {why}."
    cell = "row / column" if outcome.is_logarithm else "row minus column"
    note = f"Each cell: {cell}. {cells.SIGNIFICANT}: p < {ALPHA:g}, corrected for {counted(tested, 'pair')}."
    records = [
        {"row": rows[i].name, "other": rows[j].name} | difference_record(contrast, "difference")
        for (i, j), contrast in contrasts.items()
    ]
    return Table(_triangle(rows, contrasts), records, [note], summary=said, caption=f"{said} {note}")


def compare_pairs(
    rows: Sequence[Row], outcome: Outcome, of_scale: Prior | None = None
) -> dict[tuple[int, int], Contrast]:
    """Each row minus each one before it, by their places."""
    pairs, most = [(i, j) for i in range(len(rows)) for j in range(i)], outcome.highest - outcome.lowest
    found = differences_of_pairs(_samples(rows, outcome), pairs, most, of_scale)
    contrasts = {}
    for (i, j), (estimate, p) in zip(pairs, found, strict=True):
        flattered = is_flattered(rows[i], rows[j], outcome, estimate.value)
        tested, p = (None, None) if flattered or p is None else (estimate, p)
        contrasts[i, j] = Contrast(rows[i], outcome, estimate.value, None, tested, p, is_flattered=flattered)
    return contrasts


def _triangle(rows: Sequence[Row], contrasts: Mapping[tuple[int, int], Contrast]) -> list[Column]:
    """A column for each row but the last, with the rows below it."""
    columns = [Column("row", [f"{place} {row.name}" for place, row in enumerate(rows, start=1)])]
    for j in range(len(rows) - 1):
        texts = [cells.difference(contrasts[i, j]) if i > j else "" for i in range(len(rows))]
        columns.append(Column(str(j + 1), texts))
    return columns


def _samples(rows: Sequence[Row], outcome: Outcome) -> list[Sample]:
    found = [row.samples.get(outcome.key) for row in rows]
    first = next((sample for sample in found if sample), None)

    def is_wrong(row: Row, sample: Sample | None) -> bool:
        is_whole = sample and {*row.states} <= {"done", MISSING} and len(sample.scores) > 1
        is_alike = row.trunks == rows[0].trunks
        return not (is_whole and is_alike and first and sample and sample.has_sentences_of(first))

    if wrong := [row.name for row, sample in zip(rows, found, strict=True) if is_wrong(row, sample)]:
        rule = (
            f"must have finished with several seeds, on the same {FEWEST_SENTENCES} or more sentences as the others, "
        )
        rule += "and begin with one trial if these do"
        raise InputError(f"rows `{'`, `'.join(wrong)}`: {rule}; train them, or leave them out of the file")
    return [sample for sample in found if sample]
