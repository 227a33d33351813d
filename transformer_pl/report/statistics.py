"""Statistics of corpus scores when both the seeds and the sentences of a row are a random sample.

A corpus score is a function of sums over sentences: BLEU of ten integers, the loss of nats and tokens. Pseudo-values
turn it into a mean over sentences (the jackknife of Tukey 1958, "Bias and confidence in not-quite large samples").
With theta_s the score of seed s = 1..S on all n sentences and theta_s(-i) its score without sentence i,

    y_si = n theta_s - (n - 1) theta_s(-i).

The pseudo-values of a row follow the two-way random-effects model of the analysis of variance (Searle, Casella and
McCulloch 1992, "Variance Components", chapter 4)

    y_si = mu + a_s + b_i + e_si,     Var(mean of y) = sigma_a^2 / S + sigma_b^2 / n + sigma_e^2 / (S n)

with a seed effect a_s, a sentence effect b_i that all seeds share, and their interaction e_si. `estimate` and
`difference` estimate this variance; `_combine` has the equations. In a difference of two rows each row has seeds of its
own, while the sentences are the same.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from transformer_pl.report import moderation
from transformer_pl.report.moderation import Part, variance_of
from transformer_pl.task import HIGHEST, LOWEST, Measure
from transformer_pl.trials.metrics import LOSS_COLUMNS, SCORE_COLUMNS

Score = Callable[[np.ndarray], np.ndarray]  # sums over the sentences of a set (..., k) -> corpus scores (...)
LEVEL = 0.95
POWER, MOST_SEEDS = 0.8, 50  # of `seeds_to_resolve`


# ---------------------------------------------------------------------------------------------------------------------
# Corpus scores of sums


def loss(sums: np.ndarray) -> np.ndarray:
    """Nats per token, the logarithm of perplexity. sums (..., 2): nats, tokens."""
    return sums[..., 0] / sums[..., 1]


class Metric(NamedTuple):
    """A corpus score, and which of the stored numbers of a sentence it needs."""

    score: Score
    columns: slice
    reference_column: int  # depends on the references alone: where it differs, the sentences differ
    lowest: float  # of all values that the score can have
    highest: float


LOSS = Metric(loss, LOSS_COLUMNS, -1, 0.0, math.inf)


def of_measure(measure: Measure) -> Metric:
    """The score that a task compares rows by."""
    return Metric(measure.of_sums, SCORE_COLUMNS, SCORE_COLUMNS.stop - 1, LOWEST, HIGHEST)


# ---------------------------------------------------------------------------------------------------------------------
# One row, or two


class Sample(NamedTuple):
    """The scores of a row, and the contribution of each sentence."""

    scores: np.ndarray  # (S,) theta_s
    pseudo: np.ndarray  # (S, n) pseudo-values y_si; their mean over sentences is the score with its bias removed
    references: np.ndarray | Sequence[float] = ()  # (n,) a number of each; rows on other ones are not compared


class Estimate(NamedTuple):
    """A score, or a difference of two scores, with its uncertainty."""

    value: float
    variance_by_seeds: float | None  # None with one seed, which tells nothing about others
    variance_by_sentences: float
    degrees_of_freedom: float  # of t; without meaning where there are parts
    parts: tuple[Part, ...] = ()  # of variance_by_seeds, where it is moderated: then the law is not that of t
    lowest: float = -math.inf  # of all values that it can have: the interval ends there
    highest: float = math.inf

    @property
    def standard_error(self) -> float:
        """SE = sqrt(variance_by_seeds + variance_by_sentences)."""
        return math.sqrt((self.variance_by_seeds or 0.0) + self.variance_by_sentences)

    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval value -+ t SE, where t is the 97.5 % quantile of Student's t.

        With moderated variances t SE is the quantile of the law in `moderation.upper_tail`. The interval is cut where
        no value can be, such as BLEU above 100: what is cut off has no true value in it.
        """
        if self.parts:
            half_width = moderation.upper_quantile(LEVEL, self.parts, self.variance_by_sentences)
        else:
            half_width = self.standard_error * stats.t.ppf((1 + LEVEL) / 2, self.degrees_of_freedom)
        return max(self.lowest, float(self.value - half_width)), min(self.highest, float(self.value + half_width))

    @property
    def p_value(self) -> float:
        """2 P(T > |value| / SE) for Student's T: the two-sided test of a true value of zero. With moderated variances
        the tail is that of `moderation.upper_tail`."""
        if self.parts:
            return 2 * moderation.upper_tail(abs(self.value), self.parts, self.variance_by_sentences)
        if not self.standard_error:
            return float(self.value == 0)
        return 2 * float(stats.t.sf(abs(self.value) / self.standard_error, self.degrees_of_freedom))


