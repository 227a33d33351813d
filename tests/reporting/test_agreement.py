"""The rank correlation of a table with the paper's."""

import numpy as np
import pytest
from scipy import stats

from transformer_pl.reporting.agreement import rank_correlation

PUBLISHED = [0.2, -0.9, 0.0, -0.4, -2.1, 0.6, -1.3, -0.1]


def rows(rng, spread, seeds=5):
    """Rows whose true scores are in the published order, with seeds around them."""
    return [list(30 + value + spread * rng.normal(size=seeds)) for value in PUBLISHED]


def test_the_value_is_spearman_s_of_the_means():
    scores = rows(np.random.default_rng(1), spread=1.0)
    expected = stats.pearsonr(stats.rankdata(np.mean(scores, 1)), stats.rankdata(PUBLISHED)).statistic
    assert rank_correlation(scores, PUBLISHED).value == pytest.approx(expected)


def test_the_interval_is_that_of_other_seeds():
    """A slow bootstrap with another generator, of rows that do not have equally many seeds."""
    rng = np.random.default_rng(2)
    scores = rows(rng, spread=1.0)
    scores[3] = scores[3][:2]
    drawn = [
        stats.spearmanr([np.mean(rng.choice(row, len(row))) for row in scores], PUBLISHED).statistic
        for _ in range(2000)
    ]
    found = rank_correlation(scores, PUBLISHED)
    assert found.interval == pytest.approx(tuple(np.quantile(drawn, (0.025, 0.975))), abs=0.06)
    assert found.interval[0] < found.value < found.interval[1]


@pytest.mark.parametrize(("spread", "widest"), [(0.0, 0.0), (0.02, 0.2)])
def test_rows_that_seeds_do_not_move_have_a_narrow_interval(spread, widest):
    found = rank_correlation(rows(np.random.default_rng(3), spread), PUBLISHED)
    assert found.interval[1] - found.interval[0] <= widest and found.value == pytest.approx(1, abs=0.1)


def test_one_seed_tells_nothing_of_others():
    found = rank_correlation([[value] for value in PUBLISHED], PUBLISHED)
    assert found.interval is None and found.describe("BLEU") == "+1.00 by BLEU (8 rows)"
