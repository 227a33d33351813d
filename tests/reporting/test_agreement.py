"""The rank correlation of a table with the paper's."""

import math
import re

import numpy as np
import pytest
from scipy import stats

from transformer_pl.config import Config
from transformer_pl.reporting.agreement import describe_agreement, rank_correlation
from transformer_pl.reporting.published import PublishedRow, read_published
from transformer_pl.reporting.rows import RowResults, TableRow

PAPER = read_published()
PUBLISHED = [0.2, -0.9, 0.0, -0.4, -2.1, 0.6, -1.3, -0.1]


def rows(rng, spread, seeds=5):
    """Rows whose true scores are in the published order, with seeds around them."""
    return [list(30 + value + spread * rng.normal(size=seeds)) for value in PUBLISHED]


def test_the_value_is_spearman_s_of_the_means():
    scores = rows(np.random.default_rng(1), spread=1.0)
    expected = stats.pearsonr(stats.rankdata(np.mean(scores, 1)), stats.rankdata(PUBLISHED)).statistic
    assert rank_correlation(scores, PUBLISHED).value == pytest.approx(expected)


def test_the_interval_is_that_of_other_seeds():
    """Slow draws with another generator. With 200 seeds (of one row 100) a row's own variance is its moderated one."""
    rng = np.random.default_rng(2)
    scores = rows(rng, spread=5.0, seeds=200)
    scores[3] = scores[3][:100]
    found = rank_correlation(scores, PUBLISHED)
    deviations = [math.sqrt(2) * stats.sem(row) for row in scores]
    drawn = [
        stats.spearmanr(rng.normal([np.mean(row) for row in scores], deviations), PUBLISHED).statistic
        for _ in range(2000)
    ]
    expected = found.value + np.quantile(drawn, (0.025, 0.975)) - np.median(drawn)
    assert found.interval == pytest.approx(tuple(np.clip(expected, -1, 1)), abs=0.06)
    assert found.interval[0] < found.value <= found.interval[1]


@pytest.mark.parametrize("seeds", [2, 5])
def test_the_interval_holds_the_correlation_of_other_seeds(seeds):
    """In about 95 of 100 tables; of seeds drawn with replacement in about 70."""
    rng, held = np.random.default_rng(4), 0
    for _ in range(100):
        ours, others = rows(rng, 0.8, seeds), rows(rng, 0.8, seeds)
        low, high = rank_correlation(ours, PUBLISHED).interval
        held += low <= rank_correlation(others, PUBLISHED).value <= high
    assert held >= 88


@pytest.mark.parametrize(("spread", "widest"), [(0.0, 0.0), (0.02, 0.2)])
def test_rows_that_seeds_do_not_move_have_a_narrow_interval(spread, widest):
    found = rank_correlation(rows(np.random.default_rng(3), spread), PUBLISHED)
    assert found.interval[1] - found.interval[0] <= widest and found.value == pytest.approx(1, abs=0.1)


def test_one_seed_tells_nothing_of_others():
    found = rank_correlation([[value] for value in PUBLISHED], PUBLISHED)
    assert found.interval is None
    assert rank_correlation([[1.0, 2.0], [3.0, 3.0], [5.0]], [1, 2, 3]).interval is None


def table_row(ours, published=None):
    """A row of a table. ours: BLEU by seed."""
    results, base = (
        RowResults(Config(), [{"metrics": {"val/bleu": bleu}} for bleu in seeds], []) for seeds in (ours, [1])
    )
    printed = PublishedRow(label="A", score=published) if published else None
    return TableRow(results, {}, printed, False, base, None, None)


def correlation(rows):
    """The value and the number of rows that the note has, if it has any."""
    return re.findall(r"([+-][\d.]+) by BLEU \((\d+) rows", describe_agreement(rows, PAPER))


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
