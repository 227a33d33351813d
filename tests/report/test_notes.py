"""The rank correlation of a table with the paper's."""

import re
from dataclasses import replace

from transformer_pl.config import Config
from transformer_pl.report.moderation import Part
from transformer_pl.report.notes import summary, table_notes
from transformer_pl.report.published import PublishedRow, read_published
from transformer_pl.report.rows import RowResults, TableRow
from transformer_pl.report.statistics import Estimate, RowComparison

PAPER = read_published()


def table_row(ours, published=None):
    """A row of a table. ours: BLEU by seed."""
    results, base = (
        RowResults(Config(), [{"metrics": {"val/bleu": bleu}, "params": 9} for bleu in seeds], [])
        for seeds in (ours, [1])
    )
    printed = PublishedRow(label="A", score=published) if published else None
    return TableRow(results, {}, printed, False, base, None, None)


def correlation(rows):
    """The value and the number of rows that the note has, if it has any."""
    return re.findall(r"([+-][\d.]+) \((\d+) rows", "".join(table_notes(rows, None, PAPER)))


def test_the_note_is_of_three_rows_or_more_whose_numbers_are_printed():
    rows = [table_row([10 + i], 20 + i) for i in range(3)]
    assert correlation(rows) == [("+1.00", "3")]
    for another in (table_row([9]), table_row([], 9)):
        assert correlation([*rows, another]) == correlation(rows) and correlation([*rows[:2], another]) == []


def test_there_is_no_order_among_equal_values():
    """A correlation with a constant is undefined."""
    for ours, theirs in ((range(10, 14), [20] * 4), ([10] * 4, range(20, 24))):
        assert correlation([table_row([a], b) for a, b in zip(ours, theirs, strict=True)]) == []
    two = [table_row([a], b) for a, b in zip((10, 11, 11), (20, 21, 21), strict=True)]
    assert correlation(two) == [("+1.00", "3")]


def test_a_paper_of_rows_that_hardly_differ_would_not_correlate_with_the_truth():
    of_paper = []
    for gap in (10, 0.1):
        note = "".join(table_notes([table_row([i], 20 + gap * i) for i in range(6)], None, PAPER))
        of_paper.append(float(re.findall(r"[+-]\d\.\d\d", note)[-1]))
    assert of_paper[0] == 1 and 0 < of_paper[1] < 0.9


def test_no_end_of_an_interval_looks_like_zero_in_the_sentence_of_a_table():
    """It is written in as many digits as in the table's cells."""
    difference = Estimate(-1.6, (Part(0.5, 4.0), Part(0.01, 4.0)), 0.0, 8.0)
    difference = difference._replace(value=0.01 - difference.half_width(difference.level) - 0.02)
    row = replace(table_row([8, 9]), score=RowComparison(difference, difference, 0.04))
    low, high = re.findall(r"95 %: ([\d.]+) to ([\d.]+)", summary([row]))[0]
    assert 0 < float(low) < 0.05 < float(high)
