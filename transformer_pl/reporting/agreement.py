"""Whether the rows of a table stand in the paper's order."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata, spearmanr

from transformer_pl.reporting.moderation import Part, fit_prior, variance_of
from transformer_pl.reporting.published import PublishedTable
from transformer_pl.reporting.rows import TableRow

RESAMPLES = 2000
FEWEST_ROWS = 3


class RankCorrelation(NamedTuple):
    """Spearman's correlation of our differences from base with the paper's."""

    value: float
    interval: tuple[float, float] | None  # 95 %, for other seeds; None where a row has a single seed


def rank_correlation(scores: Sequence[Sequence[float]], published: Sequence[float]) -> RankCorrelation:
    """The correlation of the rows' mean scores with the published ones.

    scores: of each row, by seed. Base's score would be subtracted from all of them, which changes no rank.

    The interval is for as many other seeds, by a parametric bootstrap (Efron and Tibshirani 1993): the mean of a row is
    drawn from Student's t around its own, with twice its variance, as our mean and that of the other seeds both err.
    The variances are moderated over the rows (see moderation.py). More noise lowers a correlation, so the draws are
    moved until their median is the value. Seeds drawn with replacement would give far too narrow an interval
    (reporting/README.md has the figures).
    """
    means = np.array([np.mean(row) for row in scores])
    value = float(spearmanr(means, published).statistic)
    if min(map(len, scores)) < 2:
        return RankCorrelation(value, None)
    own = [Part(variance_of(row), len(row) - 1) for row in scores]
    prior = fit_prior(own)
    parts = [prior.moderate(part) for part in own] if prior else own
    variances = [2 * part.variance / len(row) for part, row in zip(parts, scores, strict=True)]
    noise = np.random.default_rng(0).standard_t([part.freedom for part in parts], (RESAMPLES, len(scores)))
    ranks, of_published = rankdata(means + noise * np.sqrt(variances), axis=1), rankdata(published)
    ranks, of_published = ranks - ranks.mean(1, keepdims=True), of_published - of_published.mean()
    norms = np.linalg.norm(ranks, axis=1) * np.linalg.norm(of_published)
    drawn = ranks @ of_published / np.where(norms, norms, 1)  # no order at all: 0
    low, high = np.clip(value + np.quantile(drawn, (0.025, 0.975)) - np.median(drawn), -1, 1)
    return RankCorrelation(value, (float(low), float(high)))


def describe_agreement(rows: Sequence[TableRow], paper: PublishedTable) -> str:
    """A sentence with the correlation by the score; nothing where fewer than FEWEST_ROWS tell of an order."""
    known = [
        (row.results.scores, difference)
        for row in rows
        if row.published and row.difference() is not None
        if (difference := paper.difference(row.published)) is not None
    ]
    if len(known) < FEWEST_ROWS:
        return ""
    scores, printed = zip(*known, strict=True)
    if len(set(printed)) == 1 or len({float(np.mean(of_row)) for of_row in scores}) == 1:
        return ""
    value, interval = rank_correlation(scores, printed)
    by = f"{value:+.2f} by {rows[0].results.measure.title} ({len(known)} rows"
    seeds = (
        "{:+.2f} to {:+.2f} with other seeds".format(*interval) if interval else "a row with one seed has no interval"
    )
    return f"Spearman's rank correlation of our differences with the paper's: {by}; {seeds})."
