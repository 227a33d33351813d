"""The notes under a table: how far it stands in the paper's order, and what its summary says."""

import re

import numpy as np
import pytest
from helpers import a_result
from scipy.stats import rankdata

from transformer_pl.config import Config
from transformer_pl.report.notes import table_notes
from transformer_pl.report.published import PublishedRow, read_published
from transformer_pl.report.rows import RowResults, TableRow

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
    return TableRow(results, {}, printed, False, base, None, None, PAPER.base)


@pytest.mark.parametrize(("of_peak", "said"), [(0.314, "17,000 target tokens a second, 31%"), (None, "")])
def test_the_speed_is_said_where_the_peak_is_known(of_peak, said):
    results = [a_result(tokens_per_s=speed, of_peak=of_peak) for speed in (16_000.0, 18_000.0)]
    row = TableRow(
        RowResults(Config(), results, []), {}, None, False, RowResults(Config(), results, []), None, None, None
    )
    notes = " ".join(table_notes([row], None, None))
    assert said in notes and ("tokens a second" in notes) == bool(said)


def order_note(rows):
    return next((note for note in table_notes(rows, None, PAPER) if "Spearman" in note), "")


def test_the_order_is_of_eight_rows_or_more_whose_numbers_are_printed():
    rows = [table_row([10 + i], 20 + i) for i in range(8)]
    assert "+1.00 (8 rows" in order_note(rows)
    for another in (table_row([9]), table_row([], 9)):
        assert order_note([*rows, another]) == order_note(rows) and not order_note([*rows[:7], another])
    for ours, theirs in ((range(8), [20] * 8), ([10] * 8, range(20, 28))):  # with a constant it is undefined
        assert not order_note([table_row([1 + a], b) for a, b in zip(ours, theirs, strict=True)])


def test_the_order_has_the_interval_of_bonett_and_wright():
    ours, theirs = np.random.default_rng(3).normal(size=(2, 12)) + np.linspace(0, 2, 12)
    rows = [table_row([9 + a], 25.8 + b) for a, b in zip(ours, theirs, strict=True)]
    r = np.corrcoef(rankdata(ours), rankdata(theirs.round(1)))[0, 1]
    ends = np.tanh(np.arctanh(r) + np.array([-1, 1]) * 1.959964 * np.sqrt((1 + r**2 / 2) / 9))
    found = [float(number) for number in re.findall(r"[+-]\d\.\d\d", order_note(rows))]
    assert found == pytest.approx([r, *ends], abs=0.0051)
