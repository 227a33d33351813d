"""The notes under a table: how far it stands in the paper's order."""

import re
from dataclasses import replace

import numpy as np
import pytest
from made_rows import BLEU, PPL, row, table
from scipy.stats import rankdata

from transformer_pl.table.row import Printed, PrintedTable

PAPER = PrintedTable("a paper", Printed("base", 25.8))
BASE = row("base", 1.0, printed=PAPER.base)


def beside(ours, published=None):
    """A row of a table whose base has a BLEU of 1, beside the paper's of 25.8."""
    return row(str(ours), *ours, printed=Printed("A", published) if published else None)


def order_note(rows):
    return next((note for note in table([BASE, *rows], printed=PAPER).notes if "Spearman" in note), "")


def test_the_order_is_of_eight_rows_or_more_whose_numbers_are_printed():
    rows = [beside([10 + i], 20 + i) for i in range(8)]
    assert "+1.00 (8 rows" in order_note(rows)
    for another in (beside([9]), beside([], 9)):
        assert "+1.00 (8 rows" in order_note([*rows, another]) and not order_note([*rows[:7], another])
    for ours, theirs in ((range(8), [20] * 8), ([10] * 8, range(20, 28))):  # with a constant it is undefined
        assert not order_note([beside([1 + a], b) for a, b in zip(ours, theirs, strict=True)])


def test_the_order_is_in_the_main_metric():
    """A table that is decided by perplexity is compared with printed perplexities, whatever the scores say."""
    printed = PAPER._replace(base=Printed("base", 25.8, 4.92))
    base = row("base", 30.0, printed=printed.base)
    rows = [row(f"{i}", 30.0 + i, ppl=3.0 + i, printed=Printed("A", 26.0 - i, 5.0 + i)) for i in range(8)]
    for main, order in ((BLEU, "-1.00"), (PPL, "+1.00")):
        notes = table([base, *rows], printed=printed, outcomes=[main, *({BLEU, PPL} - {main})]).notes
        (said,) = (note for note in notes if "Spearman" in note)
        assert f"{main.title}: {order} (8 rows" in said
    no_perplexities = [replace(one, printed=one.printed._replace(ppl=None)) for one in rows]
    notes = table([base, *no_perplexities], printed=printed, outcomes=[PPL, BLEU]).notes
    assert not any("Spearman" in note for note in notes)


def test_the_order_has_the_interval_of_bonett_and_wright():
    ours, theirs = np.random.default_rng(3).normal(size=(2, 12)) + np.linspace(0, 2, 12)
    rows = [beside([9 + a], 25.8 + b) for a, b in zip(ours, theirs, strict=True)]
    r = np.corrcoef(rankdata(ours), rankdata(theirs.round(1)))[0, 1]
    ends = np.tanh(np.arctanh(r) + np.array([-1, 1]) * 1.959964 * np.sqrt((1 + r**2 / 2) / 9))
    found = [float(number) for number in re.findall(r"[+-]\d\.\d\d", order_note(rows))]
    assert found == pytest.approx([r, *ends], abs=0.0051)