def sample(sentences: np.ndarray, score: Score) -> Sample:
    """The scores and pseudo-values of a row. sentences (S, n, k): the numbers of every sentence for every seed."""
    sums, n = sentences.sum(1), sentences.shape[1]
    scores = score(sums)
    return Sample(scores, n * scores[:, None] - (n - 1) * score(sums[:, None] - sentences))


def estimate(row: Sample, prior: Part | None = None) -> Estimate:
    """The mean of a row over its seeds. prior: of the rows of its table; None: its own variance counts alone."""
    return _combine([(1, row)], prior)


def difference(row: Sample, base: Sample, prior: Part | None = None) -> Estimate:
    """The mean of a row minus that of base, which was measured on the same sentences. prior: as for `estimate`."""
    return _combine([(1, row), (-1, base)], prior)


def _combine(weighted_rows: Sequence[tuple[int, Sample]], prior: Part | None) -> Estimate:
    """The sum over rows r of w_r times the mean score of the row's S_r seeds. Its variance is the sum of

        V_r = Var_s(theta_rs) / S_r                                     for each row, with S_r - 1 degrees of freedom,
        V_b = Var_i(sum_r w_r mean_s y_rsi) / n - sum_r M_r / (S_r n)   once, with n - 1 degrees of freedom.

    V_r estimates sigma_a^2 / S_r + sigma_e^2 / (S_r n). The first term of V_b contains the interaction, too, which is
    subtracted by its mean square M_r (see `_interaction_mean_square`); V_b is zero where this is negative. The sum has
    the degrees of freedom of Satterthwaite 1946, "An approximate distribution of estimates of variance components":

        (V_b + sum_r V_r)^2 / (V_b^2 / (n - 1) + sum_r V_r^2 / (S_r - 1)).

    With a prior each Var_s(theta_rs) is moderated, and the law is that of `moderation.upper_tail`. If any row has one
    seed, the variance is that of sentences alone: Var_i(...) / n, with n - 1 degrees of freedom.
    """
    value = float(sum(weight * row.scores.mean() for weight, row in weighted_rows))
    n = weighted_rows[0][1].pseudo.shape[1]
    sentence_means = np.sum([weight * row.pseudo.mean(0) for weight, row in weighted_rows], axis=0)  # (n,)
    by_sentences = float(sentence_means.var(ddof=1)) / n
    rows = [row for _, row in weighted_rows]
    if any(len(row.scores) == 1 for row in rows):
        return Estimate(value, None, by_sentences, n - 1)
    interaction = sum(_interaction_mean_square(row.pseudo) / (len(row.scores) * n) for row in rows)
    by_sentences = max(0.0, by_sentences - interaction)
    of_rows = [(moderation.moderate(_own(row), prior) if prior else _own(row), len(row.scores)) for row in rows]
    parts = tuple(Part(part.variance / S, part.freedom) for part, S in of_rows)
    by_seeds = sum(part.variance for part in parts)
    if prior:
        return Estimate(value, by_seeds, by_sentences, math.nan, parts)
    variance = by_seeds + by_sentences
    squares = sum(part.variance**2 / part.freedom for part in parts) + by_sentences**2 / (n - 1)
    return Estimate(value, by_seeds, by_sentences, variance**2 / squares if variance else math.inf)


def seed_prior(rows: Sequence[Sample]) -> Part | None:
    """What the rows of a table with several seeds tell of each other's variance from seed to seed."""
    return moderation.fit_prior([_own(row) for row in rows if len(row.scores) > 1])


def _own(row: Sample) -> Part:
    """The variance of a row from seed to seed."""
    return Part(variance_of(row.scores), len(row.scores) - 1)


def _interaction_mean_square(pseudo: np.ndarray) -> float:
    """sum_si (y_si - mean_s y_si - mean_i y_si + mean y)^2 / ((S - 1) (n - 1)), which estimates sigma_e^2."""
    S, n = pseudo.shape
    residuals = pseudo - pseudo.mean(0) - pseudo.mean(1, keepdims=True) + pseudo.mean()
    return float((residuals**2).sum()) / ((S - 1) * (n - 1))


