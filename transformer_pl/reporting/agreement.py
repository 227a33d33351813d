"""Whether the rows of a table stand in the paper's order."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer_pl.reporting.published import PublishedTable
from transformer_pl.reporting.rows import TableRow

RESAMPLES = 2000
FEWEST_ROWS = 3


class RankCorrelation(NamedTuple):
    """Spearman's correlation of our differences from base with the paper's."""

    value: float
    rows: int
    interval: tuple[float, float] | None  # 95 %, for other seeds; None where a row has a single seed

    def describe(self, metric: str) -> str:
        """Such as `+0.64 by BLEU (19 rows; +0.40 to +0.75 with other seeds)`."""
        interval = (
            "no interval, as a row has one seed"
            if self.interval is None
            else "{:+.2f} to {:+.2f} with other seeds".format(*self.interval)
        )
        return f"{self.value:+.2f} by {metric} ({self.rows} rows; {interval})"


def rank_correlation(scores: Sequence[Sequence[float]], published: Sequence[float]) -> RankCorrelation:
    """The correlation of the rows' mean scores with the published ones.

    scores: of each row, by seed. Base's score would be subtracted from all of them, which changes no rank.

    The interval is for as many other seeds, by a parametric bootstrap (Efron and Tibshirani 1993): the mean of a row is
    drawn from Student's t around its own, with twice its variance, as our mean and that of the other seeds both err.
    The variances are moderated over the rows (see moderation.py). More noise lowers a correlation, so the draws are
    moved until their median is the value. Seeds drawn with replacement would give far too narrow an interval
    (reporting/README.md has the figures).
    """
    from scipy.stats import rankdata, spearmanr  # takes half a second

    from transformer_pl.reporting.moderation import Part, fit_prior, variance_of  # imports scipy, too

    means = np.array([np.mean(row) for row in scores])
    value = float(spearmanr(means, published).statistic)
    if min(map(len, scores)) < 2:
        return RankCorrelation(value, len(scores), None)
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
    return RankCorrelation(value, len(scores), (float(low), float(high)))


def describe_agreement(rows: Sequence[TableRow], paper: PublishedTable) -> str:
    """A sentence with the correlation by the score and by perplexity, as far as they exist; else nothing."""
    parts, measure = [], rows[0].results.measure
    for name, metric in ((measure.title, f"val/{measure.name}"), ("PPL", "val/ppl")):
        known = [
            (row.results.values(metric), value)
            for row in rows
            if row.published and row.difference(metric) is not None
            if (value := row.published.ppl if name == "PPL" else paper.difference(row.published)) is not None
            if all(map(math.isfinite, row.results.values(metric)))
        ]
        if len(known) >= FEWEST_ROWS:
            scores, values = zip(*known, strict=True)
            if len(set(values)) > 1 and len({float(np.mean(of_row)) for of_row in scores}) > 1:
                parts.append(rank_correlation(scores, values).describe(name))
    return f"Spearman's rank correlation of our differences with the paper's: {', '.join(parts)}." if parts else ""
