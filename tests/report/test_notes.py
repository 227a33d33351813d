"""The notes under a table: how far it stands in the paper's order, and what its summary says."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from helpers import a_result
from scipy.stats import rankdata

from transformer_pl.config import Config
from transformer_pl.report.moderation import Part
from transformer_pl.report.notes import summary, table_notes
from transformer_pl.report.published import PublishedRow, read_published
from transformer_pl.report.rows import RowResults, TableRow
from transformer_pl.report.statistics import Estimate, RowComparison

PAPER = read_published()


def table_row(ours, published=None, params=9):
    """A row of a table. ours: BLEU by seed. The base of ours has a BLEU of 1, and the paper's 25.8."""
    results, base = (
        RowResults(
            Config(), [a_result(metrics={"val/bleu": bleu, "val/ppl": 3.0}, params=params) for bleu in seeds], []
        )
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


def test_the_order_is_beside_that_of_the_parameters():
    """Given these, ours and the paper's are what a regression of the ranks on theirs leaves. The interval is that of
    Bonett and Wright 2000."""
    sizes, *noise = np.random.default_rng(3).normal(size=(3, 8))
    ours, theirs = 2 * sizes + noise[0], sizes + noise[1]  # so that the parameters explain ours better
    rows = [table_row([1 + a], 25.8 + b, round(1e6 * (9 + c))) for a, b, c in zip(ours, theirs, sizes, strict=True)]
    note = "".join(table_notes(rows, None, PAPER))
    ranks = np.array([rankdata(one) for one in (ours, theirs.round(2), sizes)])
    by_size = np.stack([ranks[2], np.ones(8)], 1)
    left = [one - by_size @ np.linalg.lstsq(by_size, one)[0] for one in ranks[:2]]
    r, of_size, partial = (np.corrcoef(*pair)[0, 1] for pair in (ranks[:2], ranks[1:], left))
    ends = np.tanh(np.arctanh(r) + np.array([-1, 1]) * 1.959964 * np.sqrt((1 + r**2 / 2) / 5))
    found = [float(number) for number in re.findall(r"[+-]\d\.\d\d", note)]
    assert found[:5] == pytest.approx([r, *ends, of_size, partial], abs=0.0051)


def test_the_paper_s_difference_is_compatible_within_the_errors_of_both():
    """Ours has an error of 0.1; the paper's, of two trainings with one seed each, is taken for sqrt(2) 0.25. The limit
    is 1.96 times the root of the sum of their squares."""
    limit = 1.959964 * math.hypot(0.1, 0.25, 0.25)
    differences, rows = (-2.0, -1.0, 1.0, limit + 0.02, limit - 0.02), []
    for one, away in zip(differences, (-0.99 * limit, 1.01 * limit, 0.99 * limit, 0, 0), strict=True):
        ours = Estimate(one, (), 0.1**2, float("inf"))
        rows.append(replace(table_row([1 + one], 25.8 + one + away), score=RowComparison(ours, ours, 0.5)))
    note = "".join(table_notes(rows, None, PAPER))
    assert re.search(r"in (\d+) of (\d+) rows;.*?in (\d+)\.", note).groups() == ("4", "5", "1")


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