# ---------------------------------------------------------------------------------------------------------------------
# Several rows


class RowComparison(NamedTuple):
    """The statistics of one metric of a row."""

    row_mean: Estimate
    difference: Estimate | None  # to base; None for base itself, and where the two cannot be compared
    p_value: float | None  # of the difference, corrected for the number of tested rows


def compare_rows(
    rows: Sequence[np.ndarray | None],
    base: int | None,
    metric: Metric,
    same_dataset: Sequence[bool] = (),
) -> list[RowComparison | None]:
    """Compare every row with the one at index `base`; rows: arrays (S, n, k + 2).

    The result is None for a row that is None or has values that are not finite. Differences are tested by t, with
    variances that are moderated over the rows where there are enough (see moderation.py). Of rows with one
    seed each, these very seeds are tested, on other sentences. p-values have Holm's correction.

    There is no difference from base where the row was measured on other sentences, or `same_dataset` says so. Nor is
    there one where one row has one seed and the other several: nothing is known of the variation of that one.
    """
    samples = [_finite_sample(row, metric) for row in rows]
    prior = seed_prior([one for one in samples if one is not None])
    most = metric.highest - metric.lowest
    means = [one and estimate(one, prior)._replace(lowest=metric.lowest, highest=metric.highest) for one in samples]
    differences: list[Estimate | None] = [None] * len(rows)
    for i, row in enumerate(samples):
        of_base = None if base in (None, i) else samples[base]
        if row and of_base and (not same_dataset or same_dataset[i]) and _are_comparable(row, of_base):
            differences[i] = difference(row, of_base, prior)._replace(lowest=-most, highest=most)
    corrected = iter(holm([one.p_value for one in differences if one]))
    return [
        of_row and RowComparison(of_row, to_base, next(corrected) if to_base else None)
        for of_row, to_base in zip(means, differences, strict=True)
    ]


def _finite_sample(row: np.ndarray | None, metric: Metric) -> Sample | None:
    """The sample of a row, if it has several sentences and all of their numbers are finite."""
    if row is None or row.shape[1] < 2 or not np.isfinite(row[..., metric.columns]).all():
        return None
    return sample(row[..., metric.columns], metric.score)._replace(references=row[0, :, metric.reference_column])


def _are_comparable(row: Sample, base: Sample) -> bool:
    """Whether two rows have the same references, and both have one seed, or both several."""
    return np.array_equal(row.references, base.references) and (len(row.scores) == 1) == (len(base.scores) == 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number m (Holm 1979): the i-th smallest becomes max over j <= i of (m - j + 1) p_j,
    at most 1. The probability of any false positive among them then stays below the level."""
    order = np.argsort(p_values)
    factors = np.arange(len(order), 0, -1)
    corrected = np.minimum(1, np.maximum.accumulate(np.asarray(p_values)[order] * factors))
    return corrected[np.argsort(order)].tolist()


def seeds_to_resolve(gap: float, compared: Sequence[tuple[RowComparison, int]]) -> int | None:
    """The seeds a row with which the test finds a true difference `gap` in 80 % of cases; None: over MOST_SEEDS.

    compared: rows with several seeds, and how many each has. With S seeds in both rows, value / SE has the noncentral t
    distribution with noncentrality gap / SE, where SE^2 = 2 sigma^2 / S + V_b. sigma^2, the variance of a row from seed
    to seed, its degrees of freedom but for S - 1, and V_b are the mean ones of these rows. Holm's correction asks the
    first of m rows for a p-value of 5 % / m.
    """
    sigma2 = np.mean([(one.row_mean.variance_by_seeds or 0) * S for one, S in compared])
    prior = np.mean([one.row_mean.parts[0].freedom - (S - 1) if one.row_mean.parts else 0 for one, S in compared])
    by_sentences = np.mean([one.difference.variance_by_sentences for one, _ in compared if one.difference])
    tested = sum(one.p_value is not None for one, _ in compared)
    S = np.arange(2, MOST_SEEDS + 1)
    by_seeds = np.maximum(2 * sigma2 / S, 1e-12)
    variance = by_seeds + by_sentences
    freedom = np.minimum(variance**2 / (by_seeds**2 / (2 * (S - 1 + prior))), 1e6)
    critical = stats.t.isf((1 - LEVEL) / 2 / tested, freedom)
    enough = stats.nct.sf(critical, freedom, gap / np.sqrt(variance)) >= POWER
    return int(S[enough.argmax()]) if enough.any() else None
